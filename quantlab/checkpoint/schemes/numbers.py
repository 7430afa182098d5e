"""Number types by the many names that configs give them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from quantlab.checkpoint.facts import ActivationScheme, KvCacheScheme, Scheme, SchemeGroup, WeightScheme


@dataclass(frozen=True, slots=True)
class Number:
    """One element type: bits of a code, ``int`` or ``float`` or a codebook's name, and the exact dtype."""

    bits: int
    type: str
    dtype: str
    signed: bool = True


_FLOATS: dict[str, Number] = {
    **dict.fromkeys(
        ("fp8", "fp8_e4m3", "float8", "float8_e4m3", "float8_e4m3fn", "e4m3", "e4m3fn", "f8_e4m3", "qfloat8",
         "qfloat8_e4m3fn", "hf8", "mxfp8", "mx_fp8", "fp8e4m3"),
        Number(8, "float", "float8_e4m3fn"),
    ),
    **dict.fromkeys(("fp8_e4m3fnuz", "float8_e4m3fnuz", "e4m3fnuz", "qfloat8_e4m3fnuz"),
                    Number(8, "float", "float8_e4m3fnuz")),
    **dict.fromkeys(("fp8_e5m2", "float8_e5m2", "e5m2", "bf8", "qfloat8_e5m2"), Number(8, "float", "float8_e5m2")),
    **dict.fromkeys(("fp4", "fp4_e2m1", "float4", "float4_e2m1", "float4_e2m1fn_x2", "float4_e2m1fn", "e2m1",
                     "nvfp4", "mxfp4", "nv_fp4", "mx_fp4"), Number(4, "float", "float4_e2m1")),
    **dict.fromkeys(("fp6_e3m2", "e3m2", "float6_e3m2", "fp6", "mxfp6"), Number(6, "float", "float6_e3m2")),
    **dict.fromkeys(("fp6_e2m3", "e2m3", "float6_e2m3", "mxfp6_e2m3"), Number(6, "float", "float6_e2m3")),
    "nf4": Number(4, "nf4", "nf4"),
    "normalfloat4": Number(4, "nf4", "nf4"),
}  # fmt: skip

_INT = re.compile(r"^(?:torch\.)?q?(u?)(?:mx)?int_?(\d+)$")


def number_type(word: object) -> Number | None:
    """Return the element type that a config's word names (``fp8_e4m3``, ``torch.uint4``, ``qint8``), or None."""
    if not isinstance(word, str):
        return None
    plain = word.strip().lower().removeprefix("torch.").removeprefix("dtype.").replace("-", "_")
    known = _FLOATS.get(plain)
    if known is not None:
        return known
    match = _INT.match(plain)
    bits = int(match[2]) if match else 0
    if match is None or bits not in range(1, 9):
        return None
    unsigned = match[1] == "u"
    return Number(bits, "int", f"{'u' if unsigned else ''}int{bits}", signed=not unsigned)


def exact_dtype(bits: float | None, kind: str | None) -> str | None:
    """Return the usual dtype of ``bits`` bits of ``int`` or ``float``."""
    if kind == "int" and bits in range(1, 9):
        return f"int{int(bits or 0)}"
    if kind == "float":
        return {8: "float8_e4m3fn", 6: "float6_e3m2", 4: "float4_e2m1"}.get(int(bits or 0))
    return None


def combine(groups: list[SchemeGroup], *, main: int = 0, kv_cache: KvCacheScheme | None = None) -> Scheme:
    """Return the scheme of a checkpoint with these groups; ``main`` is the index of the one of most parameters.

    Groups whose weights and activations are the same numbers are merged, so that ``mixed`` tells whether more
    than one weight scheme occurs.
    """
    merged: dict[tuple[WeightScheme, ActivationScheme | None], list[str]] = {}
    for group in groups:
        merged.setdefault((group.weights, group.activations), []).extend(group.targets)
    if not groups:
        return Scheme(kv_cache=kv_cache)
    chosen = groups[main]
    return Scheme(
        mixed=len({group.weights for group in groups}) > 1,
        weights=chosen.weights,
        groups=tuple(SchemeGroup(weights, tuple(targets), used) for (weights, used), targets in merged.items()),
        activations=chosen.activations,
        kv_cache=kv_cache,
    )


def kv_cache_scheme(word: object) -> KvCacheScheme | None:
    """Return the KV cache's numbers from a word such as ``FP8`` or ``fp8_e4m3``; None for none."""
    if not isinstance(word, str) or word.strip().lower() in {"", "none", "auto", "null", "no_quant"}:
        return None
    name = word.strip().lower().removesuffix("_affine")
    found = number_type(name)
    if found is None:
        return KvCacheScheme(type=name)
    return KvCacheScheme(bits=found.bits, type=found.type, dtype=found.dtype, static_scales=True)
