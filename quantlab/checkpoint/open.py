"""Open a checkpoint wherever it is and return what it says of itself, without reading a weight.

A target is a folder, a ``config.json``, a ``.gguf`` or ``.safetensors`` file, or a hub id (``owner/name``, with
``@revision`` for a pinned one).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quantlab.checkpoint.documents import read_json
from quantlab.checkpoint.facts import CheckpointFacts, Finding, TensorInfo
from quantlab.checkpoint.folder import Listing, is_companion, list_folder, resolve
from quantlab.checkpoint.layers import Layout, arrange
from quantlab.checkpoint.recognition import Recognition, recognise
from quantlab.checkpoint.refinement import refine
from quantlab.checkpoint.safetensors_header import Header, read_header
from quantlab.checkpoint.sizes import measure
from quantlab.checkpoint.values import integer, number
from quantlab.errors import CheckpointError
from quantlab.matrix.data import read_section

_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[\w.-]+(@[\w./-]+)?$")


@dataclass(frozen=True, slots=True)
class Opened:
    """A checkpoint with everything that its facts were made from.

    Attributes:
        facts: what it says of itself.
        listing: its files.
        layout: its tensors, sorted.
        headers: safetensors headers by file name; empty for config files and GGUF.
        recognition: what its JSON files say.
        folder: where its files lie, or None on the hub.
    """

    facts: CheckpointFacts
    listing: Listing
    layout: Layout
    headers: Mapping[str, Header]
    recognition: Recognition
    folder: Path | None = None


def read(
    target: str | Path, *, revision: str | None = None, token: str | bool | None = None, headers: bool = True
) -> CheckpointFacts:
    """Return the facts of a checkpoint.

    Args:
        target: folder, file or hub id.
        revision: branch, tag or commit on the hub.
        token: access token for the hub; by default the one that is logged in, False for none.
        headers: read the tensors' headers too; without them only JSON files are looked at.

    Raises:
        CheckpointError: nothing is there, or it is malformed or unsafe; names file and field.
    """
    return open_checkpoint(target, revision=revision, token=token, headers=headers).facts


def open_checkpoint(
    target: str | Path, *, revision: str | None = None, token: str | bool | None = None, headers: bool = True
) -> Opened:
    """Return a checkpoint's facts and what they were made from; arguments and errors as ``read``."""
    path = Path(target)
    try:
        exists = path.exists()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CheckpointError(f"{str(target)[:200]!r} is no path: {reason}") from error
    if exists:
        return _local(path, headers=headers)
    name = str(target)
    if _HUB_ID.match(name) and not name.endswith((".json", ".gguf", ".safetensors")):
        from quantlab.checkpoint.hub import open_hub

        return open_hub(name, revision=revision, token=token, headers=headers)
    message = f"there is no checkpoint at {name[:200]}"
    raise CheckpointError(message, hint="give a folder, a config.json, a .gguf file or a hub id (owner/name)")


def _local(path: Path, *, headers: bool) -> Opened:
    if path.is_dir():
        return _folder(path, headers=headers)
    if path.suffix == ".json":
        return _document(path)
    if path.suffix == ".gguf":
        from quantlab.checkpoint.gguf_facts import open_gguf

        return open_gguf([path], str(path))
    if path.suffix == ".safetensors":
        header = read_header(path)
        listing = Listing({}, (path.name,), {path.name: header.size})
        return assemble(str(path), listing, {path.name: header}, path.parent)
    message = f"{path} is not a checkpoint"
    raise CheckpointError(message, hint="give a folder, a config.json, a .gguf or .safetensors file, or a hub id")


def _folder(path: Path, *, headers: bool) -> Opened:
    listing = list_folder(path)
    ggufs = [path / name for name in listing.sizes if name.endswith(".gguf")]
    if not listing.documents and not listing.weights and not listing.pickles:
        if ggufs:
            from quantlab.checkpoint.gguf_facts import open_gguf

            return open_gguf(ggufs, str(path))
        message = f"{path} holds no checkpoint: neither config.json nor weights"
        raise CheckpointError(message, hint="give the folder that holds config.json")
    found = {}
    if headers and not listing.adapter:
        for name in listing.weights:
            file = resolve(path, name)
            if file.is_file():
                found[name] = read_header(file, name)
    return assemble(str(path), listing, found, path)


def _document(path: Path) -> Opened:
    """One JSON file: a config (with the companions beside it), or a companion alone."""
    documents = {path.name: read_json(path)}
    if path.name == "config.json":
        for beside in sorted(path.parent.glob("*.json")):
            if is_companion(beside.name):
                documents[beside.name] = read_json(resolve(path.parent, beside.name))
    elif not is_companion(path.name):
        documents = {"config.json": documents[path.name]}
    return assemble(str(path), Listing(documents), {}, path.parent)


def assemble(path: str, listing: Listing, headers: Mapping[str, Header], folder: Path | None) -> Opened:
    """Put together the facts of a checkpoint from its JSON files and headers."""
    recognition = recognise(listing.config, listing.companions)
    tensors: dict[str, TensorInfo] = {}
    findings = list(recognition.findings)
    for header in headers.values():
        for name, tensor in header.tensors.items():
            if name in tensors:
                message = f"tensor {name} is in {tensors[name].file} and in {tensor.file}"
                findings.append(Finding("duplicate-tensor", "error", tensor.file, message, "delete the stale shard"))
            tensors[name] = tensor
    form = "adapter" if listing.adapter else recognition.format
    layout = arrange(tensors, form, recognition.scheme)
    scheme = refine(recognition.scheme, layout, form)
    if scheme != recognition.scheme:
        layout = arrange(tensors, form, scheme)
    storage = number(read_section("formats").get(form.partition("/")[0], {}).get("storage_bits"))
    parameters, sizes = measure(layout, scheme, storage) if tensors else _stated(listing)
    facts = CheckpointFacts(
        path=path,
        format=form,
        scheme=scheme,
        architecture=recognition.architecture,
        quantization_config=recognition.quantization_config,
        ignore=recognition.ignore,
        tensors=tensors,
        parameters=parameters,
        bytes=sizes,
        experts=_experts(recognition, layout, tensors),
        tied_embeddings=recognition.architecture.tied_embeddings,
        findings=tuple(findings),
        config=listing.config,
    )
    return Opened(facts, listing, layout, headers, recognition, folder)


def _stated(listing: Listing) -> tuple[dict[str, int], dict[str, int]]:
    """What the index says of sizes, where no header was read."""
    parameters = integer(listing.index_metadata.get("total_parameters"))
    size = integer(listing.index_metadata.get("total_size"))
    return ({"total": parameters} if parameters else {}, {"total": size} if size else {})


def _experts(recognition: Recognition, layout: Layout, tensors: Mapping[str, TensorInfo]) -> dict[str, Any] | None:
    """``count`` and ``per_token`` from the config, ``fused`` (one tensor a layer) and ``quantized`` from headers."""
    shape = recognition.architecture
    if not shape.num_experts or shape.num_experts < 2:
        return None
    expert = re.compile(r"\bexperts\b(?!.*shared)")
    names = [name for name in tensors if expert.search(name)]
    fused = None if not names else not any(re.search(r"\bexperts\.\d+\.", name) for name in names)
    quantized = None if not names else any(expert.search(module) for module in layout.layers)
    return {"count": shape.num_experts, "per_token": shape.experts_per_token, "fused": fused, "quantized": quantized}


def with_findings(opened: Opened, findings: tuple[Finding, ...]) -> Opened:
    """Return the same checkpoint with more findings."""
    return replace(opened, facts=replace(opened.facts, findings=opened.facts.findings + findings))
