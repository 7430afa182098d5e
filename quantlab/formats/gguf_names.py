"""GGUF's names and Hugging Face's names for the same tensors and config keys.

GGUF has short fixed names and one metadata namespace an architecture; which name is which is data
(``matrix/gguf.yaml``). Two families of tensors change on the way, not only their names:

- Llama's q and k: GGUF rotates neighbouring rows (0,1), (2,3), ...; Hugging Face rotates row ``i`` with row
  ``i + head_dim / 2``. Row ``2 i + h`` of a head in GGUF is row ``h * head_dim / 2 + i`` in the folder
  (ggml-org/llama.cpp: convert_hf_to_gguf.py, ``LlamaModel.permute``). Whole rows move, so blocks stay whole.
- experts: one 3-D tensor in GGUF, one matrix an expert in the folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from quantlab.errors import CheckpointError
from quantlab.matrix.data import read_section

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    """What the data says of one architecture.

    Attributes:
        gguf: the architecture's word in GGUF metadata.
        model_type: Hugging Face's ``model_type``.
        model_class: class name for ``architectures``.
        permute: q and k rows are reordered (Llama).
        head_dim: metadata key that holds the head's size, or None where it is hidden_size / heads.
        config: metadata key to config key.
        constants: config keys that the metadata does not carry.
        bias_flags: config key to the tensor whose presence in block 0 sets it.
        tensors: GGUF module pattern to Hugging Face module pattern.
        experts: the same for 3-D expert tensors.
        rows: GGUF patterns whose vector is a matrix of one row in the folder.
    """

    gguf: str
    model_type: str
    model_class: str
    permute: bool = False
    head_dim: str | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    bias_flags: Mapping[str, str] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)
    experts: Mapping[str, str] = field(default_factory=dict)
    rows: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """Where one GGUF tensor goes: its name(s) in the folder and what has to happen to it.

    Attributes:
        names: tensor names in the folder; several for a 3-D expert tensor, one an expert.
        heads: rows are to be permuted back within this many heads, or None.
        row: a vector becomes a matrix of one row.
    """

    names: tuple[str, ...]
    heads: int | None = None
    row: bool = False


def gguf_data() -> dict[str, Any]:
    """Return ``matrix/gguf.yaml``."""
    return dict(read_section("gguf")["gguf"])


@cache
def architectures() -> dict[str, GgufArchitecture]:
    """Return every architecture that the data knows, by its id there (``mixtral`` shares GGUF's ``llama``)."""
    data = gguf_data()
    found = {}
    for name, entry in data["architectures"].items():
        found[name] = GgufArchitecture(
            gguf=entry.get("gguf", name),
            model_type=entry["model_type"],
            model_class=entry["class"],
            permute=entry.get("permute", False),
            head_dim=entry.get("head_dim"),
            config={**data["config"], **entry.get("config", {})},
            constants=entry.get("constants", {}),
            bias_flags=entry.get("bias_flags", {}),
            tensors={**data["tensors"], **entry.get("tensors", {})},
            experts=entry.get("experts", {}),
            rows=tuple(entry.get("rows", ())),
        )
    return found


def architecture_of_gguf(name: str, *, experts: bool) -> GgufArchitecture:
    """Return the architecture of a file.

    Args:
        name: ``general.architecture``.
        experts: the metadata has an expert count above zero.

    Raises:
        CheckpointError: the data has no such architecture.
    """
    matching = [entry for entry in architectures().values() if entry.gguf == name]
    fitting = [entry for entry in matching if bool(entry.experts) == experts]
    if not fitting:
        known = ", ".join(sorted({entry.gguf for entry in architectures().values()}))
        message = f"GGUF architecture {name!r}{' with experts' if experts else ''} is not one that quantlab can name"
        raise CheckpointError(message, hint=f"known architectures: {known}; others are added in matrix/gguf.yaml")
    return fitting[0]


def architecture_of_model(model_type: str) -> GgufArchitecture:
    """Return the architecture for a folder's ``model_type`` (``mistral`` is written as ``llama``).

    Raises:
        CheckpointError: GGUF files of that model type cannot be written.
    """
    wanted = "llama" if model_type == "mistral" else model_type
    for entry in architectures().values():
        if entry.model_type == wanted:
            return entry
    known = ", ".join(sorted(entry.model_type for entry in architectures().values()))
    message = f"model_type {model_type!r} cannot be written as GGUF"
    raise CheckpointError(message, hint=f"these can: {known}; others are added in matrix/gguf.yaml")


def _pattern(template: str) -> re.Pattern[str]:
    escaped = re.escape(template).replace(r"\{n\}", r"(?P<n>\d+)").replace(r"\{e\}", r"(?P<e>\d+)")
    return re.compile(rf"{escaped}\.(?P<suffix>weight|bias)")


@cache
def _patterns(model_type: str, direction: str) -> tuple[tuple[re.Pattern[str], str, str], ...]:
    """Return ``(pattern, counterpart template, GGUF template)`` of every tensor of an architecture."""
    entry = next(a for a in architectures().values() if a.model_type == model_type)
    rows = {**entry.tensors, **entry.experts}
    if direction == "to_folder":
        return tuple((_pattern(short), long, short) for short, long in rows.items())
    return tuple((_pattern(long), short, short) for short, long in rows.items())


def folder_target(entry: GgufArchitecture, name: str, shape: tuple[int, ...], config: Mapping[str, Any]) -> Target:
    """Return where a GGUF tensor goes.

    Args:
        entry: the architecture.
        name: the tensor's GGUF name.
        shape: its shape, outermost first.
        config: the folder's config (for the head counts).

    Raises:
        CheckpointError: the architecture has no such tensor.
    """
    for pattern, template, short in _patterns(entry.model_type, "to_folder"):
        match = pattern.fullmatch(name)
        if match is None:
            continue
        block, suffix = match.groupdict().get("n", ""), match["suffix"]
        names = [template.replace("{n}", block or "")]
        if short in entry.experts:
            names = [names[0].replace("{e}", str(expert)) for expert in range(shape[0])]
        return Target(
            tuple(f"{one}.{suffix}" for one in names), heads=_heads(entry, short, config), row=short in entry.rows
        )
    message = f"tensor {name!r} does not belong to GGUF architecture {entry.gguf!r}"
    raise CheckpointError(message, hint="add its name to matrix/gguf.yaml, with its source")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where one tensor of the folder goes in GGUF.

    Attributes:
        name: GGUF tensor name.
        expert: index along the first axis of a 3-D expert tensor, or None.
        heads: rows are to be permuted within this many heads, or None.
        row: a matrix of one row becomes a vector.
    """

    name: str
    expert: int | None = None
    heads: int | None = None
    row: bool = False


def gguf_origin(entry: GgufArchitecture, name: str, config: Mapping[str, Any]) -> Origin:
    """Return the GGUF name of a folder's tensor.

    Raises:
        CheckpointError: the architecture has no such tensor.
    """
    for pattern, template, short in _patterns(entry.model_type, "to_gguf"):
        match = pattern.fullmatch(name)
        if match is None:
            continue
        groups = match.groupdict()
        expert = groups.get("e")
        return Origin(
            f"{template.replace('{n}', groups.get('n') or '')}.{match['suffix']}",
            expert=None if expert is None else int(expert),
            heads=_heads(entry, short, config),
            row=short in entry.rows,
        )
    message = f"tensor {name!r} has no name in GGUF architecture {entry.gguf!r}"
    raise CheckpointError(message, hint="only plain weights of the model can be written as GGUF")


def _heads(entry: GgufArchitecture, short: str, config: Mapping[str, Any]) -> int | None:
    if not entry.permute or short not in {"blk.{n}.attn_q", "blk.{n}.attn_k"}:
        return None
    return int(config["num_attention_heads" if short.endswith("q") else "num_key_value_heads"])


def rows_to_folder(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Put rows of GGUF's interleaved rotary order into Hugging Face's half-split order.

    Works on anything whose first axis is the weight's rows: values, codes, scales, raw blocks.
    """
    return tensor.reshape(heads, -1, 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)


def rows_to_gguf(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo ``rows_to_folder``."""
    return tensor.reshape(heads, 2, -1, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)


def expert_groups(names: Mapping[str, Origin]) -> Iterator[tuple[str, list[str]]]:
    """Yield each GGUF tensor with the folder's tensors that make it, experts in order."""
    grouped: dict[str, list[str]] = {}
    for name, origin in names.items():
        grouped.setdefault(origin.name, []).append(name)
    for gguf_name, members in grouped.items():
        yield gguf_name, sorted(members, key=lambda member: names[member].expert or 0)
