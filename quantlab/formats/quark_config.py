"""Quark's config: which specification a layer has, and how to write one.

A specification is ``{"dtype": "int4", "qscheme": "per_group", "group_size": 64, "symmetric": true, ...}``. It is
looked for under ``layer_quant_config`` (patterns with ``*``, or ``re:``), else in ``global_quant_config``.

Source: amd/Quark: quark/torch/quantization/config/config.py (``QConfig``, ``QTensorConfig``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from quantlab.checkpoint.facts import ActivationScheme, CheckpointFacts, TensorInfo
from quantlab.checkpoint.patterns import matches
from quantlab.checkpoint.values import integer, mapping
from quantlab.errors import ConversionRefused
from quantlab.formats.roles import broken
from quantlab.tensors.quantized import Granularity, WeightFormat

_GRANULARITIES: dict[str, Granularity] = {"per_tensor": "tensor", "per_channel": "channel", "per_group": "group"}
_WORDS = {"int4": "int4", "int8": "int8", "float8_e4m3fn": "fp8_e4m3", "float4_e2m1": "fp4"}
_OBSERVERS = {
    "tensor": "PerTensorMinMaxObserver",
    "channel": "PerChannelMinMaxObserver",
    "group": "PerGroupMinMaxObserver",
}


def specification_of(name: str, config: Mapping[str, Any], info: TensorInfo) -> Mapping[str, Any]:
    """Return the weight specification of a module.

    Raises:
        CheckpointError: it has several stages (progressive quantization).
    """
    chosen = mapping(config.get("global_quant_config"))
    for pattern, content in mapping(config.get("layer_quant_config")).items():
        if matches(str(pattern), name):
            chosen = mapping(content)
    stage = chosen.get("weight")
    if isinstance(stage, list):
        if len(stage) != 1:
            raise broken(info, "scheme", f"is quantized in {len(stage)} stages, which cannot be taken apart")
        stage = stage[0]
    return mapping(stage)


def signature(stage: Mapping[str, Any]) -> tuple[str, Granularity, int]:
    """Return number word, granularity and group size of a specification; an unknown one has no word."""
    word = str(stage.get("dtype") or "")
    granularity = _GRANULARITIES.get(str(stage.get("qscheme")))
    size = integer(stage.get("group_size")) or 0
    if granularity is None or (word == "fp4" and (stage.get("scale_format") != "e8m0" or size != 32)):
        return f"{word} {stage.get('qscheme')}".strip(), granularity or "tensor", size
    return word, granularity, size


def quark_config(
    weights: Mapping[str, WeightFormat], ignore: tuple[str, ...], source: CheckpointFacts
) -> dict[str, Any]:
    """Return a whole config: the commonest scheme for all, others by layer name.

    Raises:
        ConversionRefused: there is no layer.
    """
    if not weights:
        raise ConversionRefused("no layer of the model is quantized, so there is nothing to write a config for")
    common = Counter(weights.values()).most_common(1)[0][0]
    inputs = _activations(source.scheme.activations)
    others = {name: _layer(scheme, inputs) for name, scheme in weights.items() if scheme != common}
    return {
        "quant_method": "quark",
        "global_quant_config": _layer(common, inputs),
        "layer_quant_config": others,
        "layer_type_quant_config": {},
        "exclude": list(ignore),
        "algo_config": None,
        "softmax_quant_spec": None,
        "kv_cache_quant_config": {},
        "kv_cache_post_rope": False,
        "quant_mode": "eager_mode",
        "version": "0.13",
        "export": {
            "kv_cache_group": [],
            "min_kv_scale": 0.0,
            "pack_method": "reorder",
            "weight_format": "real_quantized",
            "weight_merge_groups": None,
        },
    }


def _layer(scheme: WeightFormat, inputs: dict[str, Any] | None) -> dict[str, Any]:
    word = _WORDS[scheme.number.name]
    word = "uint4" if word == "int4" and not scheme.symmetric else word
    weight = _specification(word, scheme.granularity, scheme.group_size, symmetric=scheme.symmetric, dynamic=False)
    if word == "fp4":
        weight |= {
            "symmetric": None,
            "scale_format": "e8m0",
            "scale_calculation_mode": "even",
            "observer_cls": "PerBlockMXObserver",
        }
    return {"input_tensors": inputs, "output_tensors": None, "weight": weight, "bias": None, "target_device": None}


def _specification(word: str, granularity: str, size: int | None, *, symmetric: bool, dynamic: bool) -> dict[str, Any]:
    return {
        "dtype": word,
        "is_dynamic": dynamic,
        "qscheme": f"per_{granularity}",
        "ch_axis": {"tensor": None, "channel": 0}.get(granularity, -1),
        "group_size": size if granularity == "group" else None,
        "symmetric": symmetric,
        "round_method": "half_even",
        "scale_type": "float",
        "scale_format": None,
        "scale_calculation_mode": None,
        "mx_element_dtype": None,
        "observer_cls": _OBSERVERS[granularity],
        "is_scale_quant": False,
    }


def _activations(scheme: ActivationScheme | None) -> dict[str, Any] | None:
    if scheme is None:
        return None
    if scheme.type != "float" or scheme.bits != 8:
        raise ConversionRefused(f"quark is not written with {scheme.bits}-bit {scheme.type} activations")
    if scheme.dynamic is False:
        return _specification("fp8_e4m3", "tensor", None, symmetric=True, dynamic=False)
    return _specification("fp8_e4m3", "channel", None, symmetric=True, dynamic=True) | {"ch_axis": 1}
