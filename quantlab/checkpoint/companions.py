"""Whether a companion file says the same as the config that was recognised.

Loaders differ in which of the files they read, so a contradiction means that one of them loads the model wrongly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from quantlab.checkpoint.facts import Finding, Scheme, WeightScheme
from quantlab.checkpoint.schemes import SCHEME_READERS
from quantlab.checkpoint.schemes.interface import Reading, Source
from quantlab.checkpoint.values import mapping, strings

_SEMANTIC = ("desc_act", "checkpoint_format", "zero_point", "version", "lm_head")
"""Keys beside the numbers that change how the bytes are read."""


def contradictions(form: Mapping[str, Any], source: Source, reading: Reading, where: str) -> Iterator[Finding]:
    """Yield one finding for each thing on which a companion of the same format differs."""
    for name in strings(form.get("companions")):
        content = mapping(source.companions.get(name))
        if not content or where.startswith(name):
            continue
        block = mapping(content.get("quantization")) or content
        other = SCHEME_READERS[str(form["reader"])](Source(form, block, {}, {}))
        for topic, ours, theirs in _differences(reading.scheme, other.scheme, source.block, block):
            yield Finding(
                "companion-contradicts", "error" if topic in {"weights", "desc_act", "zero_point"} else "warning", name,
                f"{topic}: {name} says {theirs}, {where} says {ours}",
                "keep the one that fits the tensors and delete the other",
            )  # fmt: skip


def _differences(
    ours: Scheme, theirs: Scheme, block: Mapping[str, Any], other: Mapping[str, Any]
) -> Iterator[tuple[str, str, str]]:
    mine, its = _numbers(ours), _numbers(theirs)
    if mine and its and mine != its:
        yield "weights", ", ".join(sorted(mine)), ", ".join(sorted(its))
    if ours.kv_cache != theirs.kv_cache and not (mine and its and mine != its):
        kinds = [
            scheme.kv_cache.dtype or scheme.kv_cache.type if scheme.kv_cache else "16 bit" for scheme in (ours, theirs)
        ]
        if kinds[0] != kinds[1]:
            yield "KV cache", str(kinds[0]), str(kinds[1])
    for key in _SEMANTIC:
        if block.get(key) is not None and other.get(key) is not None and block[key] != other[key]:
            yield key, f"{block[key]!r:.40}", f"{other[key]!r:.40}"


def _numbers(scheme: Scheme) -> set[str]:
    return {_words(group.weights) for group in scheme.groups}


def _words(weights: WeightScheme) -> str:
    size = "" if weights.group_size is None else f" of {weights.group_size}"
    return f"{weights.bits}-bit {weights.type} by {weights.granularity}{size}"
