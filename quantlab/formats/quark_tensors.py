"""Writing one layer as Quark stores it; the layouts are drawn in ``quark``."""

from __future__ import annotations

from dataclasses import replace

import torch

from quantlab.formats.quark import NIBBLES, codes_layout
from quantlab.tensors.dequantize import dense_codes
from quantlab.tensors.number_types import FP4_E2M1, FP8_E4M3FN, INT4
from quantlab.tensors.packing import pack, relayout
from quantlab.tensors.quantized import PackedCodes, PackLayout, QuantizedTensor


def encode_layer(name: str, weight: QuantizedTensor) -> dict[str, torch.Tensor]:
    """Return the layer's tensors by full name; the caller has asked for obstacles."""
    number = weight.format.number
    if number == FP4_E2M1:
        tensors = {f"{name}.weight": _words(weight, NIBBLES), f"{name}.weight_scale": weight.scales}
    elif number == FP8_E4M3FN:
        tensors = {f"{name}.weight": dense_codes(weight), f"{name}.weight_scale": _flat(weight, weight.scales)}
    elif number == INT4:
        tensors = _packed(name, weight)
    else:
        tensors = _bytes(name, weight)
    inputs = weight.extra.get("input_scale", weight.input_scale)
    if inputs is not None:
        tensors[f"{name}.input_scale"] = inputs.reshape(()) if inputs.numel() == 1 else inputs
    if "input_zero" in weight.extra:
        tensors[f"{name}.input_zero_point"] = weight.extra["input_zero"]
    return tensors


def _packed(name: str, weight: QuantizedTensor) -> dict[str, torch.Tensor]:
    grouped = weight.format.granularity == "group"
    word = "int4" if weight.zeros is None else "uint4"
    layout = codes_layout({"grouped": grouped, "dtype_word": word, "reorder": True})
    out = weight.shape[0]
    zeros = torch.zeros(weight.scales.shape, dtype=torch.int16, device=weight.scales.device)
    zeros = (zeros if weight.zeros is None else weight.zeros).expand(out, -1).to(torch.int8)
    scales = weight.scales.expand(out, -1)
    if grouped:
        packed_zeros = pack(zeros, layout).words
        scales = scales.mT.contiguous()
    else:
        packed_zeros = pack(zeros.reshape(1, -1), replace(layout, axis="in")).words.reshape(-1)
        scales = scales.reshape(-1).contiguous()
    return {
        f"{name}.weight": _words(weight, layout),
        f"{name}.weight_scale": scales,
        f"{name}.weight_zero_point": packed_zeros,
    }


def _bytes(name: str, weight: QuantizedTensor) -> dict[str, torch.Tensor]:
    codes = dense_codes(weight)
    zeros = torch.zeros_like(weight.scales, dtype=torch.int16) if weight.zeros is None else weight.zeros
    if weight.format.granularity == "group":
        parts = [codes.mT.contiguous(), weight.scales.mT.contiguous(), zeros.mT.contiguous()]
    else:
        parts = [codes, _flat(weight, weight.scales), _flat(weight, zeros)]
    return {
        f"{name}.weight": parts[0],
        f"{name}.weight_scale": parts[1],
        f"{name}.weight_zero_point": parts[2].to(torch.int8),
    }


def _flat(weight: QuantizedTensor, values: torch.Tensor) -> torch.Tensor:
    """Return ``[]`` for one scale a tensor, ``[out]`` for channels."""
    return values.reshape(()) if weight.format.granularity == "tensor" else values.reshape(-1).contiguous()


def _words(weight: QuantizedTensor, layout: PackLayout) -> torch.Tensor:
    codes = weight.codes
    return (relayout(codes, layout) if isinstance(codes, PackedCodes) else pack(codes, layout)).words
