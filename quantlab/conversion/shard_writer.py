"""Write a safetensors file without building it in memory.

The header of a safetensors file comes first, but the sizes of encoded tensors are known only when they have been
made. So room for the header is reserved, tensors are written behind it as they come (``pwrite`` at known offsets,
from several threads at once), and the header goes in last, padded with the spaces that the layout allows::

    8 bytes     length of the header, little endian
    header      {"name": {"dtype", "shape", "data_offsets"}, ..., "__metadata__"} and spaces up to the reserve
    data        tensors in claim order, without holes

Source of the layout: huggingface/safetensors, README "Format". Until ``finish`` the file bears another name.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

SAFETENSORS_DTYPES: dict[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "U16": torch.uint16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
}
"""safetensors' words for dtypes (huggingface/safetensors: safetensors/src/tensor.rs)."""

DTYPE_WORDS = {dtype: word for word, dtype in SAFETENSORS_DTYPES.items()}

PART_SUFFIX = ".part"
COPY_CHUNK = 16 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    """One tensor to be written.

    Attributes:
        name: full tensor name.
        dtype: safetensors' word.
        shape: dimensions.
        size: bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int


def piece_of(name: str, tensor: torch.Tensor) -> Piece:
    """Describe a tensor."""
    return Piece(name, DTYPE_WORDS[tensor.dtype], tuple(tensor.shape), tensor.numel() * tensor.element_size())


class ShardWriter:
    """One output file in the making.

    Args:
        path: its final name; until ``finish`` the bytes lie in ``path`` + ``.part``.
        header_room: bytes reserved for the header.
        metadata: the header's ``__metadata__``.
    """

    def __init__(self, path: Path, header_room: int, metadata: Mapping[str, str]) -> None:
        self.path = path
        self.part = path.with_name(path.name + PART_SUFFIX)
        self._metadata = dict(metadata)
        self._room = -(-header_room // 64) * 64
        self._entries: dict[str, Piece] = {}
        self._offsets: dict[str, int] = {}
        self._end = 0
        self._turn = 0
        self._condition = threading.Condition()
        self._stopped = False
        self._file = os.open(self.part, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)

    def claim(self, ticket: int, pieces: Sequence[Piece]) -> list[int]:
        """Return the file offsets of the pieces of job ``ticket``; waits for all jobs before it.

        Claiming in job order makes the file's bytes independent of how threads are scheduled.

        Raises:
            InterruptedError: another job of the shard failed.
        """
        with self._condition:
            self._condition.wait_for(lambda: self._turn == ticket or self._stopped)
            if self._stopped:
                raise InterruptedError("another job of this shard failed")
            offsets = []
            for piece in pieces:
                self._entries[piece.name] = piece
                self._offsets[piece.name] = self._end
                offsets.append(8 + self._room + self._end)
                self._end += piece.size
            self._turn += 1
            self._condition.notify_all()
        return offsets

    def stop(self) -> None:
        """Wake and end all jobs that wait for their turn."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()

    def write(self, tensor: torch.Tensor, offset: int) -> None:
        """Write one tensor's bytes."""
        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8).cpu()
        write_all(self._file, flat.numpy().data, offset)

    def copy(self, source: int, start: int, size: int, offset: int) -> None:
        """Copy bytes of another open file, inside the kernel where it can."""
        copy_range(source, start, size, self._file, offset)

    def finish(self) -> int:
        """Write the header, give the file its final name, and return its size in bytes."""
        header = self._header()
        if len(header) > self._room:
            self._widen(len(header))
        header = header.ljust(self._room, b" ")
        write_all(self._file, memoryview(len(header).to_bytes(8, "little") + header), 0)
        os.close(self._file)
        self._file = -1
        self.part.replace(self.path)
        return 8 + self._room + self._end

    def abandon(self) -> None:
        """Remove what was written."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self.part.unlink(missing_ok=True)

    @property
    def names(self) -> dict[str, int]:
        """Tensor names of the file and their sizes in bytes."""
        return {name: piece.size for name, piece in self._entries.items()}

    def _header(self) -> bytes:
        content: dict[str, object] = {"__metadata__": self._metadata} if self._metadata else {}
        for name, piece in self._entries.items():
            start = self._offsets[name]
            content[name] = {
                "dtype": piece.dtype,
                "shape": list(piece.shape),
                "data_offsets": [start, start + piece.size],
            }
        return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()

    def _widen(self, needed: int) -> None:
        """Move the data back, where the reserve was too small for the header."""
        room = -(-needed // 64) * 64
        moved = self.part.with_name(self.part.name + "2")
        file = os.open(moved, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        copy_range(self._file, 8 + self._room, self._end, file, 8 + room)
        os.close(self._file)
        moved.replace(self.part)
        self._file, self._room = file, room


def write_all(file: int, content: memoryview, offset: int) -> None:
    """Write every byte at ``offset`` (``pwrite`` may stop half way)."""
    while content:
        written = os.pwrite(file, content, offset)
        content, offset = content[written:], offset + written


def read_into(file: int, content: memoryview, offset: int) -> None:
    """Fill ``content`` from ``offset``.

    Raises:
        EOFError: the file ends before.
    """
    while content:
        count = os.preadv(file, [content], offset)
        if count == 0:
            raise EOFError(f"the file ends {len(content)} bytes too early")
        content, offset = content[count:], offset + count


def copy_range(source: int, start: int, size: int, target: int, offset: int) -> None:
    """Copy ``size`` bytes between open files; through memory where the kernel cannot."""
    mover: Callable[[int, int, int], int] | None = None
    if hasattr(os, "copy_file_range"):
        mover = lambda begin, count, to: os.copy_file_range(source, target, count, begin, to)  # noqa: E731
    while size:
        if mover is not None:
            try:
                moved = mover(start, size, offset)
            except OSError as error:
                if error.errno in _FULL:
                    raise
                mover = None
                continue
        else:
            buffer = bytearray(min(size, COPY_CHUNK))
            read_into(source, memoryview(buffer), start)
            write_all(target, memoryview(buffer), offset)
            moved = len(buffer)
        if moved == 0:
            raise EOFError(f"the file ends {size} bytes too early")
        start, offset, size = start + moved, offset + moved, size - moved


_FULL = {28, 122}
"""ENOSPC and EDQUOT: trying again through memory would not help."""
