"""What changed between two states of the matrix: statements, and the answers that they change."""

from __future__ import annotations

import io
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from quantlab.errors import UsageError
from quantlab.matrix.data import data_folder
from quantlab.matrix.load import MatrixData, load
from quantlab.matrix.table import Table, build_table


@dataclass(frozen=True, slots=True)
class ChangedCell:
    """An answer that is another one now; None where the method, engine or gpu was not there."""

    engine: str
    method: str
    gpu: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class Difference:
    """Statement ids by what happened to them, and changed answers."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    cells: tuple[ChangedCell, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of ``quantlab matrix diff``."""
        return {
            "added": list(self.added),
            "removed": list(self.removed),
            "changed": list(self.changed),
            "cells": [asdict(cell) for cell in self.cells],
        }


@contextmanager
def state(name: str) -> Iterator[Path]:
    """Yield the folder of a state of the data: a folder, or a git revision of the clone that holds the data.

    Raises:
        UsageError: neither.
    """
    folder = Path(name)
    if (folder / "gpus").is_dir():
        yield folder.resolve()
        return
    current = data_folder()
    done = subprocess.run(
        ["git", "-C", str(current), "archive", "--format=tar", name, "."], capture_output=True, check=False
    )
    if done.returncode != 0:
        raise UsageError(
            f"{name!r} is neither a folder of matrix data nor a git revision",
            hint="name a folder that holds gpus/ and support/, or a revision of a clone, such as HEAD~1",
        )
    with tempfile.TemporaryDirectory(prefix="quantlab-matrix-") as temporary:
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            archive.extractall(temporary, filter="data")
        yield Path(temporary)


def difference(before: Path, after: Path) -> Difference:
    """Return what changed from one folder of data to another."""
    old, new = load(before), load(after)
    earlier = {item.id: _content(item) for item in old.statements}
    later = {item.id: _content(item) for item in new.statements}
    return Difference(
        added=tuple(sorted(later.keys() - earlier.keys())),
        removed=tuple(sorted(earlier.keys() - later.keys())),
        changed=tuple(sorted(name for name in earlier.keys() & later.keys() if earlier[name] != later[name])),
        cells=tuple(_cells(_answers(old), _answers(new))),
    )


def _content(statement: Any) -> dict[str, Any]:
    content = asdict(statement)
    del content["file"]
    return content


def _answers(data: MatrixData) -> dict[tuple[str, str, str], str]:
    table: Table = build_table(data)
    return {(cell.engine, cell.method, cell.gpu): cell.outcome for cell in table.cells}


def _cells(before: dict[tuple[str, str, str], str], after: dict[tuple[str, str, str], str]) -> Iterator[ChangedCell]:
    for key in dict.fromkeys([*before, *after]):
        if before.get(key) != after.get(key):
            yield ChangedCell(*key, before.get(key), after.get(key))
