"""The number types that quantized weights are made of: names, bits and ranges.

A frozen value for each; everything that needs a range or a torch dtype asks here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["int", "float", "codebook"]


@dataclass(frozen=True, slots=True)
class NumberType:
    """One element type.

    Attributes:
        name: the field's name for it, such as ``int4`` or ``float8_e4m3fn``.
        kind: two's complement integers, floats, or indices into a codebook.
        bits: bits of one code.
        minimum: smallest representable value (codebooks: smallest entry).
        maximum: largest representable finite value.
        torch_dtype: name of the torch dtype that holds *dense* codes: ``int8`` for integers up to 8 bits,
            the float8 dtype itself, ``uint8`` for 4-bit floats and codebook indices (one index a byte).
    """

    name: str
    kind: Kind
    bits: int
    minimum: float
    maximum: float
    torch_dtype: str


def signed_int(bits: int) -> NumberType:
    """Return the signed integer type of ``bits`` bits (2 to 8)."""
    return NumberType(f"int{bits}", "int", bits, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1, "int8")


INT2, INT3, INT4, INT5, INT6, INT7, INT8 = (signed_int(bits) for bits in range(2, 9))
FP8_E4M3FN = NumberType("float8_e4m3fn", "float", 8, -448.0, 448.0, "float8_e4m3fn")
FP8_E4M3FNUZ = NumberType("float8_e4m3fnuz", "float", 8, -240.0, 240.0, "float8_e4m3fnuz")
FP8_E5M2 = NumberType("float8_e5m2", "float", 8, -57344.0, 57344.0, "float8_e5m2")
FP4_E2M1 = NumberType("float4_e2m1", "float", 4, -6.0, 6.0, "uint8")
NF4 = NumberType("nf4", "codebook", 4, -1.0, 1.0, "uint8")
BNB_FP4 = NumberType("fp4", "codebook", 4, -1.0, 1.0, "uint8")

NUMBER_TYPES = {
    kind.name: kind
    for kind in (
        INT2,
        INT3,
        INT4,
        INT5,
        INT6,
        INT7,
        INT8,
        FP8_E4M3FN,
        FP8_E4M3FNUZ,
        FP8_E5M2,
        FP4_E2M1,
        NF4,
        BNB_FP4,
    )
}
"""Every number type by name."""
