"""Which tensors of a checkpoint make one quantized layer: grouping by the ends of their names.

A codec says which suffix plays which role (``.qweight`` holds the codes, ``.scales`` the scales) and what each must
look like; what does not fit is a ``CheckpointError`` that names file, tensor and rule.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from quantlab.checkpoint.facts import CheckpointFacts, TensorInfo
from quantlab.errors import CheckpointError

if TYPE_CHECKING:
    import torch


def layers_by_role(
    facts: CheckpointFacts, suffixes: Mapping[str, str], needed: Collection[str], *, anchor: str
) -> dict[str, dict[str, TensorInfo]]:
    """Return module name to role to tensor, in the checkpoint's order of the anchors.

    Args:
        facts: the checkpoint's headers.
        suffixes: role to the end of the tensor's name (``{"codes": ".qweight"}``).
        needed: roles without which a layer is broken.
        anchor: the role whose presence makes a layer.

    Raises:
        CheckpointError: an anchor without one of the needed tensors.
    """
    end = suffixes[anchor]
    grouped: dict[str, dict[str, TensorInfo]] = {}
    for name, info in facts.tensors.items():
        if not name.endswith(end):
            continue
        module = name.removesuffix(end)
        found = {
            role: facts.tensors[module + suffix]
            for role, suffix in suffixes.items()
            if module + suffix in facts.tensors
        }
        for role in needed:
            if role not in found:
                raise broken(info, "layer-incomplete", f"{module + suffixes[role]} is missing beside it")
        grouped[module] = found
    return grouped


def broken(info: TensorInfo, rule: str, reason: str, *, hint: str | None = None) -> CheckpointError:
    """Return the error for a tensor that breaks a rule; names file, tensor and rule."""
    return CheckpointError(f"{info.file}: {info.name}: {reason} ({rule})", hint=hint)


def check_dtype(info: TensorInfo, allowed: Collection[str]) -> None:
    """Require one of some safetensors dtypes.

    Raises:
        CheckpointError: it has another.
    """
    if info.dtype not in allowed:
        raise broken(info, "tensor-dtype", f"dtype is {info.dtype}, expected {' or '.join(sorted(allowed))}")


def check_shape(info: TensorInfo, expected: tuple[int, ...]) -> None:
    """Require an exact shape.

    Raises:
        CheckpointError: it has another.
    """
    if info.shape != expected:
        raise broken(info, "tensor-shape", f"shape is {list(info.shape)}, expected {list(expected)}")


def check_rank(info: TensorInfo, rank: int) -> None:
    """Require a number of dimensions, none of them empty.

    Raises:
        CheckpointError: it has another.
    """
    if len(info.shape) != rank or 0 in info.shape:
        raise broken(info, "tensor-shape", f"shape is {list(info.shape)}, expected {rank} dimensions above 0")


def check_scales(name: str, scales: torch.Tensor) -> None:
    """Require finite scales.

    Raises:
        CheckpointError: one is NaN or infinite.
    """
    if not bool(scales.isfinite().all()):
        raise CheckpointError(f"{name}: a scale is not a finite number (scale-finite)")
