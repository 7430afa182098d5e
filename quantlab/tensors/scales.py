"""From the extremes of a group to its scale, the way compressed-tensors computes it.

Scale semantics are compressed-tensors' own (quantization/utils/helpers.py, ``calculate_qparams``), so that a
checkpoint quantized here has the same bytes as one of its ``compress``. They are easy to get almost right:

- the arithmetic is that of the weights' dtype: in bfloat16 the scale of an 8-bit row is ``bf16(absmax / 127.5)``;
- the range is symmetric around zero with ``2^bits - 1`` steps: int4 divides by 7.5, e4m3 by 448;
- a scale of zero becomes a small number that depends on the scale's type, never zero itself;
- MX exponents round the largest value to a power of two with carry at 1.75, then subtract the element's exponent;
- the global scale of NVFP4 is rounded to the weights' dtype before it is kept as float32.
"""

from __future__ import annotations

import torch

from quantlab.tensors.floats import INTEGERS, from_e8m0
from quantlab.tensors.number_types import FP4_E2M1, FP8_E4M3FN, NumberType
from quantlab.tensors.quantized import WeightFormat

_MANTISSA = {torch.bfloat16: 7, torch.float16: 10, torch.float32: 23}
_E4M3_EPS = 0.125
"""What replaces an e4m3 scale of zero (compressed-tensors: ``_get_dtype_eps``)."""


def absmax(values: torch.Tensor, dim: int | tuple[int, ...] | None = None) -> torch.Tensor:
    """Return the largest magnitude along ``dim`` (kept as 1), NaN where a NaN occurs.

    Magnitudes of floats order like their bits without the sign, and integers have a faster maximum.
    """
    bits = INTEGERS[values.dtype]
    sizes = values.view(bits) & torch.iinfo(bits).max
    top = sizes.amax() if dim is None else sizes.amax(dim, keepdim=True)
    return top.view(values.dtype)


def symmetric_scales(top: torch.Tensor, number: NumberType) -> torch.Tensor:
    """Return the scales of groups whose largest magnitude is ``top``, in the dtype of ``top``."""
    half = (torch.tensor(number.maximum - number.minimum).to(top.dtype) / 2).to(top.device)
    return replace_zero(top / half, torch.finfo(top.dtype).eps)


def asymmetric_scales(low: torch.Tensor, high: torch.Tensor, number: NumberType) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scales and ``int8`` zero points of groups that range from ``low`` to ``high``."""
    low, high = low.clamp(max=0), high.clamp(min=0)
    scales = (high - low) / torch.tensor(number.maximum - number.minimum).to(high)
    zeros = torch.clamp(number.minimum - (low / scales), number.minimum, number.maximum)
    scales = replace_zero(scales, torch.finfo(scales.dtype).eps)
    return scales, torch.round(zeros.clamp(-128, 127)).nan_to_num(0).to(torch.int8)


def mx_exponents(top: torch.Tensor, number: NumberType) -> torch.Tensor:
    """Return the e8m0 exponents (``uint8``) of groups whose largest magnitude is ``top``; 255 (NaN) if none fits.

    compressed-tensors: quantization/utils/mxfp_utils.py, ``generate_mx_scales``, then the way through the
    weights' dtype that its compressor takes (compressors/mx_utils.py), where float16 loses powers below 2^-24 and
    gets 1 instead. Exponents are read from the bits: logarithms differ between devices, bits do not.
    """
    info, mantissa = torch.finfo(top.dtype), _MANTISSA[top.dtype]
    bias = 2 ** (info.bits - mantissa - 2) - 1
    carry = 1 << (mantissa - 2)  # 1.75 and more go up to the next power
    biased = (top.view(INTEGERS[top.dtype]).to(torch.int32) + carry) >> mantissa
    largest = {FP4_E2M1.name: 2, FP8_E4M3FN.name: 8}[number.name]
    exponents = torch.where(biased == 0, 0, biased - bias + 127 - largest).clamp(min=0)
    if top.dtype == torch.float16:
        exponents = torch.where(exponents < 127 - 24, 127, exponents)
    return torch.where(biased <= 2 * bias, exponents, 255).to(torch.uint8)


def mx_scales(exponents: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the powers of two that MX codes are divided by, in the weights' dtype."""
    return from_e8m0(exponents).to(dtype)


def global_scale_divisor(top: torch.Tensor) -> torch.Tensor:
    """Return NVFP4's global scale as compressed-tensors stores it, float32 ``[1]``: 448 * 6 / absmax.

    Args:
        top: largest magnitude of the tensor, or of all tensors that an engine fuses into one; in the dtype of
            the weights, which the quotient is rounded to (``generate_gparam``).
    """
    top = top.reshape(1).clamp(min=torch.finfo(top.dtype).tiny)
    quotient = FP8_E4M3FN.maximum * FP4_E2M1.maximum / top
    return torch.nan_to_num(quotient, nan=1.0, posinf=1.0, neginf=1.0).to(torch.float32)


def nvfp4_scales(top: torch.Tensor, divisor: torch.Tensor) -> torch.Tensor:
    """Return the e4m3 scales of groups whose largest magnitude is ``top``."""
    half = torch.tensor(FP4_E2M1.maximum).to(top)
    scales = (divisor * (top / half)).clamp(FP8_E4M3FN.minimum, FP8_E4M3FN.maximum)
    rounded = scales.to(torch.float8_e4m3fn).to(scales.dtype)
    return replace_zero(rounded, _E4M3_EPS).to(torch.float8_e4m3fn)


def replace_zero(scales: torch.Tensor, instead: float) -> torch.Tensor:
    """Return the scales with zeros replaced, so that an all-zero group divides by something."""
    return torch.where(scales == 0, torch.tensor(instead, dtype=scales.dtype, device=scales.device), scales)


def scale_type(scheme: WeightFormat) -> str | None:
    """Return the scale type that a scheme has where it is not said: MX for groups of 32 floats, NVFP4 for 16."""
    if scheme.scale_type is not None or scheme.number.kind != "float" or scheme.granularity != "group":
        return scheme.scale_type
    return {32: "e8m0", 16: "float8_e4m3fn"}.get(scheme.group_size or 0)
