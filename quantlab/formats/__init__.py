"""Formats: one module each, found through this registry."""

from __future__ import annotations

from quantlab.formats.interface import FormatCodec
from quantlab.registry import Registry

FORMATS: Registry[FormatCodec] = Registry(
    "format",
    {
        "dense": "quantlab.formats.dense:CODEC",
        "compressed-tensors/float-quantized": "quantlab.formats.compressed_tensors_float:CODEC",
        "compressed-tensors/pack-quantized": "quantlab.formats.compressed_tensors_packed:CODEC",
        "gptq": "quantlab.formats.gptq:V1",
        "gptq_v2": "quantlab.formats.gptq:V2",
    },
)
"""Format id to codec."""
