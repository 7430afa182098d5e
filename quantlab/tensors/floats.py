"""The small floats and the scales that torch has no arithmetic for: e2m1 codes and e8m0 exponents.

e2m1 (FP4) keeps a sign, two exponent bits and one mantissa bit; its 16 codes are the index below::

    code   0    1    2    3    4    5    6    7   | 8..15: the same with a minus sign
    value  0   0.5   1   1.5   2    3    4    6

e8m0 is an exponent alone: the byte ``s`` means 2^(s - 127) (OCP Microscaling Formats v1.0, section 5.4.1).
"""

from __future__ import annotations

import torch

INTEGERS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}
"""Integer dtype of the same width, in which the bits of a float can be worked on."""

E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""Value of each e2m1 code."""

NF4_VALUES = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
"""Value of each nf4 index (bitsandbytes-foundation/bitsandbytes: bitsandbytes/functional.py, get_4bit_type)."""

BNB_FP4_VALUES = tuple(
    sign * value / 12 if value else 0.0
    for sign in (1.0, -1.0)
    for value in (0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0)
)
"""Value of each fp4 index of bitsandbytes (the same file): e2m1 with an own order, divided by its largest; index 8 is
zero without a sign."""


def e2m1_codes(values: torch.Tensor) -> torch.Tensor:
    """Round to the nearest e2m1 code, ties to the even mantissa, beyond 6 to 6.

    The grid has steps of 1/2 up to 2, of 1 up to 4 and of 2 up to 6; counted in codes, the finest step that applies
    gives the smallest of three roundings. The sign of a negative value that rounds to zero is kept; minus zero
    itself becomes code 0, as in compressed-tensors (quantization/utils/fp4_utils.py, ``cast_to_fp4``).

    Args:
        values: bfloat16, float16 or float32.

    Returns:
        ``uint8`` codes 0 to 15 of the same shape.
    """
    size = values.abs()
    codes = torch.round(size * 2)
    torch.minimum(codes, torch.round(size).add_(2), out=codes)
    torch.minimum(codes, torch.round(size.mul_(0.5)).add_(4), out=codes)
    bits = values.view(INTEGERS[values.dtype])
    negative = (bits & (bits - 1)) >> (8 * bits.element_size() - 1)  # all ones below zero, none at minus zero
    return codes.clamp_(max=7).to(bits.dtype).bitwise_or_(negative.bitwise_and_(8)).to(torch.uint8)


def from_e8m0(exponents: torch.Tensor) -> torch.Tensor:
    """Return 2^(s - 127) as float32, exactly: byte 0 is the subnormal 2^-127, byte 255 infinity."""
    bits = exponents.view(torch.uint8).to(torch.int32) << 23
    return torch.where(bits == 0, 1 << 22, bits).view(torch.float32)


def look_up(codes: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return ``values[codes]`` for ``uint8`` codes."""
    return values.to(codes.device).index_select(0, codes.flatten().to(torch.int32)).view(codes.shape)
