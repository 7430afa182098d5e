"""Where the facts lie, and how they are read fast.

The folder ``matrix/`` is found inside an installed wheel (``quantlab/_matrix``), else beside the package (a
clone or an editable install), else where ``QUANTLAB_MATRIX`` points. YAML is parsed once: each section is
kept as JSON in the user's cache, keyed by the names, sizes and times of its files, so that a query reads one
JSON file and imports no YAML.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from quantlab.errors import DataError

SCHEMA = "1"
"""Changed whenever compiled sections of older releases must not be read."""


def data_folder() -> Path:
    """Return the folder of the matrix data.

    Raises:
        DataError: no folder is found, so the installation is broken.
    """
    package = Path(__file__).resolve().parent.parent
    named = os.environ.get("QUANTLAB_MATRIX")
    candidates = [Path(named)] if named else [package / "_matrix", package.parent / "matrix"]
    for folder in candidates:
        if (folder / "gpus").is_dir():
            return folder
    message = f"the matrix data is not at {' or '.join(str(c) for c in candidates)}"
    raise DataError(message, hint="reinstall quantlab, or point QUANTLAB_MATRIX at a folder of matrix data")


def cache_folder() -> Path:
    """Return the user's cache folder of quantlab (not created)."""
    root = os.environ.get("QUANTLAB_CACHE") or os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "quantlab"


def read_section(name: str, *, folder: Path | None = None) -> dict[str, Any]:
    """Return one section of the data: file path inside the section, without suffix, to its content.

    ``read_section("gpus")`` gives ``{"amd": ..., "nvidia": ...}``; ``read_section("support")`` has keys such
    as ``"vllm/gptq"``; ``read_section("presets")`` reads the single file ``presets.yaml`` under the key
    ``"presets"``.

    Raises:
        DataError: a file is not YAML.
    """
    base = data_folder() if folder is None else folder
    files = _files(base, name)
    key = _fingerprint(base, files)
    cached = cache_folder() / "matrix" / f"{name}-{key}.json"
    try:
        with cached.open(encoding="utf-8") as file:
            return dict(json.load(file))
    except (OSError, ValueError):
        section = (
            {path.relative_to(base / name).with_suffix("").as_posix(): _parse(path) for path in files}
            if (base / name).is_dir()
            else {name: _parse(files[0])}
        )
        _write_quietly(cached, section)
        return section


@lru_cache(maxsize=64)
def section(name: str) -> Any:
    """Return a section of the installed data, read once a process; a single file gives its content itself."""
    content = read_section(name)
    return content[name] if list(content) == [name] else content


def _files(base: Path, name: str) -> list[Path]:
    if (base / name).is_dir():
        return sorted((base / name).rglob("*.yaml"))
    single = base / f"{name}.yaml"
    if not single.is_file():
        message = f"the matrix data has no section {name!r} in {base}"
        raise DataError(message)
    return [single]


def _fingerprint(base: Path, files: list[Path]) -> str:
    digest = hashlib.sha256(f"{SCHEMA} {base}".encode())
    for path in files:
        status = path.stat()
        digest.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:24]


def _parse(path: Path) -> Any:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        with path.open(encoding="utf-8") as file:
            content = yaml.load(file, Loader=loader)  # noqa: S506 - CSafeLoader is the safe loader in C
    except yaml.YAMLError as error:
        message = f"{path} is not YAML: {error}"
        raise DataError(message) from error
    return json.loads(json.dumps(content, default=str))


def _write_quietly(path: Path, section: dict[str, Any]) -> None:
    """Keep the compiled section where that is possible; a read-only cache costs time, never an error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(section, file, separators=(",", ":"))
        Path(temporary).replace(path)
    except OSError:
        return
