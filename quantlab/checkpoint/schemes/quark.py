"""AMD Quark: a global specification, and others by layer name or layer type.

A weight's specification may be a list: progressive quantization, whose last stage is what the file stores
(amd/Quark: quark/torch/quantization/config/config.py, ``ProgressiveSpec``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantlab.checkpoint.facts import ActivationScheme, KvCacheScheme, SchemeGroup, WeightScheme
from quantlab.checkpoint.schemes.interface import Reading, Source
from quantlab.checkpoint.schemes.numbers import combine, number_type
from quantlab.checkpoint.values import boolean, integer, mapping, strings, text

_GRANULARITY = {"per_tensor": "tensor", "per_channel": "channel", "per_group": "group", "per_block": "block"}


def read(source: Source) -> Reading:
    """Read a Quark config."""
    block = source.block
    groups: list[SchemeGroup] = []
    ignore = list(strings(block.get("exclude")))
    _add(groups, ignore, ("Linear",), block.get("global_quant_config"), dense_if_empty=False)
    for key in ("layer_type_quant_config", "layer_quant_config"):
        for name, content in mapping(block.get(key)).items():
            _add(groups, ignore, (str(name),), content, dense_if_empty=True)
    scheme = combine(groups, kv_cache=_kv_cache(block))
    return Reading(scheme, ignore=tuple(ignore))


def _add(
    groups: list[SchemeGroup], ignore: list[str], targets: tuple[str, ...], value: object, *, dense_if_empty: bool
) -> None:
    content = mapping(value)
    weights = weight_specification(content.get("weight"))
    if weights is not None:
        groups.append(SchemeGroup(weights, targets, activation_specification(content.get("input_tensors"))))
    elif dense_if_empty:
        ignore.extend(targets)


def _stages(value: object) -> list[Mapping[str, Any]]:
    stages = value if isinstance(value, list) else [value]
    return [mapping(stage) for stage in stages if mapping(stage)]


def weight_specification(value: object) -> WeightScheme | None:
    """Return the scheme of one weight specification (or of the last of several stages), or None."""
    stages = _stages(value)
    if not stages:
        return None
    stage = stages[-1]
    dtype = _dtype(stage)
    found = number_type(dtype)
    if dtype in {"bfloat16", "float16", "float32"}:
        return None
    group = integer(stage.get("group_size"))
    granularity = _GRANULARITY.get(text(stage.get("qscheme")) or "")
    microscaled = (text(stage.get("scale_format")) or "").lower() == "e8m0" or stage.get("dtype") == "mx"
    symmetric = boolean(stage.get("symmetric"))
    return WeightScheme(
        bits=found.bits if found else None,
        type=found.type if found else None,
        granularity=granularity or ("group" if group else None),
        group_size=group if granularity in {"group", None} else None,
        symmetric=True if symmetric is None and found and found.signed else symmetric,
        dtype=found.dtype if found else dtype,
        scale_dtype="float8_e8m0fnu" if microscaled else None,
    )


def activation_specification(value: object) -> ActivationScheme | None:
    """Return the scheme of the inputs, or None for 16 bit (or where no dtype is given)."""
    stages = _stages(value)
    stage = stages[-1] if stages else {}
    found = number_type(_dtype(stage))
    if found is None:
        return None
    granularity = _GRANULARITY.get(text(stage.get("qscheme")) or "")
    dynamic = boolean(stage.get("is_dynamic"))
    return ActivationScheme(
        bits=found.bits,
        type=found.type,
        granularity="token" if granularity == "channel" else granularity,
        group_size=integer(stage.get("group_size")),
        dynamic=dynamic,
        dtype=found.dtype,
    )


def _dtype(stage: Mapping[str, Any]) -> str | None:
    """``mx`` names its element type apart."""
    name = text(stage.get("dtype"))
    return text(stage.get("mx_element_dtype")) if name == "mx" else name


def _kv_cache(block: Mapping[str, Any]) -> KvCacheScheme | None:
    """The KV cache is the output of the key and value projections."""
    projections = [
        content
        for name, content in mapping(block.get("layer_quant_config")).items()
        if any(part in str(name) for part in ("k_proj", "v_proj", "kv_proj", "qkv_proj"))
    ]
    for content in (*mapping(block.get("kv_cache_quant_config")).values(), *projections):
        stages = _stages(mapping(content).get("output_tensors"))
        found = number_type(_dtype(stages[-1])) if stages else None
        if found is not None:
            dynamic = boolean(stages[-1].get("is_dynamic"))
            return KvCacheScheme(found.bits, found.type, found.dtype, static_scales=not dynamic)
    return None
