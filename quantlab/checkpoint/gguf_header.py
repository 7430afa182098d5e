"""The head of a GGUF file: metadata and tensor descriptions, read without the data and without a library.

::

    4 bytes "GGUF", u32 version, u64 tensor count, u64 metadata count
    metadata:  string key, u32 type, value            (string: u64 length, bytes; array: u32 type, u64 count, items)
    tensors:   string name, u32 rank, u64 dims[rank] (innermost first), u32 type, u64 offset
    padding to general.alignment (32), then the data; offsets count from there

Source: ggml-org/llama.cpp: docs/gguf.md in ggml, gguf-py/gguf/gguf_reader.py. Our own reader because the package's
maps the file and builds numpy views of all of it, vocabulary included: here long arrays are skipped, and every
count is checked against the bytes that are left.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantlab.checkpoint.facts import TensorInfo
from quantlab.errors import CheckpointError
from quantlab.matrix.data import read_section

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_KEPT_ITEMS = 1024
"""Arrays longer than this (vocabularies, merges) are walked over, not kept."""


@dataclass(frozen=True, slots=True)
class ArrayLength:
    """Stands for an array that was too long to keep."""

    length: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What one GGUF file says of itself.

    Attributes:
        version: 2 or 3.
        metadata: by key; long arrays as ``ArrayLength``.
        tensors: by name; dtype is GGUF's type name, shape outermost first, offsets absolute.
        size: bytes of the file.
    """

    version: int
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]
    size: int


