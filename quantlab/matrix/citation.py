"""Where a claim comes from: a source with the statements that cite it, or a statement with its sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quantlab.errors import UnknownNameError
from quantlab.matrix.load import MatrixData
from quantlab.matrix.model import Statement


@dataclass(frozen=True, slots=True)
class Citation:
    """A source or a statement that was asked for, with the other side of its citations.

    Attributes:
        id: what was asked for.
        kind: ``source`` or ``statement``.
        sources: source id to its entry in matrix/sources.yaml.
        statements: statements that cite the source, or the statement itself.
    """

    id: str
    kind: str
    sources: Mapping[str, Mapping[str, Any]]
    statements: tuple[Statement, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of ``quantlab matrix sources``."""
        statements = [
            {"id": item.id, "engines": list(item.engines), "outcome": item.outcome, "reason": item.reason,
             "sources": list(item.sources), "file": item.file}
            for item in self.statements
        ]  # fmt: skip
        return {"id": self.id, "kind": self.kind, "sources": dict(self.sources), "statements": statements}


def cite(name: str, data: MatrixData, sources: Mapping[str, Mapping[str, Any]]) -> Citation:
    """Find a source or a statement by id.

    Raises:
        UnknownNameError: neither has that id.
    """
    for statement in data.statements:
        if statement.id == name:
            cited = {source: sources.get(source, {}) for source in statement.sources}
            return Citation(name, "statement", cited, (statement,))
    if name not in sources:
        raise UnknownNameError("source or statement", name, [*sources, *(item.id for item in data.statements)])
    citing = tuple(item for item in data.statements if name in item.sources)
    return Citation(name, "source", {name: sources[name]}, citing)
