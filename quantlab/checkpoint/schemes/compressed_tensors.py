"""compressed-tensors: config groups of quantization arguments.

Each group has ``targets``, ``weights``, ``input_activations`` and maybe its own ``format``. Defaults and the
inference of a missing strategy follow the library (vllm-project/compressed-tensors:
src/compressed_tensors/quantization/quant_args.py); a missing format is inferred as its compressor would be
chosen (src/compressed_tensors/config/format.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantlab.checkpoint.facts import ActivationScheme, Finding, KvCacheScheme, SchemeGroup, WeightScheme
from quantlab.checkpoint.schemes.interface import Reading, Source
from quantlab.checkpoint.schemes.numbers import combine, exact_dtype
from quantlab.checkpoint.values import boolean, integer, integers, mapping, strings, text


def read(source: Source) -> Reading:
    """Read a compressed-tensors config of any age."""
    block = source.block
    groups: list[SchemeGroup] = []
    formats: list[str] = []
    for name, content in mapping(block.get("config_groups")).items():
        group = mapping(content)
        weights = weight_arguments(group.get("weights"))
        if weights is None:
            continue
        targets = strings(group.get("targets")) or (str(name),)
        activations = activation_arguments(group.get("input_activations"))
        groups.append(SchemeGroup(weights, targets, activations))
        formats.append(text(group.get("format")) or "")
    scheme = combine(groups, main=_broadest(groups), kv_cache=kv_cache_arguments(block.get("kv_cache_scheme")))
    layout = _layout(block, groups, formats)
    return Reading(
        scheme, f"compressed-tensors/{layout}", strings(block.get("ignore")), tuple(_sparsity(block, groups))
    )


def weight_arguments(value: object) -> WeightScheme | None:
    """Return the weight scheme of one QuantizationArgs object, or None where weights stay dense."""
    arguments = mapping(value)
    if not arguments:
        return None
    bits = integer(arguments.get("num_bits", 8))
    kind = text(arguments.get("type")) or "int"
    group = integer(arguments.get("group_size"))
    strategy = text(arguments.get("strategy")) or _strategy(group)
    granularity = {"tensor_group": "group", "token": "channel", "attn_head": "channel"}.get(strategy, strategy)
    size: int | tuple[int, int] | None = None
    if granularity == "group":
        size = group
    elif granularity == "block":
        size = _block(arguments.get("block_structure"))
    symmetric = boolean(arguments.get("symmetric"))
    return WeightScheme(
        bits=bits,
        type=kind,
        granularity=granularity,
        group_size=size,
        symmetric=True if symmetric is None else symmetric,
        dtype=exact_dtype(bits, kind),
        scale_dtype=_scale_dtype(arguments, kind, strategy),
    )


def activation_arguments(value: object) -> ActivationScheme | None:
    """Return the activations' scheme of one QuantizationArgs object, or None for 16 bit."""
    arguments = mapping(value)
    bits = integer(arguments.get("num_bits", 8))
    if not arguments or bits is None or bits >= 16:
        return None
    kind = text(arguments.get("type")) or "int"
    group = integer(arguments.get("group_size"))
    dynamic = arguments.get("dynamic", False)
    strategy = text(arguments.get("strategy")) or ("token" if dynamic is True and group is None else _strategy(group))
    return ActivationScheme(
        bits=bits,
        type=kind,
        granularity="group" if strategy == "tensor_group" else strategy,
        group_size=group if group and group > 0 else None,
        dynamic=dynamic in (True, "local"),
        dtype=exact_dtype(bits, kind),
    )


def kv_cache_arguments(value: object) -> KvCacheScheme | None:
    """Return the KV cache's scheme of one QuantizationArgs object, or None."""
    arguments = mapping(value)
    bits = integer(arguments.get("num_bits"))
    if bits is None:
        return None
    kind = text(arguments.get("type")) or "int"
    return KvCacheScheme(
        bits=bits, type=kind, dtype=exact_dtype(bits, kind), static_scales=arguments.get("dynamic") is not True
    )


def _strategy(group: int | None) -> str:
    if group is None:
        return "tensor"
    return "group" if group > 0 else "channel"


def _block(value: object) -> tuple[int, int] | None:
    """``[128, 128]`` or the older ``"128x128"``."""
    sizes = integers(value)
    if isinstance(value, str):
        sizes = integers(value.lower().split("x"))
    return (sizes[0], sizes[1]) if len(sizes) == 2 else None


def _scale_dtype(arguments: Mapping[str, Any], kind: str, strategy: str) -> str | None:
    stated = text(arguments.get("scale_dtype"))
    if stated is not None:
        plain = stated.removeprefix("torch.")
        return "float8_e8m0fnu" if plain == "uint8" else plain
    return "float8_e4m3fn" if strategy == "tensor_group" and kind == "float" else None


def _broadest(groups: list[SchemeGroup]) -> int:
    """The group of most parameters: one that targets a class, else the one with most patterns."""
    generic = [index for index, group in enumerate(groups) if "Linear" in group.targets]
    return generic[0] if generic else max(range(len(groups)), key=lambda i: len(groups[i].targets), default=0)


def _layout(block: Mapping[str, Any], groups: list[SchemeGroup], formats: list[str]) -> str:
    stated = text(block.get("format"))
    if stated and stated not in {"dense", "sparse-24-bitmask", "sparse-bitmask"}:
        return stated
    own = {name for name in formats if name}
    if len(own) == 1:
        return own.pop()
    if len(own) > 1:
        return "mixed-precision"
    if stated or not groups:
        return stated or "dense"
    inferred = {_inferred(group) for group in groups}
    return inferred.pop() if len(inferred) == 1 else "mixed-precision"


def _inferred(group: SchemeGroup) -> str:
    weights, activations = group.weights, group.activations
    if weights.type == "float" and weights.bits == 4:
        return "mxfp4-pack-quantized" if weights.group_size == 32 else "nvfp4-pack-quantized"
    if weights.type == "float":
        return "mxfp8-quantized" if weights.group_size == 32 and weights.granularity == "group" else "float-quantized"
    if activations is None or (weights.bits or 8) < 8:
        return "pack-quantized"
    return "int-quantized"


def _sparsity(block: Mapping[str, Any], groups: list[SchemeGroup]) -> list[Finding]:
    """Sparse layouts are legacy in the library (config/base.py says so) and current loaders do not read them."""
    sparsity = mapping(block.get("sparsity_config"))
    form = text(sparsity.get("format")) or "dense"
    stated = text(block.get("format")) or ""
    where = "quantization_config.sparsity_config"
    findings = []
    if form != "dense" or stated in {"marlin-24", "sparse-24-bitmask", "sparse-bitmask"}:
        message = f"weights are stored sparse ({form if form != 'dense' else stated}), a legacy format"
        findings.append(
            Finding("sparse-format", "warning", where, message, "decompress it with the library that wrote it")
        )
    if not groups and block.get("config_groups") and not block.get("kv_cache_scheme"):
        findings.append(
            Finding("empty-groups", "warning", "quantization_config.config_groups", "no config group quantizes weights")
        )
    return findings
