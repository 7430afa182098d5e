"""Bytes on each device: after the load, after the first forward pass, and at the peak.

On an accelerator these are torch's own allocations. On the CPU the weights are what parameters and buffers hold
(shared storage once), and the peak is the process's highest resident size.
"""

from __future__ import annotations

import resource
import sys
from collections import defaultdict
from typing import Any

import torch


def tensor_bytes(model: Any) -> dict[str, int]:
    """Return the bytes of a model's parameters and buffers by device, shared storage counted once."""
    seen: set[tuple[str, int]] = set()
    total: dict[str, int] = defaultdict(int)
    for tensor in [*model.parameters(), *model.buffers(), *_hidden_tensors(model)]:
        for part in _parts(tensor):
            storage = part.untyped_storage()
            key = (str(part.device), storage.data_ptr())
            if part.device.type == "meta" or key in seen:
                continue
            seen.add(key)
            total[str(part.device)] += storage.nbytes()
    return dict(total)


def _hidden_tensors(model: Any) -> list[torch.Tensor]:
    """Return tensors that modules keep as plain attributes (kernels' repacked weights, quantization states)."""
    found = [value for module in model.modules() for value in vars(module).values() if isinstance(value, torch.Tensor)]
    for parameter in model.parameters():
        state = getattr(parameter, "quant_state", None)
        found += [value for value in vars(state).values() if isinstance(value, torch.Tensor)] if state else []
    return found


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the plain tensors inside a tensor subclass (torchao), or the tensor itself."""
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        return [part for name in names for part in _parts(getattr(tensor, name))]
    return [tensor]


def accelerators(model: Any) -> list[torch.device]:
    """Return the accelerator devices that hold the model."""
    found = {tensor.device for tensor in model.parameters() if tensor.device.type not in ("cpu", "meta")}
    return sorted(found, key=str)


def allocated(model: Any) -> dict[str, int]:
    """Return bytes in use by device: torch's allocations on cuda and rocm, tensors elsewhere."""
    bytes_by_device = tensor_bytes(model)
    for device in accelerators(model):
        if device.type == "cuda":
            bytes_by_device[str(device)] = int(torch.cuda.memory_allocated(device))
    return bytes_by_device


def peaks(model: Any) -> dict[str, int]:
    """Return the highest use of each device since the process began."""
    result = {str(d): int(torch.cuda.max_memory_allocated(d)) for d in accelerators(model) if d.type == "cuda"}
    unit = 1 if sys.platform == "darwin" else 1024
    result["cpu"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return result
