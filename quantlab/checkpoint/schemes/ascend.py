"""Ascend (msModelSlim): ``quant_model_description.json`` has one row a tensor, ``FLOAT`` or a scheme's name.

Not a config of defaults but a list of facts, so the scheme is the name that most rows of weights bear.
"""

from __future__ import annotations

import re
from collections import Counter

from quantlab.checkpoint.facts import ActivationScheme, KvCacheScheme, SchemeGroup, WeightScheme
from quantlab.checkpoint.schemes.interface import Reading, Source
from quantlab.checkpoint.schemes.numbers import combine
from quantlab.checkpoint.values import integer, text

_NAME = re.compile(r"^W(\d+)A(\d+)(?:S)?(C\d+)?(?:_?([A-Z_]+))?$")


def read(source: Source) -> Reading:
    """Read the rows, or the model's own label where no weight row has a scheme."""
    rows = {str(name): row for name, row in source.block.items() if isinstance(row, str)}
    weights = {name: row for name, row in rows.items() if name.endswith(".weight")}
    label = text(source.block.get("model_quant_type")) or text(source.block.get("quant_method"))
    counts = Counter(row for row in weights.values() if _NAME.match(row))
    if not counts and label and _NAME.match(label):
        counts[label] = 1
    size = integer(source.block.get("group_size"))
    groups = [
        _group(name, size, tuple(key.removesuffix(".weight") for key, row in weights.items() if row == name))
        for name, _ in counts.most_common()
    ]
    kept = tuple(name.removesuffix(".weight") for name, row in weights.items() if row == "FLOAT")
    cache = text(source.block.get("kv_cache_type")) or text(source.block.get("kv_quant_type"))
    kv_cache = KvCacheScheme(8, "int", "int8", static_scales=True) if cache and cache.upper() == "C8" else None
    return Reading(combine(groups, kv_cache=kv_cache), ignore=kept)


def _group(name: str, size: int | None, targets: tuple[str, ...]) -> SchemeGroup:
    match = _NAME.match(name)
    assert match is not None
    bits, activation_bits, suffix = int(match[1]), int(match[2]), match[4] or ""
    kind = "float" if "FP" in suffix else "int"
    weights = WeightScheme(
        bits=bits, type=kind, granularity="group" if size else "channel", group_size=size or None, dtype=f"int{bits}"
        if kind == "int" else None,
    )  # fmt: skip
    if activation_bits >= 16:
        return SchemeGroup(weights, targets)
    dynamic = "DYNAMIC" in suffix
    activations = ActivationScheme(
        bits=activation_bits, type=kind, granularity="token" if dynamic else "tensor", dynamic=dynamic
    )
    return SchemeGroup(weights, targets, activations)
