"""Reading JSON files of a checkpoint that a stranger wrote: bounded in size and depth, errors that name the file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quantlab.errors import CheckpointError

LARGEST = 256 * 2**20
"""Bytes; the largest honest file seen is an index of 90 MB."""

DEEPEST = 64
"""Levels of nesting; honest configs have fewer than 12."""


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        CheckpointError: the file is missing, unreadable, too large, too deep, not JSON or not an object.
    """
    try:
        size = path.stat().st_size
        if size > LARGEST:
            message = f"{path} has {size} bytes, which no honest file of this kind has"
            raise CheckpointError(
                message, hint="this file may be meant to exhaust memory; get it from its first source"
            )
        content = path.read_bytes()
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror or error}"
        raise CheckpointError(message) from error
    return parse_object(content, str(path))


def parse_object(content: bytes, name: str) -> dict[str, Any]:
    """Return the JSON object in bytes; ``name`` stands for them in errors.

    Raises:
        CheckpointError: not UTF-8, not JSON, not an object, or nested too deeply.
    """
    try:
        found = json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        message = f"{name} is not text: byte {error.start} is no UTF-8"
        raise CheckpointError(message, hint="the download may be incomplete, or a pointer or archive") from error
    except RecursionError as error:
        raise CheckpointError(f"{name} is nested more than {DEEPEST} levels deep") from error
    except ValueError as error:
        raise CheckpointError(f"{name} is not JSON: {error}", hint=_hint(content)) from error
    if not isinstance(found, dict):
        message = f"{name} holds a {type(found).__name__}, not an object"
        raise CheckpointError(message)
    _check_depth(found, name)
    return found


def _check_depth(found: dict[str, Any], name: str) -> None:
    level: list[Any] = [found]
    for _ in range(DEEPEST):
        level = [
            item
            for node in level
            for item in (node.values() if isinstance(node, Mapping) else node)
            if isinstance(item, dict | list)
        ]
        if not level:
            return
    raise CheckpointError(f"{name} is nested more than {DEEPEST} levels deep")


def _hint(content: bytes) -> str | None:
    if content.startswith(b"version https://git-lfs"):
        return "this is a Git LFS pointer; fetch the file itself (git lfs pull)"
    if not content.strip():
        return "the file is empty; the download may have been cut off"
    return None
