"""torchao: a serialized config object, ``{"_type", "_version", "_data"}``, or an older one-word name.

What each class stands for is data (``matrix/formats/torchao.yaml``: ``types``); group sizes, dtypes and
granularities come from the object itself (pytorch/ao: torchao/core/config.py, ``config_to_dict``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from quantlab.checkpoint.facts import ActivationScheme, Finding, SchemeGroup, WeightScheme
from quantlab.checkpoint.schemes.flat import ignore_list
from quantlab.checkpoint.schemes.interface import Reading, Source
from quantlab.checkpoint.schemes.numbers import combine, number_type
from quantlab.checkpoint.values import first, integer, mapping, text


def read(source: Source) -> Reading:
    """Read a torchao config of either age."""
    groups: list[SchemeGroup] = []
    ignore = list(ignore_list(source.format, source.block))
    findings: list[Finding] = []
    types = mapping(source.format.get("types"))
    for target, name, data in _parts(source.block):
        if name is None:
            ignore.append(target)
            continue
        known = mapping(types.get(name) or types.get(name.lower()))
        if known:
            groups.append(SchemeGroup(_weights(known, data), (target,), _activations(known, data)))
        else:
            findings.append(
                Finding("unknown-algorithm", "warning", "quantization_config.quant_type",
                        f"torchao type {name!r:.60} is not known to quantlab")
            )  # fmt: skip
    return Reading(combine(groups), ignore=tuple(ignore), findings=tuple(findings))


def _parts(block: Mapping[str, Any]) -> Iterator[tuple[str, str | None, Mapping[str, Any]]]:
    """Yield (target, type name or None for left dense, its data); a map of modules has several."""
    kind = block.get("quant_type")
    if isinstance(kind, str):
        yield "Linear", kind, mapping(block.get("quant_type_kwargs"))
        return
    node = mapping(mapping(kind).get("default")) or mapping(kind)
    modules = mapping(first(mapping(node.get("_data")), ("fqn_to_config", "module_fqn_to_config")))
    if not modules and text(node.get("_type")):
        yield "Linear", text(node.get("_type")), mapping(node.get("_data"))
    for module, content in sorted(modules.items(), key=lambda item: item[0] != "_default"):
        target = "Linear" if module == "_default" else str(module)
        yield target, text(mapping(content).get("_type")), mapping(mapping(content).get("_data"))


def _weights(known: Mapping[str, Any], data: Mapping[str, Any]) -> WeightScheme:
    constants = mapping(known.get("weights"))
    weights = replace(WeightScheme(), **{key: constants[key] for key in constants if key in WeightScheme.__slots__})
    found = number_type(_word(first(data, ("weight_dtype", "dtype", "target_dtype"))))
    if found is not None and not constants.get("fixed"):
        weights = replace(weights, bits=found.bits, type=found.type, dtype=found.dtype)
    bits = integer(data.get("bit_width"))
    weights = replace(weights, bits=bits) if bits else weights
    granularity, size = _granularity(first(data, ("weight_granularity", "granularity")))
    size = size or integer(first(data, ("group_size", "block_size")))
    if size and size > 0:
        weights = replace(weights, granularity="group", group_size=size)
    elif granularity:
        weights = replace(weights, granularity=granularity, group_size=None)
    mapped = _word(first(data, ("mapping_type", "weight_mapping_type"))) or ""
    if mapped:
        weights = replace(weights, symmetric=not mapped.upper().startswith("ASYM"))
    return weights


def _activations(known: Mapping[str, Any], data: Mapping[str, Any]) -> ActivationScheme | None:
    constants = mapping(known.get("activations"))
    if not constants:
        return None
    activations = ActivationScheme(**constants)
    found = number_type(_word(data.get("activation_dtype")))
    if found is not None:
        activations = replace(activations, bits=found.bits, type=found.type, dtype=found.dtype)
    granularity, _ = _granularity(data.get("granularity"), index=0)
    granularity = {"channel": "token"}.get(granularity or "", granularity)
    return replace(activations, granularity=granularity) if granularity else activations


def _granularity(value: object, index: int = -1) -> tuple[str | None, int | None]:
    """``PerTensor``, ``PerRow``, ``PerGroup(group_size)``, ...; a pair is (activations, weights)."""
    node = value[index] if isinstance(value, list) and value else value
    name = text(mapping(node).get("_type")) or text(node) or ""
    data = mapping(mapping(node).get("_data"))
    names = {"pertensor": "tensor", "perrow": "channel", "peraxis": "channel", "pertoken": "channel",
             "pergroup": "group", "perblock": "block"}  # fmt: skip
    return names.get(name.lower().replace("_", "")), integer(data.get("group_size"))


def _word(value: object) -> str | None:
    """A plain string, or the ``_data`` of a serialized enum or dtype."""
    return text(value) or text(mapping(value).get("_data"))
