"""Proof that what was loaded is what the file holds: keys, dense tensors, bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import torch

from quantlab.checkpoint.facts import CheckpointFacts
from quantlab.conversion.origin import FolderFiles
from quantlab.conversion.source import TensorSource
from quantlab.formats.interface import Layer

Dequantized = Literal["no", "at load", "at first forward"]

SMALL_SAVING = 0.05
"""Where quantizing saves less than this share of the file, bytes cannot tell a dense model from a quantized one."""


def missing_keys(model: Any, info: Mapping[str, Any]) -> tuple[str, ...]:
    """Return keys that no file held, tied weights aside: those are random now."""
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    return tuple(sorted(key for key in info.get("missing_keys", ()) if key not in tied))


def keys(info: Mapping[str, Any], kind: str) -> tuple[str, ...]:
    """Return one list of transformers' loading information as plain names."""
    return tuple(sorted(str(item[0]) if isinstance(item, tuple) else str(item) for item in info.get(kind, ())))


def differing_tensors(
    model: Any, facts: CheckpointFacts, source: TensorSource, layers: Sequence[Layer]
) -> tuple[list[str], int]:
    """Compare every dense tensor of the file with the model's parameter or buffer of the same name.

    A value is equal when it is the file's, cast to the parameter's dtype.

    Returns:
        Names that differ, and how many were compared. Tensors that the loader renames or merges are not compared.
    """
    of_layers = {name for layer in layers for name in layer.tensors.values()}
    held = {**dict(model.named_buffers(remove_duplicate=False)), **dict(model.named_parameters(remove_duplicate=False))}
    bad, compared = [], 0
    for name in facts.tensors:
        loaded = held.get(name)
        if name in of_layers or loaded is None or loaded.device.type == "meta" or not loaded.is_floating_point():
            continue
        if hasattr(loaded, "__tensor_flatten__") or hasattr(loaded, "quant_state"):
            continue
        stored = source.read(name)
        if stored.dtype.itemsize < 2 or loaded.dtype.itemsize < 2:
            continue  # codes of a format that has no codec here
        compared += 1
        if stored.shape != loaded.shape or not same(stored, loaded.detach()):
            bad.append(name)
    return bad, compared


def same(stored: torch.Tensor, loaded: torch.Tensor) -> bool:
    """Say whether a loaded tensor is the stored one cast to its dtype; NaN equals NaN."""
    cast = stored.to(loaded.device).to(loaded.dtype)
    return torch.equal(cast, loaded) or bool(torch.isclose(cast, loaded, rtol=0, atol=0, equal_nan=True).all())


def dequantized(facts: CheckpointFacts, at_load: Mapping[str, int], after_forward: Mapping[str, int]) -> Dequantized:
    """Say when the weights outgrew the file: past the middle between the file's bytes and those of a dense model."""
    file, parameters = facts.bytes.get("total", 0), facts.parameters.get("total", 0)
    dense = 2 * parameters
    if facts.format == "dense" or not file or dense - file < SMALL_SAVING * file:
        return "no"
    limit = (file + dense) / 2
    if sum(at_load.values()) > limit:
        return "at load"
    return "at first forward" if sum(after_forward.values()) > limit else "no"


def open_tensors(facts: CheckpointFacts) -> TensorSource:
    """Return a reader of the checkpoint's tensors."""
    from pathlib import Path

    path = Path(facts.path)
    return TensorSource(facts, FolderFiles(path if path.is_dir() else path.parent))


def names(found: Iterable[str], limit: int = 50) -> tuple[str, ...]:
    """Return the first names, with a count of the rest."""
    every = list(found)
    return tuple(every[:limit]) + ((f"... and {len(every) - limit} more",) if len(every) > limit else ())
