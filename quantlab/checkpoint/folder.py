"""A checkpoint folder: which files it has, and none outside of it.

A hub cache keeps a snapshot as links into ``blobs`` beside it; those are followed. Any other link or path that
leaves the folder is refused, since a checkpoint from a stranger could point anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from quantlab.checkpoint.documents import read_json
from quantlab.checkpoint.recognition import COMPANIONS
from quantlab.errors import CheckpointError

INDEX = "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle", "*.msgpack", "*.h5")
_NOT_WEIGHTS = {"training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth", "optimizer.bin"}


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a checkpoint, whether on disk or on the hub.

    Attributes:
        documents: content of each JSON file that matters, by name; ``config.json`` may be missing.
        weights: safetensors files that make up the model, in order.
        sizes: bytes by file name, for all files.
        index: the index's ``weight_map``, or None if there is no index.
        index_metadata: the index's ``metadata``.
        pickles: weight files that are pickles.
        adapter: the folder holds a LoRA adapter and no model.
    """

    documents: dict[str, dict[str, Any]]
    weights: tuple[str, ...] = ()
    sizes: dict[str, int] = field(default_factory=dict)
    index: dict[str, str] | None = None
    index_metadata: dict[str, Any] = field(default_factory=dict)
    pickles: tuple[str, ...] = ()
    adapter: bool = False

    @property
    def config(self) -> dict[str, Any]:
        """The content of ``config.json``, empty if there is none."""
        return self.documents.get("config.json", {})

    @property
    def companions(self) -> dict[str, Mapping[str, Any]]:
        """The JSON files besides ``config.json`` that may tell of a quantization."""
        return {name: content for name, content in self.documents.items() if is_companion(name)}


def is_companion(name: str) -> bool:
    """Tell whether a JSON file may carry a quantization config."""
    return name in COMPANIONS or fnmatch(name, "quant_model_description*.json")


def wanted(name: str) -> bool:
    """Tell whether a JSON file is read at all."""
    return name in {"config.json", "adapter_config.json", INDEX} or is_companion(name)


def resolve(folder: Path, name: str) -> Path:
    """Return the real path of a file of the folder.

    Raises:
        CheckpointError: the name or a link leads out of the folder (and is no link of a hub cache).
    """
    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts or "\\" in name or "\0" in name:
        message = f"{folder}: file name {name!r:.120} leaves the folder"
        raise CheckpointError(message, hint="a checkpoint must not name files outside of it")
    real, root = (folder / relative).resolve(), folder.resolve()
    if real.is_relative_to(root):
        return real
    if root.parent.name == "snapshots" and real.is_relative_to(root.parent.parent / "blobs"):
        return real
    message = f"{folder / relative} is a link to {real}, outside of the folder"
    raise CheckpointError(message, hint="copy the file into the folder; only links of a hub cache are followed")


def list_folder(folder: Path) -> Listing:
    """Return what a folder holds.

    Raises:
        CheckpointError: unreadable, a JSON file is malformed, or a path leaves the folder.
    """
    try:
        names = sorted(entry.name for entry in folder.iterdir() if not entry.is_dir())
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {error.strerror or error}") from error
    paths = {name: resolve(folder, name) for name in names if _matters(name)}
    documents = {name: read_json(path) for name, path in paths.items() if wanted(name)}
    sizes = {name: path.stat().st_size for name, path in paths.items() if path.exists()}
    return listing(documents, sizes, str(folder))


def _matters(name: str) -> bool:
    return name.endswith((".safetensors", ".gguf", ".py")) or wanted(name) or _is_pickle(name)


def _is_pickle(name: str) -> bool:
    return name not in _NOT_WEIGHTS and any(fnmatch(name, pattern) for pattern in PICKLES)


def listing(documents: dict[str, dict[str, Any]], sizes: dict[str, int], where: str) -> Listing:
    """Sort the files of a checkpoint by what they are.

    Raises:
        CheckpointError: the index is malformed or names a file outside of the folder.
    """
    index = documents.pop(INDEX, None)
    weight_map = None if index is None else _weight_map(index, where)
    return Listing(
        documents=documents,
        weights=_weights(weight_map, sizes),
        sizes=sizes,
        index=weight_map,
        index_metadata=dict(index["metadata"]) if index and isinstance(index.get("metadata"), Mapping) else {},
        pickles=tuple(name for name in sizes if _is_pickle(name)),
        adapter="adapter_config.json" in documents and "config.json" not in documents,
    )


def _weight_map(index: Mapping[str, Any], where: str) -> dict[str, str]:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, Mapping):
        raise CheckpointError(f"{where}/{INDEX}: weight_map is missing or not an object")
    for tensor, file in weight_map.items():
        if not isinstance(file, str) or not file:
            raise CheckpointError(f"{where}/{INDEX}: weight_map[{tensor!r:.120}] is {file!r:.80}, not a file name")
    for file in set(weight_map.values()):
        name = PurePosixPath(file)
        if name.is_absolute() or ".." in name.parts or "\\" in file or "\0" in file:
            raise CheckpointError(f"{where}/{INDEX}: weight_map names {file!r:.120}, outside of the folder",
                                  hint="a checkpoint must not name files outside of it")  # fmt: skip
    return dict(weight_map)


def _weights(index: Mapping[str, str] | None, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The files that a loader would open: those of the index, else the usual single file, else all there are."""
    if index is not None:
        return tuple(sorted(set(index.values())))
    found = [name for name in sizes if name.endswith(".safetensors") and not name.startswith("adapter_model")]
    if "model.safetensors" in found:
        return ("model.safetensors",)
    others = [name for name in found if not name.startswith("consolidated")]
    return tuple(sorted(others or found))
