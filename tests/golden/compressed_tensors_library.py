"""The reference: what llm-compressor's observers and compressed-tensors' compressors make of a weight."""

from __future__ import annotations

from typing import Any

import torch
from compressed_tensors.compressors import compress_module
from compressed_tensors.compressors.base import decompress_module
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from llmcompressor.entrypoints.model_free.lifecycle import calibrate_weight, initialize_quantized_linear


def compress(weight: torch.Tensor, *, clip: bool = False, **scheme: Any) -> dict[str, torch.Tensor]:
    """Return the library's tensors of one layer, and ``dense``: what the library decodes them to."""
    inputs = scheme.pop("input_activations", None)
    args = QuantizationArgs(**scheme, observer="memoryless_mse" if clip else "memoryless_minmax")
    whole = QuantizationScheme(targets=["Linear"], weights=args, input_activations=inputs)
    module = initialize_quantized_linear(weight, whole, "cpu")
    calibrate_weight(module)
    compress_module(module)
    tensors = {name: value.detach().clone() for name, value in module.state_dict().items()}
    decompress_module(module)
    return {**tensors, "dense": module.weight.data}


def decompress(tensors: dict[str, torch.Tensor], layout: str, **scheme: Any) -> torch.Tensor:
    """Return the dense weight that the library decodes a layer's tensors to."""
    from compressed_tensors.compressors import BaseCompressor

    whole = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**scheme))
    return BaseCompressor.get_value_from_registry(layout).decompress(tensors, whole)["weight"]


FP8 = {"num_bits": 8, "type": "float", "symmetric": True}
MX = {"strategy": "group", "group_size": 32, "scale_dtype": torch.uint8, "zp_dtype": torch.uint8}
NVFP4 = {
    "num_bits": 4,
    "type": "float",
    "symmetric": True,
    "strategy": "tensor_group",
    "group_size": 16,
    "scale_dtype": torch.float8_e4m3fn,
    "zp_dtype": torch.float8_e4m3fn,
}
