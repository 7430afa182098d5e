"""Vector quantization: AQLM, VPTQ and their kind, whose bits follow from the codebooks' shape.

The bits of a weight are the bits of its indices over the weights that one index stands for; codebooks and
scales come on top and are not counted, as they are small in large models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from quantlab.checkpoint.facts import SchemeGroup, WeightScheme
from quantlab.checkpoint.schemes.flat import ignore_list
from quantlab.checkpoint.schemes.interface import Reading, Source
from quantlab.checkpoint.schemes.numbers import combine
from quantlab.checkpoint.values import integer, integers, mapping


def read(source: Source) -> Reading:
    """Read an AQLM or VPTQ config."""
    kind = str(source.format.get("id"))
    groups = _vptq(source.block) if kind == "vptq" else [SchemeGroup(_aqlm(source.block), ("Linear",))]
    return Reading(combine(groups, main=_commonest(groups)), ignore=ignore_list(source.format, source.block))


def _aqlm(block: Mapping[str, Any]) -> WeightScheme:
    """Bits = codebooks * bits of an index / weights of a group (huggingface/transformers: AqlmConfig)."""
    codebooks = integer(block.get("num_codebooks")) or 1
    index_bits = integer(block.get("nbits_per_codebook")) or 16
    rows = integer(block.get("out_group_size")) or 1
    columns = integer(block.get("in_group_size")) or 8
    bits = _tidy(codebooks * index_bits / max(rows * columns, 1))
    return WeightScheme(bits=bits, type="aqlm", granularity="channel", symmetric=True)


def _vptq(block: Mapping[str, Any]) -> list[SchemeGroup]:
    """One group a distinct layer config (huggingface/transformers: VptqLayerConfig)."""
    found: dict[WeightScheme, list[str]] = {}
    layers = {**mapping(block.get("shared_layer_config")), **mapping(block.get("config_for_layers"))}
    for name, layer in layers.items():
        found.setdefault(_vptq_layer(mapping(layer)), []).append(str(name))
    return [SchemeGroup(weights, tuple(names)) for weights, names in found.items()] or [
        SchemeGroup(WeightScheme(type="vptq"), ("Linear",))
    ]


def _vptq_layer(layer: Mapping[str, Any]) -> WeightScheme:
    """Bits = (log2 of main centroids + log2 of residual centroids) / vector length."""
    lengths = [length for length in integers(layer.get("vector_lens")) if length > 0]
    centroids = [
        count for key in ("num_centroids", "num_res_centroids") for count in integers(layer.get(key))[-1:] if count > 1
    ]
    if not lengths or not centroids:
        return WeightScheme(type="vptq")
    return WeightScheme(bits=_tidy(sum(map(math.log2, centroids)) / lengths[-1]), type="vptq", granularity="channel")


def _commonest(groups: list[SchemeGroup]) -> int:
    return max(range(len(groups)), key=lambda index: len(groups[index].targets), default=0)


def _tidy(bits: float) -> float | int:
    return int(bits) if float(bits).is_integer() else round(bits, 3)
