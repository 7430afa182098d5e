"""Where a source lies and what identifies it: a folder, or a repository of the hub.

A hub checkpoint is converted without ever having all of it on the disk: its headers come by range requests, each
shard is downloaded when the first job needs it and dropped after the last one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quantlab.checkpoint.facts import CheckpointFacts
from quantlab.checkpoint.folder import INDEX, Listing, resolve
from quantlab.checkpoint.open import open_checkpoint
from quantlab.conversion.source import Files
from quantlab.errors import CheckpointError, UsageError

DROPPED_SUFFIXES = (
    ".safetensors",
    ".safetensors.index.json",
    ".bin",
    ".bin.index.json",
    ".ckpt",
    ".gguf",
    ".h5",
    ".msgpack",
    ".onnx",
    ".pkl",
    ".pickle",
    ".pt",
    ".pth",
)
"""Weights of any kind."""

DROPPED_FILES = {
    "config.json",
    "hf_quant_config.json",
    "quant_config.json",
    "quantize_config.json",
    "quantization_config.json",
    "quant_model_description.json",
    "quant_log.csv",
    "quantlab.json",
    "quark_model_info.json",
    "recipe.yaml",
    "README.md",
    ".gitattributes",
}
"""What is written anew, or speaks of the old format; a model card does both."""


@dataclass(frozen=True)
class Origin:
    """A source, ready to be planned.

    Attributes:
        name: what provenance calls it: the folder's name or the hub id.
        facts: what it is.
        config: content of ``config.json``.
        index_metadata: ``metadata`` of the index.
        files: gives the shards.
        identity: what tells whether it has changed: for each weight file size and time, or the hub's commit.
        carried: names of small files that the output needs too.
        small_file: returns where one of those lies.
    """

    name: str
    facts: CheckpointFacts
    config: dict[str, Any]
    index_metadata: Mapping[str, Any]
    files: Files
    identity: Callable[[], dict[str, Any]]
    carried: tuple[str, ...] = ()
    small_file: Callable[[str], Path] = field(default=Path)


class FolderFiles:
    """Shards of a local folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def fetch(self, file: str) -> Path:
        """Return the shard's real path; links of a hub cache are followed, others refused."""
        return resolve(self._folder, file)

    def release(self, file: str) -> None:
        """Do nothing: a user's own files stay."""


def open_origin(source: str | Path, *, scratch: Path) -> Origin:
    """Open a source.

    Args:
        source: folder or hub id.
        scratch: folder into which shards of the hub are downloaded; made when needed.

    Raises:
        CheckpointError: nothing is there, or it cannot be converted as it is.
        UsageError: a file where a folder is needed.
    """
    path = Path(source)
    if path.is_file():
        raise UsageError(f"{path} is a file", hint="give the folder that holds config.json")
    opened = open_checkpoint(path if path.exists() else source)
    facts = opened.facts
    check_listing(facts, opened.listing)
    if opened.folder is None:
        from quantlab.conversion.hub_origin import hub_origin

        return hub_origin(str(source), opened, scratch)
    folder = opened.folder
    return Origin(
        folder.resolve().name if path.exists() else str(source),
        facts,
        dict(opened.listing.config),
        opened.listing.index_metadata,
        FolderFiles(folder),
        lambda: folder_identity(folder, facts),
        tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_file() and is_carried(entry.name))),
        lambda name: resolve(folder, name),
    )


def check_listing(facts: CheckpointFacts, listing: Listing) -> None:
    """Refuse what is no whole model in safetensors files.

    Raises:
        CheckpointError: an adapter, pickles, a shard or tensor that the index names and that is not there.
    """
    if listing.adapter or facts.format == "adapter":
        raise CheckpointError(
            f"{facts.path} is a LoRA adapter, not a model",
            hint="merge it into its base model first (peft: merge_and_unload), then convert that",
        )
    if listing.pickles and not listing.weights:
        raise CheckpointError(
            f"{facts.path} holds pickle files ({listing.pickles[0]}), which can run code when they are read",
            hint="write the model as safetensors first (save_pretrained does)",
        )
    if not listing.config:
        raise CheckpointError(f"{facts.path} has no config.json")
    present = {info.file for info in facts.tensors.values()}
    for name, file in (listing.index or {}).items():
        if file not in present and file not in listing.sizes:
            raise CheckpointError(f"{facts.path}: {INDEX} names {file}, which is not there", hint="fetch the shard")
        if name not in facts.tensors:
            raise CheckpointError(f"{facts.path}: {INDEX} says that {name} is in {file}, which has no such tensor")
    for finding in facts.findings:
        if finding.rule == "duplicate-tensor":
            raise CheckpointError(f"{facts.path}: {finding.message}", hint=finding.fix)


def folder_identity(folder: Path, facts: CheckpointFacts) -> dict[str, Any]:
    """Return size and modification time of every weight file, and the config's content."""
    files = sorted({info.file for info in facts.tensors.values()})
    status = {file: resolve(folder, file).stat() for file in files}
    return {
        **{file: f"{one.st_size} bytes, modified {one.st_mtime_ns} ns" for file, one in status.items()},
        "config.json": (folder / "config.json").read_text(encoding="utf-8"),
    }


def is_carried(name: str) -> bool:
    """Say whether a file of the source belongs into the output too."""
    return name not in DROPPED_FILES and not name.endswith(DROPPED_SUFFIXES) and not name.startswith(".")


def carry_files(origin: Origin, folder: Path) -> list[str]:
    """Copy tokenizer, chat template, generation config, licenses and the like; return their names."""
    for name in origin.carried:
        shutil.copyfile(origin.small_file(name), folder / name)
    return list(origin.carried)
