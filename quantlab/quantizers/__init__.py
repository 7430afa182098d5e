"""Libraries that quantize, one module each, found through this registry and driven through ``run``."""

from __future__ import annotations

from quantlab.quantizers.interface import Quantizer
from quantlab.registry import Registry

QUANTIZERS: Registry[Quantizer] = Registry(
    "quantizer",
    {
        "amd-quark": "quantlab.quantizers.quark:QUANTIZER",
        "bitsandbytes": "quantlab.quantizers.bitsandbytes:QUANTIZER",
        "gptqmodel": "quantlab.quantizers.gptqmodel:QUANTIZER",
        "llm-compressor": "quantlab.quantizers.llm_compressor:QUANTIZER",
        "optimum": "quantlab.quantizers.optimum:QUANTIZER",
        "torchao": "quantlab.quantizers.torchao:QUANTIZER",
    },
)
"""Quantizer id to member; quantlab's own data-free path (``native``) lives in ``quantlab.conversion``."""
