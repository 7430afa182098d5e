"""NVIDIA ModelOpt: one word, ``quant_algo``, stands for a whole scheme; mixed ones name it by layer.

The words' meaning is data (``matrix/formats/modelopt.yaml``: ``algorithms``). The config is written twice: as
``quantization`` in ``hf_quant_config.json`` and, by newer releases, as ``quantization_config`` in ``config.json``
in the manner of compressed-tensors (NVIDIA/Model-Optimizer: modelopt/torch/export/convert_hf_config.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from quantlab.checkpoint.facts import ActivationScheme, Finding, SchemeGroup, WeightScheme
from quantlab.checkpoint.schemes.compressed_tensors import activation_arguments, kv_cache_arguments, weight_arguments
from quantlab.checkpoint.schemes.interface import Reading, Source
from quantlab.checkpoint.schemes.numbers import combine, kv_cache_scheme
from quantlab.checkpoint.values import boolean, first, integer, mapping, strings, text


def read(source: Source) -> Reading:
    """Read a ModelOpt config in either spelling."""
    block = flattened(source.block)
    findings: list[Finding] = []
    ignore = strings(first(block, ("ignore", "exclude_modules", "modules_to_not_convert")))
    groups = layer_groups(source.format, block, findings)
    main = 0
    if groups:
        main = max(range(len(groups)), key=lambda index: len(groups[index].targets))
        findings += _two_tables(block, groups)
    else:
        groups = _whole_model(source.format, block, findings)
    kv_cache = kv_cache_scheme(block.get("kv_cache_quant_algo"))
    kv_cache = kv_cache or kv_cache_scheme(block.get("kv_cache_scheme"))
    kv_cache = kv_cache or kv_cache_arguments(block.get("kv_cache_scheme"))
    return Reading(combine(groups, main=_experts_or(main, groups), kv_cache=kv_cache), None, ignore, tuple(findings))


def flattened(block: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keys of ``hf_quant_config.json``'s inner object, or the block itself."""
    inner = mapping(block.get("quantization"))
    return {**block, **inner} if inner else block


def layer_groups(form: Mapping[str, Any], block: Mapping[str, Any], findings: list[Finding]) -> list[SchemeGroup]:
    """Return one group for each algorithm among ``quantized_layers``, empty if there are none."""
    layers: dict[tuple[str, int | None], list[str]] = {}
    for name, content in mapping(block.get("quantized_layers")).items():
        algorithm = text(mapping(content).get("quant_algo"))
        if algorithm is not None:
            group = integer(mapping(content).get("group_size"))
            layers.setdefault((algorithm, group), []).append(str(name))
    groups = []
    for (algorithm, group), names in layers.items():
        found = algorithm_scheme(form, algorithm, group, {})
        if found is None:
            findings.append(_unknown(algorithm, "quantized_layers"))
        else:
            groups.append(SchemeGroup(found[0], tuple(names), found[1]))
    return groups


def _whole_model(form: Mapping[str, Any], block: Mapping[str, Any], findings: list[Finding]) -> list[SchemeGroup]:
    algorithm = text(block.get("quant_algo"))
    group = integer(block.get("group_size"))
    found = algorithm_scheme(form, algorithm, group, block) if algorithm else None
    if found is not None:
        return [SchemeGroup(found[0], ("Linear",), found[1])]
    if algorithm and algorithm.upper() not in {"MIXED_PRECISION", "NO_QUANT", "NONE"}:
        findings.append(_unknown(algorithm, "quant_algo"))
    groups = []
    for content in mapping(block.get("config_groups")).values():
        weights = weight_arguments(mapping(content).get("weights"))
        if weights is not None:
            activations = activation_arguments(mapping(content).get("input_activations"))
            groups.append(SchemeGroup(weights, strings(mapping(content).get("targets")), activations))
    return groups


def algorithm_scheme(
    form: Mapping[str, Any], algorithm: str, group: int | None, block: Mapping[str, Any]
) -> tuple[WeightScheme, ActivationScheme | None] | None:
    """Return what an algorithm's name stands for, or None for an unknown name."""
    known = mapping(mapping(form.get("algorithms")).get(algorithm.upper()))
    weights = mapping(known.get("weights"))
    if not weights:
        return None
    size = weights.get("group_size")
    zero_point = boolean(block.get("has_zero_point"))
    scheme = WeightScheme(
        bits=weights.get("bits"),
        type=weights.get("type"),
        granularity=weights.get("granularity"),
        group_size=_size(size) if weights.get("granularity") == "block" else (group or size) if size else None,
        symmetric=weights.get("symmetric", True) if zero_point is None else not zero_point,
        dtype=weights.get("dtype"),
        scale_dtype=weights.get("scale_dtype"),
    )
    activations = mapping(known.get("activations"))
    return scheme, ActivationScheme(**activations) if activations else None


def _two_tables(block: Mapping[str, Any], groups: list[SchemeGroup]) -> Iterator[Finding]:
    """``config_groups`` and ``quantized_layers`` of one file, compared layer by layer."""
    by_layer = {name: group for group in groups for name in group.targets}
    for key, content in mapping(block.get("config_groups")).items():
        activations = activation_arguments(mapping(content).get("input_activations"))
        weights = weight_arguments(mapping(content).get("weights"))
        for target in strings(mapping(content).get("targets")):
            other = by_layer.get(target)
            if other is None or weights is None:
                continue
            ours, theirs = _digits(weights, activations), _digits(other.weights, other.activations)
            if ours != theirs:
                message = f"{target}: config_groups.{key} says {ours}, quantized_layers says {theirs}"
                yield Finding("contradiction", "warning", f"quantization_config.config_groups.{key}", message,
                              "engines differ in which of the two they read")  # fmt: skip
                break


def _digits(weights: WeightScheme, activations: ActivationScheme | None) -> str:
    return f"W{weights.bits}A{activations.bits if activations else 16}"


def _size(value: object) -> tuple[int, int] | None:
    return (value[0], value[1]) if isinstance(value, list) and len(value) == 2 else None


def _experts_or(main: int, groups: list[SchemeGroup]) -> int:
    """Experts hold most parameters of a mixture, though they may be few entries (one for all of a layer)."""
    counts = Counter(
        {index: sum("expert" in name and "shared" not in name for name in group.targets)
         for index, group in enumerate(groups)}
    )  # fmt: skip
    best, count = counts.most_common(1)[0] if counts else (main, 0)
    return best if count else main


def _unknown(algorithm: str, where: str) -> Finding:
    return Finding(
        "unknown-algorithm",
        "warning",
        f"quantization.{where}",
        f"quant_algo {algorithm!r:.60} is not known to quantlab",
    )
