"""The matrix as a table: one cell for each engine, method and gpu, each the verdict of a query.

Nothing is stored twice: a cell is what ``quantlab check METHOD --gpu G --engine E`` answers for the newest
release of the engine, with the limits of the statement that decided as its footnote.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from quantlab.errors import UnknownNameError
from quantlab.matrix.gpus import find_gpu
from quantlab.matrix.load import Engine, MatrixData
from quantlab.matrix.model import Division, Statement
from quantlab.matrix.query import Query, answer
from quantlab.matrix.question import engine_id
from quantlab.matrix.subject import from_words
from quantlab.matrix.versions import read_version


@dataclass(frozen=True, slots=True)
class Cell:
    """What one engine does with one method on one gpu.

    Attributes:
        limits: conditions on the checkpoint, what must be installed, and switches, in words.
    """

    engine: str
    method: str
    gpu: str
    outcome: str
    mode: str | None
    kernel: str | None
    limits: str
    reason: str
    fix: str | None
    confidence: str
    sources: tuple[str, ...]
    statement: str | None


@dataclass(frozen=True, slots=True)
class Table:
    """Cells in the order of engines, methods, gpus.

    Attributes:
        engines: engine id to its title and the release that the cells speak of.
        methods: method id to title.
        gpus: architecture ids.
        backends: architecture id to its backend.
    """

    engines: dict[str, str]
    methods: dict[str, str]
    gpus: tuple[str, ...]
    backends: dict[str, str]
    cells: tuple[Cell, ...]

    def cell(self, engine: str, method: str, gpu: str) -> Cell:
        """Return one cell."""
        width = len(self.gpus)
        row = list(self.engines).index(engine) * len(self.methods) + list(self.methods).index(method)
        return self.cells[row * width + self.gpus.index(gpu)]

    def rows(self, engine: str) -> Iterable[tuple[str, tuple[Cell, ...]]]:
        """Yield each method of an engine that anything is known of, with its cells in the order of the gpus."""
        for method in self.methods:
            cells = tuple(self.cell(engine, method, gpu) for gpu in self.gpus)
            if any(cell.outcome != "unknown" for cell in cells):
                yield method, cells

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of ``quantlab matrix``."""
        return {
            "engines": self.engines,
            "methods": self.methods,
            "gpus": self.backends,
            "cells": [{**asdict(cell), "sources": list(cell.sources)} for cell in self.cells],
        }


def build_table(
    data: MatrixData,
    *,
    methods: Sequence[str] = (),
    engines: Sequence[str] = (),
    gpus: Sequence[str] = (),
    backends: Sequence[str] = (),
    versions: Mapping[str, str] | None = None,
) -> Table:
    """Ask every cell.

    Args:
        data: the loaded matrix.
        methods: method ids; all by default.
        engines: engine names; the main engines by default.
        gpus: architecture ids, products or groups; all gpus of ``backends`` by default.
        backends: backends whose gpus are shown; all by default.
        versions: installed packages and versions; the newest releases by default.

    Raises:
        UnknownNameError: a name that the data does not know.
    """
    chosen_methods = _methods(data, methods)
    chosen_engines = _engines(data, engines)
    chosen_gpus = _gpus(data, gpus, backends)
    statements = {statement.id: statement for statement in data.statements}
    facts = {method: from_words({"method": method}) for method in chosen_methods}
    read = {
        name: read_version(text, data.packages[name]) if name in data.packages else read_version(text)
        for name, text in (versions or {}).items()
    }
    known = {name: version for name, version in read.items() if version is not None}
    cells = tuple(
        _cell(data, statements, Query(facts[method], engine.id, (gpu,), versions=known), method)
        for engine in chosen_engines
        for method in chosen_methods
        for gpu in chosen_gpus
    )
    backends_of = {gpu: data.gpus.backends.get(gpu, "") for gpu in chosen_gpus}
    titles = {method: str(data.methods[method].get("title", method)) for method in chosen_methods}
    return Table({engine.id: _titled(engine) for engine in chosen_engines}, titles, chosen_gpus, backends_of, cells)


def _titled(engine: Engine) -> str:
    return f"{engine.title} {engine.releases[-1].version}" if engine.releases else engine.title


def _methods(data: MatrixData, names: Sequence[str]) -> list[str]:
    for name in names:
        if name.lower() not in data.methods:
            raise UnknownNameError("method", name, data.methods)
    return [name.lower() for name in names] or list(data.methods)


def _engines(data: MatrixData, names: Sequence[str]) -> list[Engine]:
    found = []
    for name in names:
        known = engine_id(name, data)
        if known is None:
            raise UnknownNameError("engine", name, data.engines)
        found.append(data.engines[known])
    return found or [engine for engine in data.engines.values() if engine.main]


def _gpus(data: MatrixData, names: Sequence[str], backends: Sequence[str]) -> tuple[str, ...]:
    known = set(data.gpus.backends.values())
    for backend in backends:
        if backend not in known:
            raise UnknownNameError("backend", backend, known)
    found: list[str] = []
    for name in names:
        found += data.gpus.groups.get(name.lower()) or [find_gpu(data.gpus, name)]
    if not names:
        found = [gpu for gpu, backend in data.gpus.backends.items() if not backends or backend in backends]
    elif backends:
        found = [gpu for gpu in found if data.gpus.backends.get(gpu) in backends]
    return tuple(dict.fromkeys(found))


def _cell(data: MatrixData, statements: dict[str, Statement], query: Query, method: str) -> Cell:
    verdict = answer(query, data)
    decided = statements.get(verdict.statement or "")
    return Cell(
        engine=str(query.engine),
        method=method,
        gpu=query.gpus[0],
        outcome=verdict.outcome,
        mode=verdict.mode,
        kernel=verdict.kernel,
        limits=limit_words(decided) if decided is not None and verdict.ok else "",
        reason=verdict.reason,
        fix=verdict.fix,
        confidence=verdict.confidence,
        sources=verdict.sources,
        statement=verdict.statement,
    )


def limit_words(statement: Statement) -> str:
    """Return a statement's limits, divisibility, requirements and switches in words."""
    parts = [f"{fact} {test.words()}" for fact, test in statement.limits.items()]
    parts += [_division_words(division) for division in statement.divides]
    parts += [f"needs {package} {accepted}".rstrip() for package, accepted in statement.requires.items()]
    parts += [f"{variable}={value}" for variable, value in statement.environment.items()]
    return "; ".join(parts)


def _division_words(division: Division) -> str:
    after = f" / {division.after}" if division.after else ""
    return f"{division.dimension}{after} a multiple of {division.by}"
