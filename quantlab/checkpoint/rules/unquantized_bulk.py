"""A "4-bit" model whose bytes are mostly 16 bit: experts or projections that the quantizer passed over."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from quantlab.checkpoint.facts import Finding
from quantlab.checkpoint.open import Opened
from quantlab.checkpoint.patterns import leaves_dense
from quantlab.checkpoint.sizes import kind_of

_DENSE = {"F32", "F16", "BF16"}
_LINEAR = {"experts", "attention", "mlp", "other"}


def check(opened: Opened) -> Iterator[Finding]:
    """Compare bytes of dense matrices with those of codes; embeddings, head, norms and vision are expected dense."""
    facts = opened.facts
    codes = facts.bytes.get("codes", 0)
    if not opened.headers or facts.scheme.weights is None or not opened.layout.layers:
        return
    bulk: Counter[str] = Counter()
    example: dict[str, str] = {}
    for name, tensor in opened.layout.dense.items():
        kind = kind_of(name)
        if tensor.dtype in _DENSE and len(tensor.shape) >= 2 and kind in _LINEAR and math.prod(tensor.shape) >= 2**12:
            bulk[kind] += tensor.end - tensor.start
            example.setdefault(kind, name)
    bits = facts.scheme.weights.bits or 8
    for kind, size in bulk.items():
        share = size / max(facts.bytes.get("total", 1), 1)
        quantized = any(kind_of(layer + ".weight") == kind for layer in opened.layout.layers)
        if share > 0.25 or (kind == "experts" and not quantized) or size > codes:
            where = f"{opened.layout.dense[example[kind]].file}: {example[kind]}"
            message = (
                f"{share:.0%} of the bytes are {kind} weights in 16 bit, such as {example[kind]}, "
                f"in a checkpoint of {bits}-bit weights"
            )
            if leaves_dense(example[kind].removesuffix(".weight"), facts.ignore):
                yield Finding("unquantized-bulk", "info", where, f"{message} (the ignore list says so)")
                continue
            fix = "quantize them too; a quantizer may not see fused experts" if kind == "experts" else None
            yield Finding("unquantized-bulk", "warning", where, message, fix)
