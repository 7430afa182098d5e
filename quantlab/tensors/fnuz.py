"""e4m3fn (OCP) to e4m3fnuz (MI300X) and back, without changing a number.

Both have a sign, four exponent bits and three mantissa bits; fnuz has one more in its exponent's bias, so the same
byte means half as much and the scale doubles, that of static inputs too::

    byte        0x00   0x01..0x7E          0x7F  0x80  0x81..0xFE           0xFF
    e4m3fn      0      2^-9 .. 448         NaN   -0    -2^-9 .. -448        NaN
    e4m3fnuz    0      2^-10 .. 224        240   NaN   -2^-10 .. -224       -240

Only three bytes need care: OCP's minus zero has to become 0 (an equal number), OCP's NaN has no byte that means NaN
after the change, and fnuz's 240 lies beyond OCP's range. vLLM does the same on load
(vllm/model_executor/layers/quantization/utils/w8a8_utils.py, ``normalize_e4m3fn_to_e4m3fnuz``).
"""

from __future__ import annotations

from dataclasses import replace

import torch

from quantlab.tensors.dequantize import dense_codes
from quantlab.tensors.number_types import FP8_E4M3FN, FP8_E4M3FNUZ, NumberType
from quantlab.tensors.quantized import QuantizedTensor


def converted(weight: QuantizedTensor, number: NumberType) -> QuantizedTensor:
    """Return the weight with codes of one of the two types; itself if it has them already.

    Raises:
        ValueError: ``loss`` says that a number would change; callers ask it first.
    """
    if weight.format.number.name == number.name:
        return weight
    reason = loss(weight, number)
    if reason is not None:
        raise ValueError(reason)
    octets = dense_codes(weight).view(torch.uint8)
    to_fnuz = number.name == FP8_E4M3FNUZ.name
    if to_fnuz:
        octets = torch.where(octets == 0x80, 0, octets)
    dtype = torch.float8_e4m3fnuz if to_fnuz else torch.float8_e4m3fn
    return replace(
        weight,
        format=replace(weight.format, number=number),
        codes=octets.view(dtype),
        scales=_scaled(weight, double=to_fnuz),
        input_scale=None if weight.input_scale is None else _times(weight.input_scale, double=to_fnuz),
    )


def loss(weight: QuantizedTensor, number: NumberType) -> str | None:
    """Say what the other type cannot hold, or None if every number survives."""
    pair = (weight.format.number.name, number.name)
    if pair[0] == pair[1]:
        return None
    if set(pair) != {FP8_E4M3FN.name, FP8_E4M3FNUZ.name}:
        return f"{pair[0]} and {pair[1]} do not share their bytes"
    octets = dense_codes(weight).view(torch.uint8)
    if bool(((octets & 0x7F) == 0x7F).any()):
        what = "NaN, which is a number there" if number.name == FP8_E4M3FNUZ.name else "240, which is NaN there"
        return f"a code of {pair[0]} is {what}"
    if number.name == FP8_E4M3FN.name and bool((octets == 0x80).any()):
        return f"a code of {pair[0]} is NaN, which is minus zero there"
    return _scale_loss(weight, double=number.name == FP8_E4M3FNUZ.name)


def _scale_loss(weight: QuantizedTensor, *, double: bool) -> str | None:
    """Say whether a scale cannot be doubled or halved."""
    scaled = _scaled(weight, double=double)
    if weight.scale_rule == "e8m0":
        edge = 254 if double else 0
        return f"a scale of 2^{edge - 127} has no neighbour" if bool((weight.scales == edge).any()) else None
    if torch.equal(_times(scaled, double=not double), weight.scales) and bool(torch.isfinite(scaled.float()).all()):
        return None
    return f"a scale cannot be {'doubled' if double else 'halved'} in {weight.scales.dtype}"


def _scaled(weight: QuantizedTensor, *, double: bool) -> torch.Tensor:
    if weight.scale_rule == "e8m0":
        return weight.scales + 1 if double else weight.scales - 1
    return _times(weight.scales, double=double)


def _times(scales: torch.Tensor, *, double: bool) -> torch.Tensor:
    return scales * 2 if double else scales / 2