def read_gguf_header(path: Path, name: str | None = None) -> GgufHeader:
    """Return the head of a GGUF file.

    Raises:
        CheckpointError: unreadable, truncated or malformed; names file and field.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            if size < 24:
                raise CheckpointError(f"{path} has {size} bytes, too few for a GGUF file")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
                return _read(_Cursor(view, str(path)), name or path.name)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


class _Cursor:
    """Reads little-endian values in order and knows where the file ends."""

    def __init__(self, view: mmap.mmap, where: str) -> None:
        self.view, self.where, self.at, self.size = view, where, 0, len(view)

    def need(self, count: int, what: str) -> None:
        """Raise unless ``count`` more bytes are there."""
        if count > self.size - self.at:
            message = f"{self.where}: {what} needs {count} bytes at {self.at}, the file has {self.size}"
            raise CheckpointError(message, hint="the file is truncated or damaged; download it again")

    def scalar(self, code: str, what: str) -> Any:
        """Return one value of a struct code."""
        width = struct.calcsize("<" + code)
        self.need(width, what)
        (value,) = struct.unpack_from("<" + code, self.view, self.at)
        self.at += width
        return value

    def string(self, what: str) -> str:
        """Return one string."""
        length = self.scalar("Q", what)
        self.need(length, what)
        if length > 64 * 2**20:
            raise CheckpointError(f"{self.where}: {what} is a string of {length} bytes")
        value = self.view[self.at : self.at + length]
        self.at += length
        return value.decode("utf-8", errors="replace")

    def skip_strings(self, count: int, what: str) -> None:
        """Walk over ``count`` strings."""
        length_at, at, size = struct.Struct("<Q").unpack_from, self.at, self.size
        for _ in range(count):
            if at + 8 > size:
                break
            at += 8 + length_at(self.view, at)[0]
        self.need(at - self.at, what)
        self.at = at


def _read(cursor: _Cursor, name: str) -> GgufHeader:
    if cursor.view[:4] != b"GGUF":
        raise CheckpointError(f"{cursor.where} does not begin with GGUF", hint="not a GGUF file, or a Git LFS pointer")
    cursor.at = 4
    version = cursor.scalar("I", "version")
    if version not in {2, 3}:
        what = "big endian" if int.from_bytes(version.to_bytes(4, "little"), "big") in {2, 3} else f"version {version}"
        raise CheckpointError(f"{cursor.where}: GGUF {what} is not read", hint="versions 2 and 3, little endian, are")
    count, pairs = cursor.scalar("Q", "tensor count"), cursor.scalar("Q", "metadata count")
    # The smallest metadata pair has 13 bytes, the smallest tensor description 28.
    if pairs * 13 + count * 28 > cursor.size - cursor.at:
        message = f"{cursor.where}: {count} tensors and {pairs} metadata pairs do not fit into {cursor.size} bytes"
        raise CheckpointError(message, hint="the header is damaged or was forged")
    metadata: dict[str, Any] = {}
    for _ in range(pairs):
        key = cursor.string("metadata key")
        if key in metadata:
            raise CheckpointError(f"{cursor.where}: metadata key {key!r:.120} occurs twice")
        metadata[key] = _value(cursor, cursor.scalar("I", key[:120]), key[:120], depth=0)
    tensors = _tensors(cursor, count, metadata, name)
    return GgufHeader(version, metadata, tensors, cursor.size)


def _value(cursor: _Cursor, kind: int, key: str, *, depth: int) -> Any:
    if kind in _SCALARS:
        return cursor.scalar(_SCALARS[kind], key)
    if kind == _STRING:
        return cursor.string(key)
    if kind != _ARRAY or depth > 2:
        raise CheckpointError(f"{cursor.where}: metadata {key!r} has unknown type {kind}")
    inner, length = cursor.scalar("I", key), cursor.scalar("Q", key)
    width = struct.calcsize("<" + _SCALARS[inner]) if inner in _SCALARS else 8
    cursor.need(length * width, key)
    if length <= _KEPT_ITEMS or inner == _ARRAY:
        return [_value(cursor, inner, key, depth=depth + 1) for _ in range(length)]
    if inner == _STRING:
        cursor.skip_strings(length, key)
    elif inner in _SCALARS:
        cursor.at += length * width
    else:
        raise CheckpointError(f"{cursor.where}: metadata {key!r} is an array of unknown type {inner}")
    return ArrayLength(length)


def _tensors(cursor: _Cursor, count: int, metadata: Mapping[str, Any], name: str) -> dict[str, TensorInfo]:
    types = read_section("formats")["gguf"]["types"]
    described: dict[str, tuple[tuple[int, ...], Mapping[str, Any], int]] = {}
    for _ in range(count):
        key = cursor.string("tensor name")
        rank = cursor.scalar("I", f"rank of {key[:120]!r}")
        if rank > 8:
            raise CheckpointError(f"{cursor.where}: tensor {key!r:.120} has {rank} dimensions")
        shape = tuple(cursor.scalar("Q", f"shape of {key[:120]!r}") for _ in range(rank))[::-1]
        number = cursor.scalar("I", f"type of {key[:120]!r}")
        kind = types.get(str(number))
        if kind is None:
            raise CheckpointError(f"{cursor.where}: tensor {key!r:.120} has unknown type {number}",
                                  hint="removed from GGUF, or newer than this release")  # fmt: skip
        if key in described:
            raise CheckpointError(f"{cursor.where}: tensor {key!r:.120} occurs twice")
        described[key] = (shape, kind, cursor.scalar("Q", f"offset of {key[:120]!r}"))
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= 2**20 or alignment % 8:
        raise CheckpointError(f"{cursor.where}: general.alignment is {alignment!r:.40}")
    data = -(-cursor.at // alignment) * alignment
    return {key: _placed(cursor, key, entry, data, name) for key, entry in described.items()}


def _placed(
    cursor: _Cursor, key: str, entry: tuple[tuple[int, ...], Mapping[str, Any], int], data: int, name: str
) -> TensorInfo:
    shape, kind, offset = entry
    block, width = int(kind["block"]), int(kind["bytes"])
    columns = shape[-1] if shape else 1
    if columns % block:
        message = f"{cursor.where}: tensor {key!r:.120} has {columns} columns, no multiple of {kind['name']}'s {block}"
        raise CheckpointError(message)
    size = math.prod(shape) // block * width
    if data + offset + size > cursor.size:
        message = (
            f"{cursor.where}: tensor {key!r:.120} ends at {data + offset + size}, the file has {cursor.size} bytes"
        )
        raise CheckpointError(message, hint="the file is truncated; download it again")
    return TensorInfo(key, str(kind["name"]), shape, name, data + offset, data + offset + size)
