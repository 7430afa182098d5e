"""How much of a written checkpoint is still in 16 bit, counted from the headers of its files."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantlab.errors import CheckpointError

_FULL = {"F32", "F16", "BF16", "F64"}
_EXPERT = ".experts."
_OTHER_LAYERS = ("embed", "lm_head", "wte", "norm")
_STATISTICS = ("scale", "zero", "absmax", "quant_map", "SCB", "bias")
HEADER_LIMIT = 100_000_000
"""Bytes of the largest header that safetensors itself accepts."""


@dataclass(frozen=True, slots=True)
class DenseShare:
    """Parameters of matrices by kind, embeddings, output head and norms left out.

    Attributes:
        dense: parameters that the output still holds in 16 or 32 bit.
        total: parameters of the source.
        dense_experts: parameters of experts among ``dense``.
    """

    dense: int
    total: int
    dense_experts: int

    @property
    def share(self) -> float:
        """Share of the source's parameters that stayed in 16 bit, 0 to 1."""
        return min(self.dense / self.total, 1.0) if self.total else 0.0


def dense_share(source: Path, output: Path) -> DenseShare:
    """Count the matrices of two folders.

    What the output holds is counted under the output's own names: Quark writes Mixtral's experts fused, under
    names that the source does not have.

    Raises:
        CheckpointError: a file has no safetensors header.
    """
    matrices = _matrices(output)
    return DenseShare(
        sum(matrices.values()),
        sum(_matrices(source).values()),
        sum(count for name, count in matrices.items() if _EXPERT in name),
    )


def _matrices(folder: Path) -> dict[str, int]:
    """Return name to parameters of the matrices in 16 or 32 bit; scales and their like are no weights."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, entry in _header(path).items():
            shape = entry.get("shape", [])
            if entry.get("dtype") in _FULL and len([n for n in shape if n != 1]) >= 2 and not _apart(name):
                found[name] = math.prod(shape)
    return found


def _apart(name: str) -> bool:
    last = name.rpartition(".")[2]
    return any(part in name for part in _OTHER_LAYERS) or any(part in last for part in _STATISTICS)


def _header(path: Path) -> dict[str, dict[str, Any]]:
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            return dict(json.loads(file.read(min(length, HEADER_LIMIT))))
    except (OSError, ValueError, struct.error) as error:
        message = f"{path.name} is not a safetensors file: {error}"
        raise CheckpointError(message) from error
