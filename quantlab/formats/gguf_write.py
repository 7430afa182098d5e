"""Write a GGUF file: F16, BF16, Q8_0, Q4_0, Q4_1 or MXFP4, with metadata and tokenizer, one tensor at a time.

Which weight gets which type, as llama.cpp's own converter does it::

    vectors (norms, biases) and routers     F32
    embeddings and output head              Q8_0 where the rest is 4 bit, else the type itself
    everything else                         the type; a row that is not whole blocks: F16

A weight that comes as codes is written from its codes, bit for bit, where the type holds them (``gguf_blocks``); in
a file made so, what was dense stays dense, because nothing may change. Otherwise the ``gguf`` package quantizes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from quantlab.errors import CheckpointError, ConversionRefused, MissingExtraError, UnknownNameError
from quantlab.formats.gguf_blocks import BLOCK, BLOCKS, block_obstacle, encode_blocks
from quantlab.formats.gguf_metadata import model_fields, rope_factors
from quantlab.formats.gguf_names import (
    GgufArchitecture,
    Origin,
    architecture_of_model,
    expert_groups,
    gguf_origin,
    rows_to_gguf,
)
from quantlab.formats.gguf_rope import ROPE_FACTORS
from quantlab.formats.gguf_vocabulary import tokenizer_fields
from quantlab.progress import Observer, Progress, silent
from quantlab.tensors.dequantize import dense_codes, dequantize
from quantlab.tensors.quantized import QuantizedTensor

if TYPE_CHECKING:
    from gguf import GGUFWriter

KINDS = ("F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "MXFP4")
_TABLES = ("token_embd.weight", "output.weight")
_BYTES = {"F32": 4, "F16": 2, "BF16": 2}

Weight = torch.Tensor | QuantizedTensor
Read = Callable[[str], Weight]


@dataclass(frozen=True)
class GgufSource:
    """A model to write.

    Attributes:
        config: its ``config.json``.
        shapes: dense weight name to logical shape, for every weight.
        read: returns a weight by that name, dense or as codes; called once each.
        tokenizer: folder that holds the tokenizer's files.
        quantized: names that ``read`` returns as codes.
        name: the model's name; by default the tokenizer folder's.
    """

    config: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    read: Read
    tokenizer: Path
    quantized: frozenset[str] = frozenset()
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """One tensor of the file to write.

    Attributes:
        name: GGUF name.
        kind: GGUF type.
        shape: logical shape, outermost first.
        members: names in the folder; several for experts.
        origin: the first member's rearrangement.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    members: tuple[str, ...]
    origin: Origin

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        if self.kind in BLOCKS:
            return self.shape[-1] // BLOCK * BLOCKS[self.kind].bytes
        return self.shape[-1] * _BYTES[self.kind]


@dataclass(frozen=True, slots=True)
class GgufReport:
    """What was written.

    Attributes:
        path: the file.
        bytes: its size.
        types: GGUF type to number of tensors.
        exact: GGUF names of the tensors that hold the source's own codes.
    """

    path: Path
    bytes: int
    types: Mapping[str, int] = field(default_factory=dict)
    exact: tuple[str, ...] = ()


def write_model(
    path: Path, source: GgufSource, kind: str, *, requantize: bool = False, observe: Observer = silent
) -> GgufReport:
    """Write a model as one GGUF file; the file appears whole or not at all.

    Args:
        path: the file to write; must not exist.
        source: the model.
        kind: one of ``KINDS``.
        requantize: may change the numbers of a weight that comes as codes and does not fit.
        observe: receives progress.

    Raises:
        UnknownNameError: no such type.
        CheckpointError: a tensor or config value without a place in GGUF.
        ConversionRefused: codes that the type cannot hold, a tokenizer without a name, values beyond float16.
    """
    if kind not in KINDS:
        raise UnknownNameError("GGUF type", kind, KINDS)
    if path.exists():
        raise CheckpointError(f"{path} exists already", hint="choose another name, or move it away")
    config = source.config
    entry = architecture_of_model(str(config.get("model_type")))
    name = source.name or source.tokenizer.resolve().name
    fields = model_fields(config, entry, kind, name) | tokenizer_fields(source.tokenizer, config)
    items = plan_items(source, entry, kind)
    factors = rope_factors(config)
    staging = path.with_name(f".{path.name}.partial")
    try:
        writer = _open(staging, entry)
        for key, value in fields.items():
            _add(writer, key, value)
        _announce(writer, items, factors)
        exact = _write_items(writer, items, source.read, factors, observe=observe, requantize=requantize)
        writer.close()
        with staging.open("rb+") as file:
            os.fsync(file.fileno())
        staging.rename(path)
    finally:
        staging.unlink(missing_ok=True)
    types = [item.kind for item in items]
    return GgufReport(path, path.stat().st_size, {one: types.count(one) for one in sorted(set(types))}, exact)


