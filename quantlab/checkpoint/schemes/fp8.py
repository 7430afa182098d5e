"""``quant_method: fp8``: DeepSeek's blocks, plain per-tensor FP8, and hybrids with 4-bit experts.

With ``weight_block_size`` a weight has one float32 (or ``ue8m0``) scale a block, in ``weight_scale_inv``, which
multiplies in spite of its name; without it one scale a tensor (or a row), in ``weight_scale``. The key
``expert_dtype`` of ``config.json``, outside the quantization config, makes the routed experts 4 bits wide
(DeepSeek-V4), and a ModelOpt table inside the block does the same with NVFP4.
"""

from __future__ import annotations

from dataclasses import replace

from quantlab.checkpoint.facts import ActivationScheme, Finding, SchemeGroup, WeightScheme
from quantlab.checkpoint.schemes.flat import ignore_list
from quantlab.checkpoint.schemes.interface import Reading, Source
from quantlab.checkpoint.schemes.modelopt import algorithm_scheme, layer_groups
from quantlab.checkpoint.schemes.numbers import combine, kv_cache_scheme, number_type
from quantlab.checkpoint.values import integer, integers, mapping, text
from quantlab.matrix.data import read_section

EXPERTS = ("experts",)


def read(source: Source) -> Reading:
    """Read an FP8 config and what makes it a hybrid."""
    findings: list[Finding] = []
    dense = SchemeGroup(_weights(source, findings), ("Linear",), _activations(source))
    experts = _experts(source, findings)
    groups = [dense, *experts]
    cache = source.block.get("kv_cache_quant_algo") or source.block.get("kv_cache_scheme")
    kv_cache = kv_cache_scheme("fp8" if cache == "static" else cache)
    scheme = combine(groups, main=1 if experts else 0, kv_cache=kv_cache)
    form = "fp8-fnuz" if dense.weights.dtype == "float8_e4m3fnuz" else None
    return Reading(scheme, form, ignore_list(source.format, source.block), tuple(findings))


def _weights(source: Source, findings: list[Finding]) -> WeightScheme:
    block = source.block
    number = number_type(block.get("fmt") or block.get("weight_dtype") or "e4m3")
    dtype = number.dtype if number else "float8_e4m3fn"
    scale = "float8_e8m0fnu" if text(block.get("scale_fmt")) == "ue8m0" else "float32"
    stated = block.get("weight_block_size")
    sizes = integers(stated)
    weights = WeightScheme(8, "float", "tensor", None, symmetric=True, dtype=dtype, scale_dtype=scale)
    if stated is not None and len(sizes) != 2:
        findings.append(
            Finding("config-value", "error", "quantization_config.weight_block_size",
                    f"weight_block_size is {stated!r:.60}, not two whole numbers")
        )  # fmt: skip
    if len(sizes) == 2:
        if sizes[0] == 1:
            return replace(weights, granularity="group", group_size=sizes[1])
        return replace(weights, granularity="block", group_size=(sizes[0], sizes[1]))
    method = text(block.get("weight_scale_method")) or text(block.get("weight_strategy")) or ""
    return replace(weights, granularity="channel") if method in {"row", "channel", "per_channel"} else weights


def _activations(source: Source) -> ActivationScheme:
    sizes = integers(source.block.get("weight_block_size"))
    dynamic = text(source.block.get("activation_scheme")) != "static"
    if len(sizes) == 2 and dynamic:
        return ActivationScheme(8, "float", "group", sizes[1], dynamic=True, dtype="float8_e4m3fn")
    return ActivationScheme(8, "float", "token" if dynamic else "tensor", dynamic=dynamic, dtype="float8_e4m3fn")


def _experts(source: Source, findings: list[Finding]) -> list[SchemeGroup]:
    """Routed experts in other numbers than the rest."""
    tables = mapping(read_section("formats").get(str(source.format.get("algorithms_of"))))
    groups = layer_groups(tables, source.block, findings)
    if groups:
        return groups
    algorithm = text(source.block.get("moe_quant_algo"))
    found = algorithm_scheme(tables, algorithm, integer(source.block.get("group_size")), {}) if algorithm else None
    if found is not None:
        return [SchemeGroup(found[0], EXPERTS, found[1])]
    number = number_type(source.config.get("expert_dtype"))
    if number is None or number.bits == 8:
        return []
    weights = WeightScheme(
        number.bits, number.type, "group", 32, symmetric=True, dtype=number.dtype, scale_dtype="float8_e8m0fnu"
    )
    return [SchemeGroup(weights, EXPERTS, _activations(source))]
