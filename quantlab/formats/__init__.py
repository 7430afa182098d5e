"""Formats: one module each, found through this registry."""

from __future__ import annotations

from quantlab.formats.interface import FormatCodec
from quantlab.registry import Registry

FORMATS: Registry[FormatCodec] = Registry(
    "format",
    {
        "dense": "quantlab.formats.dense:CODEC",
        "fbgemm_fp8": "quantlab.formats.fbgemm_fp8:CODEC",
        "fp8": "quantlab.formats.fp8:CODEC",
        "fp8-fnuz": "quantlab.formats.fp8:FNUZ",
        "modelopt": "quantlab.formats.modelopt:CODEC",
        "compressed-tensors/float-quantized": "quantlab.formats.compressed_tensors_float:CODEC",
        "compressed-tensors/int-quantized": "quantlab.formats.compressed_tensors_float:INT",
        "compressed-tensors/mixed-precision": "quantlab.formats.compressed_tensors_mixed:CODEC",
        "compressed-tensors/mxfp4-pack-quantized": "quantlab.formats.compressed_tensors_fp4:MXFP4",
        "compressed-tensors/mxfp8-quantized": "quantlab.formats.compressed_tensors_float:MXFP8",
        "compressed-tensors/naive-quantized": "quantlab.formats.compressed_tensors_float:NAIVE",
        "compressed-tensors/nvfp4-pack-quantized": "quantlab.formats.compressed_tensors_fp4:NVFP4",
        "compressed-tensors/pack-quantized": "quantlab.formats.compressed_tensors_packed:CODEC",
        "auto-round": "quantlab.formats.auto_round:CODEC",
        "awq": "quantlab.formats.awq:CODEC",
        "bitsandbytes": "quantlab.formats.bitsandbytes:CODEC",
        "mxfp4": "quantlab.formats.mxfp4:CODEC",
        "quark": "quantlab.formats.quark:CODEC",
        "gptq": "quantlab.formats.gptq:V1",
        "gptq_v2": "quantlab.formats.gptq:V2",
    },
)
"""Format id to codec."""
