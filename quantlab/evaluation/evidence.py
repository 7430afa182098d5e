"""Evidence: a result kept as proof for or against a statement of the matrix.

A file is named after the hash of its content, so it cannot be changed unnoticed and two of the same merge. It holds
the result and, under ``statement``, the keys by which the matrix finds what it proves.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tarfile
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from quantlab.errors import UsageError
from quantlab.evaluation.result import Result

NAME = re.compile(r"^[0-9a-f]{64}\.json$")
MEMBER_BYTES = 16 << 20
"""Largest evidence file that an import reads."""

MACHINE_KEYS = ("path", "log", "last_lines")


def user_folder() -> Path:
    """Return where ``--record`` keeps evidence: the user's data folder."""
    root = os.environ.get("QUANTLAB_DATA") or os.environ.get("XDG_DATA_HOME")
    return (Path(root) if root else Path.home() / ".local" / "share") / "quantlab" / "evidence"


def record(result: Result | Mapping[str, Any], folder: Path | None = None) -> Path:
    """Keep a result as evidence and return its file."""
    content = result.to_dict() if isinstance(result, Result) else dict(result)
    if content.get("environment", {}).get("gpu") is None:
        raise UsageError("the result does not say on which gpu it was measured", hint="the worker ended too early")
    evidence = {"statement": statement(content), "result": _without_machine(content)}
    return _write(folder or user_folder(), evidence)


def statement(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of the claim that a result proves or refutes."""
    environment, verdict = content["environment"], content["verdict"]
    versions = dict(environment.get("versions") or {})
    versions["torch"] = environment.get("torch")
    backend = "rocm" if environment.get("rocm") else "cuda" if environment.get("cuda") else "cpu"
    if str(environment.get("gpu", "")).startswith("cpu-"):
        backend = "cpu"
    return {
        "engine": content["engine"],
        "format": content["checkpoint"]["format"],
        "scheme": content["checkpoint"]["scheme"],
        "gpu": environment["gpu"],
        "backend": backend,
        "versions": versions,
        "operation": "inference",
        "outcome": _outcome(content["load"], verdict),
        "mode": "dequantized" if content["load"].get("dequantized", "no") != "no" else None,
        "kernels": content["load"].get("kernels", {}),
        "date": content.get("date", ""),
    }


def _outcome(load: Mapping[str, Any], verdict: Mapping[str, Any]) -> str:
    """Return the matrix's word: a load error is a failure, damage behind a clean load is silently wrong."""
    if load.get("error"):
        return "fails"
    if verdict.get("damaged") or verdict.get("quality") == "ruined":
        return "silent-wrong-result"
    return "works-with-fallback" if load.get("dequantized", "no") != "no" else "works"


def _without_machine(value: Any) -> Any:
    """Return the result without paths of this machine."""
    if isinstance(value, Mapping):
        return {key: _without_machine(item) for key, item in value.items() if key not in MACHINE_KEYS}
    return [_without_machine(item) for item in value] if isinstance(value, list) else value


def _write(folder: Path, evidence: Mapping[str, Any]) -> Path:
    content = (json.dumps(evidence, indent=1, sort_keys=True) + "\n").encode()
    path = folder / f"{hashlib.sha256(content).hexdigest()}.json"
    folder.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part")
    temporary.write_bytes(content)
    temporary.replace(path)
    return path


def read_folder(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield every evidence file of a folder with its content, in the order of names.

    Raises:
        UsageError: a file's content is not what its name says.
    """
    for path in sorted(folder.glob("*.json")):
        if NAME.match(path.name):
            yield path, _checked(path.name, path.read_bytes())


def _checked(name: str, content: bytes) -> dict[str, Any]:
    if hashlib.sha256(content).hexdigest() != name.removesuffix(".json"):
        raise UsageError(f"the evidence {name} was changed: its content has another hash than its name")
    try:
        evidence = json.loads(content)
    except ValueError as error:
        raise UsageError(f"the evidence {name} is not JSON: {error}") from error
    if not isinstance(evidence, dict) or not isinstance(evidence.get("statement"), dict) or "result" not in evidence:
        raise UsageError(f"the evidence {name} has no statement and result")
    return evidence


def bundle(output: Path, folder: Path | None = None) -> int:
    """Write all evidence of a folder into one archive to send; return how many files.

    Raises:
        UsageError: there is none.
    """
    found = list(read_folder(folder or user_folder()))
    if not found:
        raise UsageError(f"no evidence in {folder or user_folder()}", hint="quantlab evaluate ... --record")
    output.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(output, "w:gz") as archive:
        for path, _ in found:
            content = path.read_bytes()
            member = tarfile.TarInfo(path.name)
            member.size = len(content)
            archive.addfile(member, BytesIO(content))
    return len(found)


def import_bundle(source: Path, folder: Path | None = None) -> int:
    """Take the evidence out of somebody's archive; return how many files are new.

    Only plain files with a hash for a name, whose content has that hash, are taken; nothing else is written.

    Raises:
        UsageError: it is no such archive.
    """
    target = folder or user_folder()
    new = 0
    try:
        with tarfile.open(source, "r:gz") as archive:
            for member in archive:
                new += _import_member(archive, member, target)
    except (OSError, tarfile.TarError) as error:
        raise UsageError(f"{source} is not a bundle of evidence: {error}") from error
    return new


def _import_member(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> int:
    if not member.isfile() or not NAME.match(member.name) or member.size > MEMBER_BYTES:
        raise UsageError(f"the bundle holds {member.name!r}, which is no evidence")
    file = archive.extractfile(member)
    assert file is not None
    content = file.read()
    _checked(member.name, content)
    if (target / member.name).is_file():
        return 0
    target.mkdir(parents=True, exist_ok=True)
    (target / member.name).write_bytes(content)
    return 1
