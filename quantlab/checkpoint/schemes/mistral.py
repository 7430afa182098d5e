"""Mistral's own layout: ``params.json`` with a small ``quantization`` object.

``{"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"}`` (vllm-project/vllm:
vllm/transformers_utils/configs/mistral.py, ``_remap_mistral_quantization_args``); a config of another kind
inside it is read by that kind's reader before this one is asked.
"""

from __future__ import annotations

from quantlab.checkpoint.facts import ActivationScheme, SchemeGroup, WeightScheme
from quantlab.checkpoint.schemes.interface import Reading, Source
from quantlab.checkpoint.schemes.numbers import combine, number_type
from quantlab.checkpoint.values import text


def read(source: Source) -> Reading:
    """Read a Mistral quantization object."""
    found = number_type(source.block.get("qformat_weight"))
    if found is None:
        return Reading(combine([]))
    weights = WeightScheme(found.bits, found.type, "tensor", None, symmetric=True, dtype=found.dtype)
    static = (text(source.block.get("qscheme_act")) or "").upper() == "TENSOR"
    activations = ActivationScheme(
        bits=found.bits, type=found.type, granularity="tensor", dynamic=not static, dtype=found.dtype
    )
    return Reading(combine([SchemeGroup(weights, ("Linear",), activations)]))
