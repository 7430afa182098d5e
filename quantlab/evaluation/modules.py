"""The modules of a loaded model that carry weight matrices: which class, which kernel, quantized or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from quantlab.checkpoint.facts import CheckpointFacts
from quantlab.checkpoint.patterns import matches
from quantlab.formats.interface import Layer

CODE_TYPES = {torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32}
"""Dtypes of packed or plain codes."""


def matrices(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and module of everything that multiplies by a weight matrix, embeddings aside."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Embedding):
            continue
        if (hasattr(module, "in_features") and hasattr(module, "out_features")) or _is_stack(module):
            yield name, module


def _is_stack(module: Any) -> bool:
    """Say whether a module holds 3-D parameters of its own: fused experts."""
    return any(p.ndim == 3 and p.numel() > 64 for _, p in module.named_parameters(recurse=False))


def find(model: Any, name: str) -> Any | None:
    """Return the module that a checkpoint calls ``name``, or None; a missing or extra model prefix is forgiven."""
    prefix = getattr(model, "base_model_prefix", "")
    for candidate in (name, f"{prefix}.{name}", name.removeprefix(f"{prefix}.")):
        try:
            return model.get_submodule(candidate)
        except AttributeError:
            continue
    return None


def is_quantized(module: Any) -> bool:
    """Say whether a module holds codes: integers or 8-bit floats, or torchao's tensors of them."""
    tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    return any(_holds_codes(tensor) for tensor in tensors if tensor.numel() > 16)


def _holds_codes(tensor: torch.Tensor) -> bool:
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        return any(_holds_codes(getattr(tensor, name)) for name in names)
    return tensor.dtype in CODE_TYPES or str(tensor.dtype).startswith(("torch.float8", "torch.float4"))


def classes(model: Any) -> dict[str, int]:
    """Return how many weight matrices each module class carries."""
    return dict(Counter(type(module).__name__ for _, module in matrices(model)))


def kernels(model: Any, layers: Sequence[Layer]) -> dict[str, int]:
    """Return what multiplies the quantized layers of the file, by where its code lies, with the number of layers."""
    found = (find(model, layer.name) for layer in layers)
    return dict(Counter(kernel_name(module) for module in found if module is not None))


def kernel_name(module: Any) -> str:
    """Return library and class, and the dtype where a plain linear layer multiplies dense weights."""
    kind = type(module)
    if kind is torch.nn.Linear and not is_quantized(module):
        weight = getattr(module, "weight", None)
        dtype = "" if weight is None else f" on dense {str(weight.dtype).removeprefix('torch.')}"
        return f"torch.nn.Linear{dtype}"
    return f"{kind.__module__.split('.')[0]}.{kind.__name__}"


def quantized_parameters(model: Any, layers: Sequence[Layer]) -> int:
    """Return the logical parameters of matrices that hold codes in the loaded model.

    Shapes come from the file's layers where there are any, else from the modules.
    """
    shapes = {id(find(model, layer.name)): layer.shape for layer in layers}
    total = 0
    for _, module in matrices(model):
        if is_quantized(module):
            total += _count(shapes.get(id(module)) or _shape(module))
    return total


def promised_parameters(model: Any, facts: CheckpointFacts, layers: Sequence[Layer]) -> int:
    """Return the parameters that the config promises to be quantized: every matrix that it does not exempt.

    The output head counts only where the file has it quantized or a target names it.
    """
    if facts.format == "dense" or facts.scheme.weights is None:
        return 0
    head = model.get_output_embeddings()
    named = {layer.name for layer in layers}
    total = 0
    for name, module in matrices(model):
        if module is head and name not in named:
            continue
        if name in named or not any(matches(pattern, name) for pattern in facts.ignore):
            total += _count(_shape(module))
    return total


def _shape(module: Any) -> tuple[int, ...]:
    if hasattr(module, "in_features"):
        return int(module.out_features), int(module.in_features)
    sizes = [p.numel() for _, p in module.named_parameters(recurse=False) if p.ndim == 3]
    return (sum(sizes),)


def _count(shape: Sequence[int]) -> int:
    result = 1
    for size in shape:
        result *= size
    return result
