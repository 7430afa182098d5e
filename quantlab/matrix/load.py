"""Reads the statements, engines, words and gpu groups from ``matrix/`` into the typed model.

Whatever cannot be right does not load: unknown ids, empty ranges, outcomes without a source. The slower rules
(overlaps, prose) are lint modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from quantlab.errors import DataError
from quantlab.matrix.data import read_section
from quantlab.matrix.gpus import GpuGroups, read_groups
from quantlab.matrix.model import (
    CONFIDENCES,
    FACTS,
    MODES,
    OPERATIONS,
    OUTCOMES,
    RUNNING,
    Confidence,
    Division,
    Mode,
    Outcome,
    Statement,
    Test,
    When,
)
from quantlab.matrix.versions import History, Range, Release, parse_range

_KEYS = {
    "id", "engine", "when", "outcome", "mode", "kernel", "reason", "fix", "limits", "divides", "requires",
    "environment", "confidence", "sources", "precedence",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Engine:
    """A program that loads checkpoints, or a library that makes them.

    Attributes:
        id: engine id.
        title: name for people.
        kind: ``engine``, ``library`` or ``quantizer``.
        package: distribution whose version counts, or None.
        aliases: other names.
        releases: known releases, oldest first.
        pulls: dates of some pull requests, ascending.
        main: listed when a question names no engine.
        url: its home page.
        follows: engine that it is built on, whose statements hold where none of its own does.
    """

    id: str
    title: str
    kind: str = "engine"
    package: str | None = None
    aliases: tuple[str, ...] = ()
    releases: tuple[Release, ...] = ()
    pulls: tuple[tuple[int, str], ...] = ()
    main: bool = False
    url: str | None = None
    follows: str | None = None


@dataclass(frozen=True, slots=True)
class MatrixData:
    """Everything that a query needs, indexed by engine."""

    statements: tuple[Statement, ...]
    engines: Mapping[str, Engine]
    gpus: GpuGroups
    methods: Mapping[str, Mapping[str, Any]]
    words: Mapping[str, Any]
    by_engine: Mapping[str, tuple[Statement, ...]] = field(default_factory=dict)
    packages: Mapping[str, History] = field(default_factory=dict)

    def statements_for(self, engine: str) -> tuple[Statement, ...]:
        """Return the statements that speak of an engine, or of all, best first."""
        return self.by_engine.get(engine) or self.by_engine.get("any", ())


@lru_cache(maxsize=4)
def load(folder: Path | None = None) -> MatrixData:
    """Read the data once a process.

    Raises:
        DataError: a file cannot be right; names file, statement and field.
    """
    gpus = read_groups(folder)
    engines = {name: _engine(name, content) for name, content in read_section("engines", folder=folder).items()}
    known = set(read_sources(folder))
    statements = []
    for file, content in read_section("support", folder=folder).items():
        statements.extend(_file(file, content, engines, gpus, known))
    _unique(statements)
    _refuse_overlaps(statements)
    packages = {
        engine.package: History(engine.releases, engine.pulls)
        for engine in engines.values()
        if engine.package and engine.releases
    }
    methods = read_section("methods", folder=folder)
    words = read_section("words", folder=folder)["words"]
    ordered = tuple(sorted(statements, key=lambda item: item.rank, reverse=True))
    return MatrixData(ordered, engines, gpus, methods, words, _index(ordered, engines), packages)


def _refuse_overlaps(statements: list[Statement]) -> None:
    from quantlab.matrix.overlaps import overlapping

    for one, two in overlapping(statements):
        what = f"meets {two.id} ({two.file}) with as many conditions, and they disagree; give one of them a precedence"
        raise _wrong(one.file, one.id, what)


def read_sources(folder: Path | None = None) -> dict[str, Mapping[str, Any]]:
    """Return every source by id: documents and code (sources.yaml), issue and pull-request threads (threads.yaml)."""
    documents = read_section("sources", folder=folder)["sources"]
    threads = read_section("threads", folder=folder)["threads"]["threads"]
    listed = documents.get("sources", documents) if isinstance(documents, Mapping) else {}
    return {**{str(key): value for key, value in listed.items()}, **threads}


def _index(statements: tuple[Statement, ...], engines: Mapping[str, Engine]) -> dict[str, tuple[Statement, ...]]:
    own = {
        engine: tuple(item for item in statements if engine in item.engines or "any" in item.engines)
        for engine in (*engines, "any")
    }
    followed = {name: own.get(engine.follows or "", ()) for name, engine in engines.items()}
    return {
        name: found + tuple(item for item in followed.get(name, ()) if item not in found) for name, found in own.items()
    }


def _unique(statements: list[Statement]) -> None:
    seen: dict[str, str] = {}
    for statement in statements:
        if statement.id in seen:
            raise _wrong(statement.file, statement.id, f"the id occurs twice, also in {seen[statement.id]}")
        seen[statement.id] = statement.file


def _engine(name: str, content: Mapping[str, Any]) -> Engine:
    releases = tuple(Release(str(item[0]), str(item[1])) for item in content.get("releases") or ())
    return Engine(
        id=name,
        title=str(content.get("title") or name),
        kind=str(content.get("kind") or "engine"),
        package=content.get("package"),
        aliases=tuple(content.get("aliases") or ()),
        releases=releases,
        pulls=tuple((int(item[0]), str(item[1])) for item in content.get("pulls") or ()),
        main=bool(content.get("main")),
        url=content.get("url"),
        follows=content.get("follows"),
    )


def _file(
    file: str, content: Any, engines: Mapping[str, Engine], gpus: GpuGroups, sources: set[str]
) -> list[Statement]:
    if not isinstance(content, Mapping) or not isinstance(content.get("statements"), list):
        raise _wrong(file, "(file)", "needs a list under 'statements'")
    shared = content.get("engine")
    default_sources = content.get("sources") or []
    built = []
    for raw in content["statements"]:
        if not isinstance(raw, Mapping):
            raise _wrong(file, "(file)", f"a statement is not a mapping: {raw!r}")
        merged = {"engine": shared, "sources": default_sources, **raw}
        merged["when"] = {**(content.get("when") or {}), **(raw.get("when") or {})}
        built.append(_statement(f"support/{file}.yaml", merged, engines, gpus, sources))
    return built


def _statement(
    file: str, raw: Mapping[str, Any], engines: Mapping[str, Engine], gpus: GpuGroups, sources: set[str]
) -> Statement:
    name = str(raw.get("id") or "(no id)")
    if unknown := set(raw) - _KEYS:
        raise _wrong(file, name, f"unknown keys {sorted(unknown)}")
    named = _list(raw.get("engine"))
    if not named or any(engine != "any" and engine not in engines for engine in named):
        raise _wrong(file, name, f"unknown engine {named}")
    cited = tuple(_list(raw.get("sources")))
    _check_words(file, name, raw, cited, sources)
    return Statement(
        id=name,
        engines=tuple(named),
        when=_when(file, name, raw["when"], gpus),
        outcome=cast("Outcome", raw["outcome"]),
        reason=str(raw["reason"]),
        sources=cited,
        mode=cast("Mode | None", raw.get("mode")),
        kernel=raw.get("kernel"),
        fix=raw.get("fix"),
        limits={key: read_test(file, name, key, value) for key, value in (raw.get("limits") or {}).items()},
        divides=tuple(_division(file, name, item) for item in raw.get("divides") or ()),
        requires={key: str(value) for key, value in (raw.get("requires") or {}).items()},
        environment={key: str(value) for key, value in (raw.get("environment") or {}).items()},
        confidence=cast("Confidence", raw.get("confidence") or "declared"),
        precedence=int(raw.get("precedence") or 0),
        file=file,
    )


def _check_words(file: str, name: str, raw: Mapping[str, Any], cited: tuple[str, ...], sources: set[str]) -> None:
    if raw.get("outcome") not in OUTCOMES or raw.get("outcome") == "unknown":
        raise _wrong(file, name, f"outcome {raw.get('outcome')!r} is none of {', '.join(OUTCOMES[:-1])}")
    if raw.get("mode") is not None and raw["mode"] not in MODES:
        raise _wrong(file, name, f"mode {raw['mode']!r} is none of {', '.join(MODES)}")
    if (raw.get("confidence") or "declared") not in CONFIDENCES:
        raise _wrong(file, name, f"confidence {raw['confidence']!r} is none of {', '.join(CONFIDENCES)}")
    if not cited:
        raise _wrong(file, name, "has no source")
    if missing := [source for source in cited if source not in sources]:
        raise _wrong(file, name, f"cites sources that sources.yaml lacks: {', '.join(missing)}")
    if not raw.get("reason"):
        raise _wrong(file, name, "has no reason")
    partial = raw["outcome"] == "works-with-fallback" and raw.get("mode") == "native"
    if partial or (raw["outcome"] == "works-with-fallback" and not (raw.get("mode") or raw.get("limits"))):
        raise _wrong(file, name, "a fallback names its mode (not native) or its limits")


def _when(file: str, name: str, raw: Mapping[str, Any], gpus: GpuGroups) -> When:
    facts: dict[str, Test] = {}
    versions: dict[str, Range] = {}
    operations, named = RUNNING, False
    architectures: frozenset[str] | None = None
    undivided = None
    for key, value in raw.items():
        if key == "gpus":
            architectures = _gpus(file, name, _list(value), gpus)
        elif key == "versions":
            versions = {package: _range(file, name, text) for package, text in value.items()}
        elif key == "operation":
            operations, named = frozenset(_list(value)), True
            if wrong := operations - set(OPERATIONS):
                raise _wrong(file, name, f"unknown operation {sorted(wrong)}")
        elif key == "undivided":
            undivided = _division(file, name, value)
        else:
            facts[key] = read_test(file, name, key, value)
    return When(architectures, versions, operations, named, facts, undivided)


def _gpus(file: str, name: str, ids: list[str], gpus: GpuGroups) -> frozenset[str]:
    try:
        return gpus.expand(ids)
    except KeyError as error:
        raise _wrong(file, name, f"unknown gpu or group {error.args[0]!r}") from None


def _range(file: str, name: str, text: Any) -> Range:
    try:
        return parse_range(str(text))
    except ValueError as error:
        raise _wrong(file, name, str(error)) from None


def _division(file: str, name: str, raw: Any) -> Division:
    if (
        not isinstance(raw, Mapping)
        or not {"dimension", "by"} <= set(raw)
        or not set(raw) <= {"dimension", "by", "after"}
    ):
        raise _wrong(file, name, f"a division has dimension, by and maybe after, not {raw!r}")
    return Division(str(raw["dimension"]), raw["by"], raw.get("after"))


def read_test(file: str, name: str, key: str, raw: Any) -> Test:
    """Read one condition on a fact: a value, a list of values, or a mapping of bounds.

    Raises:
        DataError: the fact or the kind of condition is unknown.
    """
    if key not in FACTS:
        raise _wrong(file, name, f"unknown fact {key!r}")
    if not isinstance(raw, Mapping):
        return Test(values=frozenset(_list(raw)))
    if unknown := set(raw) - {"not", "min", "max", "multiple_of", "present", "in"}:
        raise _wrong(file, name, f"unknown condition {sorted(unknown)} on {key}")
    return Test(
        values=frozenset(_list(raw["in"])) if "in" in raw else None,
        excluded=frozenset(_list(raw.get("not"))),
        minimum=raw.get("min"),
        maximum=raw.get("max"),
        multiple_of=raw.get("multiple_of"),
        present=bool(raw.get("present", True)),
    )


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _wrong(file: str, statement: str, what: str) -> DataError:
    return DataError(f"{file}: {statement}: {what}")