def plan_items(source: GgufSource, entry: GgufArchitecture, kind: str) -> list[Item]:
    """Return what will be written, in the folder's order.

    Raises:
        CheckpointError: a tensor has no name in GGUF.
    """
    config, shapes, quantized = source.config, source.shapes, source.quantized
    dtype = str(config.get("torch_dtype") or config.get("dtype")).removeprefix("torch.")
    tied = bool(config.get("tie_word_embeddings"))
    names = [one for one in shapes if not (tied and one == "lm_head.weight")]
    origins = {one: gguf_origin(entry, one, config) for one in names if not one.endswith("rotary_emb.inv_freq")}
    items = []
    for gguf_name, members in expert_groups(origins):
        shape = tuple(shapes[members[0]])
        origin = origins[members[0]]
        if origin.row:
            shape = shape[1:]
        if origin.expert is not None:
            shape = (len(members), *shape)
        loose = bool(quantized) and members[0] not in quantized
        keep = {"float16": "F16", "float32": "F32"}.get(dtype, "BF16") if loose else None
        one = _kind_of(gguf_name, shape, kind, keep)
        items.append(Item(gguf_name, one, shape, tuple(members), origin))
    return items


def _kind_of(name: str, shape: tuple[int, ...], kind: str, keep: str | None) -> str:
    """Return a tensor's type; ``keep`` is the one that changes nothing, where nothing may change."""
    if len(shape) < 2 or "ffn_gate_inp" in name:
        return "F32"
    if keep is not None and kind in BLOCKS:
        return keep
    if name in _TABLES and kind in BLOCKS:
        return "Q8_0" if shape[-1] % BLOCK == 0 else "F16"
    return "F16" if kind in BLOCKS and shape[-1] % BLOCK else kind


def _open(path: Path, entry: GgufArchitecture) -> GGUFWriter:
    try:
        from gguf import GGUFWriter
    except ImportError as error:
        raise MissingExtraError("gguf", "gguf", "writing a GGUF file") from error
    return GGUFWriter(path, entry.gguf)


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _announce(writer: GGUFWriter, items: list[Item], factors: list[float] | None) -> None:
    """Write header, metadata and tensor table."""
    from gguf import GGMLQuantizationType

    if factors is not None:
        writer.add_tensor_info(ROPE_FACTORS, [len(factors)], np.dtype(np.float32), 4 * len(factors))
    for item in items:
        rows = int(np.prod(item.shape[:-1], dtype=np.int64))
        stored = (*item.shape[:-1], item.row_bytes)
        table = GGMLQuantizationType[item.kind]
        writer.add_tensor_info(item.name, stored, np.dtype(np.uint8), rows * item.row_bytes, raw_dtype=table)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()


def _write_items(
    writer: GGUFWriter,
    items: list[Item],
    read: Read,
    factors: list[float] | None,
    *,
    observe: Observer,
    requantize: bool,
) -> tuple[str, ...]:
    """Write all tensors; return the names of those that hold the source's own codes."""
    exact = []
    if factors is not None:
        writer.write_tensor_data(np.array(factors, dtype=np.float32))
    for done, item in enumerate(items):
        observe(Progress("write gguf", done, len(items), "tensors", item.name))
        parts = [_rows(item, read(member), member, requantize=requantize) for member in item.members]
        rows = [part for part, _ in parts]
        writer.write_tensor_data(np.ascontiguousarray(np.concatenate(rows) if len(rows) > 1 else rows[0]))
        if all(same for _, same in parts):
            exact.append(item.name)
    observe(Progress("write gguf", len(items), len(items), "tensors"))
    return tuple(exact)


def _rows(item: Item, weight: Weight, member: str, *, requantize: bool) -> tuple[np.ndarray[Any, Any], bool]:
    """Return the stored bytes of one weight, ``uint8`` ``[rows, row bytes]``, and whether they are its own codes."""
    if isinstance(weight, QuantizedTensor):
        if item.kind in BLOCKS:
            reason = block_obstacle(weight, item.kind)
            if reason is None:
                return encode_blocks(_arranged(weight, item.origin), item.kind).cpu().numpy(), True
            if not requantize:
                message = f"{member}: {item.kind} cannot hold the codes as they are: {reason}"
                raise ConversionRefused(message, hint="--requantize allows it, or write BF16")
        weight = dequantize(weight, torch.float32)
    if item.origin.heads is not None:
        weight = rows_to_gguf(weight, item.origin.heads)
    return _dense_rows(weight, item.kind, member), False


def _dense_rows(weight: torch.Tensor, kind: str, member: str) -> np.ndarray[Any, Any]:
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    flat = weight.detach().cpu().reshape(-1, weight.shape[-1])
    if kind in _BYTES:
        target = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind]
        cast = flat.to(target)
        if bool(cast.isinf().any()) and not bool(flat.isinf().any()):
            raise ConversionRefused(f"{member} has values that {kind} cannot hold", hint="write BF16")
        return cast.contiguous().view(torch.uint8).numpy()
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(quantize(flat.float().numpy(), GGMLQuantizationType[kind]), dtype=np.uint8)


def _arranged(weight: QuantizedTensor, origin: Origin) -> QuantizedTensor:
    """Put the rows of codes, scales and zero points into GGUF's order."""
    if origin.heads is None:
        return weight
    rows, heads = weight.shape[0], origin.heads

    def turn(part: torch.Tensor | None) -> torch.Tensor | None:
        return part if part is None or part.shape[0] != rows else rows_to_gguf(part, heads)

    scales = turn(weight.scales)
    assert scales is not None
    codes = rows_to_gguf(dense_codes(weight), heads)
    return replace(weight, codes=codes, scales=scales, zeros=turn(weight.zeros), offsets=turn(weight.offsets))
