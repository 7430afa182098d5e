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
    },
)
"""Format id to codec."""
