"""What of an unfinished conversion is done, so that ``--resume`` need not do it again.

One JSON object a line in the staging folder: first what was asked of which source by which version, then each
finished shard. A shard counts when its line is there and the file has the size that the line names; a line that was
cut off by a kill is no line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantlab.errors import UsageError

JOURNAL = "journal.jsonl"


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """One finished shard.

    Attributes:
        file: its name.
        size: bytes.
        tensors: bytes by tensor name.
        changed: layers of another scheme than planned: name, scheme (``WeightFormat`` fields), reason, requantized.
    """

    file: str
    size: int
    tensors: dict[str, int]
    changed: list[dict[str, Any]]


class Journal:
    """The journal of one staging folder.

    Args:
        staging: the folder.
        identity: what must be the same for the work to go on: version, recipe, source files.
    """

    def __init__(self, staging: Path, identity: Mapping[str, Any]) -> None:
        self._staging = staging
        self._path = staging / JOURNAL
        self._identity = dict(identity)

    def begin(self) -> dict[str, ShardRecord]:
        """Return the finished shards; starts a new journal where there is none.

        Files that no line names are removed.

        Raises:
            UsageError: the journal is of another source, recipe or version.
        """
        lines = self._lines()
        if not lines:
            self._clear(set())
            self._append(self._identity)
            return {}
        self._compare(lines[0])
        records = [ShardRecord(**line) for line in lines[1:]]
        done = {record.file: record for record in records if self._intact(record)}
        self._clear(set(done))
        return done

    def finished(self, record: ShardRecord) -> None:
        """Note a shard whose file has its final name."""
        self._append({"file": record.file, "size": record.size, "tensors": record.tensors, "changed": record.changed})

    def remove(self) -> None:
        """Remove the journal: the output is whole."""
        self._path.unlink(missing_ok=True)

    def _lines(self) -> list[dict[str, Any]]:
        try:
            text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            self._path.write_text(whole, encoding="utf-8")
        return [json.loads(line) for line in whole.splitlines()]

    def _compare(self, old: Mapping[str, Any]) -> None:
        now = json.loads(json.dumps(self._identity))
        for key, value in now.items():
            if old.get(key) != value:
                raise UsageError(
                    f"the unfinished conversion in {self._staging} has another {key}: "
                    f"{_difference(old.get(key), value)}",
                    hint="remove that folder and start again",
                )

    def _intact(self, record: ShardRecord) -> bool:
        path = self._staging / record.file
        return path.is_file() and path.stat().st_size == record.size

    def _clear(self, keep: set[str]) -> None:
        for path in self._staging.iterdir():
            if path.is_file() and path.name not in keep and path.name != JOURNAL:
                path.unlink()

    def _append(self, content: Mapping[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(dict(content), separators=(",", ":")) + "\n")


def _difference(old: object, new: object) -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            if old.get(key) != new.get(key):
                return f"{key} was {old.get(key)}, is {new.get(key)}"
    return f"was {old}, is {new}"
