"""Which checkpoint it was: hashes of config, index and weights."""

from __future__ import annotations

import hashlib
from pathlib import Path

from quantlab.checkpoint.facts import CheckpointFacts
from quantlab.evaluation.result import CheckpointIdentity

HASHED = ("config.json", "quantize_config.json", "hf_quant_config.json", "quant_config.json")


def identify(facts: CheckpointFacts) -> CheckpointIdentity:
    """Return the identity of a local checkpoint; reads every weight file once."""
    path = Path(facts.path)
    folder = path if path.is_dir() else path.parent
    weights = sorted({info.file for info in facts.tensors.values()})
    others = [name for name in HASHED if (folder / name).is_file()]
    others += [item.name for item in sorted(folder.glob("*.index.json"))]
    hashes = {name: file_hash(folder / name) for name in [*others, *weights]}
    return CheckpointIdentity(
        path=str(path),
        name=path.resolve().name,
        format=facts.format,
        scheme=facts.to_dict()["scheme"],
        bytes=sum((folder / name).stat().st_size for name in weights),
        sha256=hashes,
    )


def file_hash(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_hash(identity: CheckpointIdentity) -> str:
    """Return one hash for the whole checkpoint."""
    lines = "".join(f"{name} {value}\n" for name, value in sorted(identity.sha256.items()))
    return hashlib.sha256(lines.encode()).hexdigest()
