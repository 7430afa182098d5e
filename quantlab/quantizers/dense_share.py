"""How much of a written checkpoint is still in 16 bit, counted from the headers of its files."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path

from quantlab.errors import CheckpointError

_FULL = {"F32", "F16", "BF16", "F64"}
_EXPERT = ".experts."
HEADER_LIMIT = 100_000_000
"""Bytes of the largest header that safetensors itself accepts."""


@dataclass(frozen=True, slots=True)
class DenseShare:
    """Bytes of weights by kind.

    Attributes:
        dense: bytes of matrices in 16 or 32 bit, embeddings and output head left out.
        quantized: bytes of the source that were quantized: what ``dense`` lacks to ``total``.
        total: bytes of the same matrices in the source.
        dense_experts: bytes of expert matrices that are still in 16 bit.
    """

    dense: int
    quantized: int
    total: int
    dense_experts: int

    @property
    def share(self) -> float:
        """Share of the source's matrices that stayed in 16 bit, 0 to 1."""
        return self.dense / self.total if self.total else 0.0


def dense_share(source: Path, output: Path) -> DenseShare:
    """Compare the matrices of two folders.

    A matrix counts as dense if the output still holds it under its name, in 16 or 32 bit, at its full size.

    Raises:
        CheckpointError: a file has no safetensors header.
    """
    matrices = {n: size for n, (dtype, size, dims) in _headers(source).items() if dims >= 2 and not _apart(n)}
    written = _headers(output)
    kept = {n for n in matrices if n in written and written[n][0] in _FULL and written[n][1] >= matrices[n]}
    dense = sum(matrices[n] for n in kept)
    total = sum(matrices.values())
    return DenseShare(dense, total - dense, total, sum(matrices[n] for n in kept if _EXPERT in n))


def _apart(name: str) -> bool:
    return any(part in name for part in ("embed", "lm_head", "wte", "norm"))


def _headers(folder: Path) -> dict[str, tuple[str, int, int]]:
    """Return tensor name to dtype, bytes and dimensions."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, entry in _header(path).items():
            if name != "__metadata__":
                start, end = entry["data_offsets"]
                found[name] = (str(entry["dtype"]), int(end) - int(start), len([n for n in entry["shape"] if n != 1]))
    return found


def _header(path: Path) -> dict[str, dict[str, list[int]]]:
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            return dict(json.loads(file.read(min(length, HEADER_LIMIT))))
    except (OSError, ValueError, struct.error) as error:
        message = f"{path.name} is not a safetensors file: {error}"
        raise CheckpointError(message) from error
