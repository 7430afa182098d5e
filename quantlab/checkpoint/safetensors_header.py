"""Headers of safetensors files, checked as strictly as the format's own library checks them.

::

    8 bytes      N, little endian
    N bytes      JSON: {"name": {"dtype", "shape", "data_offsets": [begin, end]}, ..., "__metadata__": {...}}
    the rest     data; offsets count from here, in order, without holes or overlaps

Source: huggingface/safetensors: safetensors/src/tensor.rs (``read_metadata``, ``validate``; headers of at most
100 MB). Nothing but the header is read.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantlab.checkpoint.documents import DEEPEST
from quantlab.checkpoint.facts import TensorInfo
from quantlab.errors import CheckpointError

LARGEST_HEADER = 100_000_000

DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64,
    "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
"""Bits of one element by dtype (huggingface/safetensors: safetensors/src/tensor.rs, ``Dtype``)."""


@dataclass(frozen=True, slots=True)
class Header:
    """What one safetensors file says of itself.

    Attributes:
        tensors: by name; offsets are absolute in the file.
        metadata: the ``__metadata__`` strings.
        size: bytes of the whole file.
    """

    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]
    size: int


def read_header(path: Path, name: str | None = None) -> Header:
    """Return the header of a safetensors file.

    Args:
        path: the file.
        name: how the file is called in the facts (relative to the checkpoint); its own name by default.

    Raises:
        CheckpointError: unreadable, truncated, or malformed in any way; names file, tensor and field.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = header_length(file.read(8), size, str(path))
            content = file.read(length)
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror or error}"
        raise CheckpointError(message) from error
    return parse_header(content, size, name or path.name, str(path))


def header_length(prefix: bytes, size: int, where: str) -> int:
    """Return the length of the JSON header from the file's first 8 bytes.

    Raises:
        CheckpointError: the file is too short or the length impossible.
    """
    if len(prefix) < 8:
        message = f"{where} has {size} bytes, too few for a safetensors header"
        raise CheckpointError(message, hint="the download may have been cut off")
    length = int.from_bytes(prefix, "little")
    if prefix.startswith((b"version ", b"<!DOCTYP", b"<html>")):
        raise CheckpointError(f"{where} is a text file (a Git LFS pointer or a web page), not safetensors",
                              hint="fetch the file itself (git lfs pull, or hf download)")  # fmt: skip
    if prefix.startswith((b"PK\x03\x04", b"\x80\x02")):
        raise CheckpointError(f"{where} is a pickle, not safetensors, and is not opened",
                              hint="convert it with a tool of its author's, in a sandbox")  # fmt: skip
    if length > LARGEST_HEADER:
        message = f"{where}: header length is {length} bytes, more than the format's limit of {LARGEST_HEADER}"
        raise CheckpointError(message, hint="not a safetensors file, or a hostile one")
    if length + 8 > size:
        message = f"{where}: header of {length} bytes does not fit into the file of {size} bytes"
        raise CheckpointError(message, hint="the file is truncated; download it again")
    return length


def parse_header(content: bytes, size: int, name: str, where: str) -> Header:
    """Return the header whose JSON bytes are ``content``, of a file of ``size`` bytes.

    Raises:
        CheckpointError: as ``read_header``.
    """
    entries = _entries(content, where)
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, Mapping):
        raise CheckpointError(f"{where}: __metadata__ is not an object")
    start = 8 + len(content)
    tensors = {key: _tensor(key, entry, start, name, where) for key, entry in entries.items()}
    _check_layout(tensors, start, size, where)
    return Header(tensors, {key: value for key, value in metadata.items() if isinstance(value, str)}, size)


def _entries(content: bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(content.decode("utf-8"), object_pairs_hook=lambda pairs: _unique(pairs, where))
    except RecursionError as error:
        raise CheckpointError(f"{where}: header is nested more than {DEEPEST} levels deep") from error
    except ValueError as error:
        raise CheckpointError(f"{where}: header is not JSON: {error}", hint="the file is damaged") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{where}: header is not an object")
    return found


def _unique(pairs: list[tuple[str, Any]], where: str) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in names if names.count(key) > 1)
        raise CheckpointError(f"{where}: {twice!r:.120} occurs twice in the header")
    return found


def _tensor(key: str, entry: object, start: int, name: str, where: str) -> TensorInfo:
    if not isinstance(entry, Mapping):
        raise CheckpointError(f"{where}: entry of tensor {key!r:.120} is not an object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise CheckpointError(f"{where}: tensor {key!r:.120} has unknown dtype {dtype!r:.40}",
                              hint="a newer safetensors release may know it")  # fmt: skip
    if not isinstance(shape, list) or not all(type(size) is int and 0 <= size < 2**63 for size in shape):
        raise CheckpointError(f"{where}: tensor {key!r:.120} has shape {shape!r:.80}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(at) is int and at >= 0 for at in offsets):
        raise CheckpointError(f"{where}: tensor {key!r:.120} has data_offsets {offsets!r:.80}")
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    if bits % 8 or offsets[1] - offsets[0] != bits // 8:
        message = (
            f"{where}: tensor {key!r:.120} of shape {shape} and dtype {dtype} needs {bits / 8:g} bytes, "
            f"data_offsets {offsets} hold {offsets[1] - offsets[0]}"
        )
        raise CheckpointError(message)
    return TensorInfo(key, dtype, tuple(shape), name, start + offsets[0], start + offsets[1])


def _check_layout(tensors: dict[str, TensorInfo], start: int, size: int, where: str) -> None:
    """Data must follow each other without holes, and end where the file ends."""
    at = start
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.start, tensor.end)):
        if tensor.start != at:
            what = "overlaps the tensor before it" if tensor.start < at else "leaves a hole before it"
            message = f"{where}: tensor {tensor.name!r:.120} {what} (begins at {tensor.start}, expected {at})"
            raise CheckpointError(message, hint="the header is damaged or was forged")
        at = tensor.end
    if at != size:
        kind = "is truncated" if at > size else "has bytes behind its last tensor"
        message = f"{where} {kind}: the header describes {at} bytes, the file has {size}"
        raise CheckpointError(message, hint="download it again")
