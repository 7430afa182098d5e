"""Read layers back from plain dicts of tensors, as the converter reads them from files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from quantlab.checkpoint.facts import Architecture, CheckpointFacts, Scheme, TensorInfo
from quantlab.formats import FORMATS
from quantlab.tensors.quantized import QuantizedTensor

_WORDS = {
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float8_e4m3fn: "F8_E4M3",
}


def facts_of(
    tensors: Mapping[str, torch.Tensor], form: str, config: Mapping[str, Any] | None = None, **more: Any
) -> CheckpointFacts:
    """Return the facts of a one-file checkpoint with these tensors."""
    infos, start = {}, 0
    for name, tensor in tensors.items():
        end = start + tensor.numel() * tensor.element_size()
        infos[name] = TensorInfo(name, _WORDS[tensor.dtype], tuple(tensor.shape), "model.safetensors", start, end)
        start = end
    return CheckpointFacts(
        "made-here",
        form,
        more.pop("scheme", Scheme()),
        more.pop("architecture", Architecture()),
        quantization_config=dict(config or {}),
        tensors=infos,
        **more,
    )


def decode_all(
    tensors: Mapping[str, torch.Tensor], form: str, config: Mapping[str, Any] | None = None, **more: Any
) -> dict[str, QuantizedTensor]:
    """Decode every layer of a checkpoint through the registry, by module name."""
    codec = FORMATS[form]
    return {
        layer.name: codec.decode(layer, {role: tensors[name] for role, name in layer.tensors.items()})
        for layer in codec.layers(facts_of(tensors, form, config, **more))
    }


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Compare as bytes: minus zero is not zero, NaN is itself."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


def awkward(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    """Return a float32 matrix with minus zero, subnormals, an all-zero row, outliers and a row of tiny values."""
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * 0.05
    weight[0, :] = 0.0
    weight[1, ::2] = -0.0
    weight[2, :] *= 2.0**-18
    weight[3, 5] = 40.0
    weight[4, 7] = -65.0
    weight[5, :] = 1e-39
    weight[6, :] = weight[6].abs()
    return weight
