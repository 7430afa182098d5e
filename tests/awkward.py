"""Seeded weights that break careless codecs, and checkpoints that live in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from quantlab.checkpoint.facts import Architecture, CheckpointFacts, Scheme, TensorInfo

_WORDS = {
    torch.bfloat16: "BF16",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.float16: "F16",
    torch.float32: "F32",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2: "F8_E5M2",
}


def awkward(rows: int, columns: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    """Return a matrix (12 rows or more) with minus zeros, subnormals, all-zero rows, outliers and tiny scales."""
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * 0.02
    weight[0] = 0
    weight[1, :8] = -0.0
    weight[2] *= 1e-6
    weight[3] *= 1e-38
    weight[4, 5] = 30.0
    weight[5] = -0.0
    weight[6] = weight[6].abs() + 1
    weight[7] *= 2**-17
    weight[8] = -weight[8].abs()
    weight[9, ::3] = 0
    weight[10] *= 1e-42
    weight[11] *= 1e3
    return weight.to(dtype)


def headers(tensors: Mapping[str, torch.Tensor], file: str = "model.safetensors") -> dict[str, TensorInfo]:
    """Return the headers that a safetensors file of these tensors has."""
    found, at = {}, 0
    for name, tensor in tensors.items():
        end = at + tensor.numel() * tensor.element_size()
        found[name] = TensorInfo(name, _WORDS[tensor.dtype], tuple(tensor.shape), file, at, end)
        at = end
    return found


def checkpoint(
    tensors: Mapping[str, torch.Tensor], form: str, config: dict[str, Any] | None, dtype: str = "bfloat16"
) -> CheckpointFacts:
    """Return the facts of a checkpoint with these tensors and this quantization_config."""
    return CheckpointFacts(
        path="memory",
        format=form,
        scheme=Scheme(),
        architecture=Architecture(model_type="llama", torch_dtype=dtype),
        quantization_config=config,
        tensors=headers(tensors),
    )


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Say whether two tensors are equal in dtype, shape and every bit, the sign of zero included."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(_bytes(one), _bytes(other))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)
