"""Answers a question from the statements.

Every statement whose conditions hold is a candidate; the one with the most conditions wins (``precedence`` decides
between equals). Its limits are then tested: a violated one turns the answer into ``fails`` and names both values.
No statement, no verdict: the answer is ``unknown`` and says what is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from quantlab.matrix.load import MatrixData, load
from quantlab.matrix.model import Division, Scalar, Statement, Test, Verdict
from quantlab.matrix.versions import MAIN, Version, parse_range, point

_WORST = ("fails", "silent-wrong-result", "works-with-fallback", "works", "unknown")


@dataclass(frozen=True, slots=True)
class Query:
    """One question, normalized.

    Attributes:
        facts: flat facts of the checkpoint and model (``quantlab.matrix.subject``).
        engine: engine id, or None for the main engines.
        gpus: architecture ids, several where the question names several; empty where it names none.
        gpu_stated: False where ``gpus`` are only typical ones of a vendor.
        versions: package to version.
        operation: what is being done; None means load and run.
        unread: parts of the question that nothing could be made of.
    """

    facts: Mapping[str, Scalar]
    engine: str | None = None
    gpus: tuple[str, ...] = ()
    gpu_stated: bool = True
    versions: Mapping[str, Version] = field(default_factory=dict)
    operation: str | None = None
    unread: tuple[str, ...] = ()


def answer(query: Query, data: MatrixData | None = None) -> Verdict:
    """Return the verdict of one question, without a way out (``quantlab.matrix.wayout`` adds it)."""
    data = load() if data is None else data
    if query.engine is None:
        return _over_engines(query, data)
    verdicts = [_on_gpu(query, gpu, data) for gpu in query.gpus or (None,)]
    chosen = _combined(verdicts, stated=query.gpu_stated)
    return chosen if query.gpu_stated or chosen.gpu is None else _assumed(chosen, verdicts)


def _over_engines(query: Query, data: MatrixData) -> Verdict:
    """No engine named: the best of the main engines."""
    verdicts = [answer(replace(query, engine=engine.id), data) for engine in data.engines.values() if engine.main]
    order = ("works", "works-with-fallback", "silent-wrong-result", "fails", "unknown")
    return min(verdicts, key=lambda verdict: order.index(verdict.outcome))


def _combined(verdicts: list[Verdict], *, stated: bool) -> Verdict:
    """Several gpus named: what holds for all, so the worst known answer; a typical gpu: the first known one."""
    known = [verdict for verdict in verdicts if verdict.outcome != "unknown"]
    if not known:
        return verdicts[0]
    return min(known, key=lambda verdict: _WORST.index(verdict.outcome)) if stated else known[0]


def _assumed(chosen: Verdict, verdicts: list[Verdict]) -> Verdict:
    outcomes = {verdict.outcome for verdict in verdicts if verdict.outcome != "unknown"}
    if len(outcomes) < 2:
        return chosen
    return replace(chosen, reason=f"{chosen.reason} (no gpu named; {chosen.gpu} assumed)")


def _on_gpu(query: Query, gpu: str | None, data: MatrixData) -> Verdict:
    engine = str(query.engine)
    for statement in data.statements_for(engine):
        if applies(statement, query, gpu, data):
            return _verdict(statement, query, gpu, engine)
    return Verdict("unknown", _what_is_missing(query, gpu, data), engine=engine, gpu=gpu)


def candidates(query: Query, gpu: str | None, data: MatrixData) -> Iterable[Statement]:
    """Yield every statement that applies, best first (for explanations and lint)."""
    return (item for item in data.statements_for(str(query.engine)) if applies(item, query, gpu, data))


def applies(statement: Statement, query: Query, gpu: str | None, data: MatrixData) -> bool:
    """Return whether all conditions of a statement hold for the query on one gpu."""
    when = statement.when
    if when.gpus is not None and gpu not in when.gpus:
        return False
    if query.operation is None:
        if "load" not in when.operations and "inference" not in when.operations:
            return False
    elif query.operation not in when.operations:
        return False
    if not all(test.holds(query.facts.get(name)) for name, test in when.facts.items()):
        return False
    for package, accepted in when.versions.items():
        version = version_of(package, query, data)
        if version is None or version not in accepted:
            return False
    return when.undivided is None or _clash(when.undivided, query.facts) is not None


def version_of(package: str, query: Query, data: MatrixData) -> Version | None:
    """Return the version asked about, or the newest known release."""
    named = query.versions.get(package)
    if named is not None:
        return named
    history = data.packages.get(package)
    return Version(history.releases[-1].version, point(history.releases[-1].version)) if history else None


def _verdict(statement: Statement, query: Query, gpu: str | None, engine: str) -> Verdict:
    clash = _violated(statement, query.facts) or _too_old(statement, query)
    where = f"on {gpu}" if gpu is not None and statement.when.gpus is not None else None
    if clash is not None:
        reason = f"{statement.kernel or engine} needs {clash}"
        return Verdict(
            "fails", reason, None, statement.kernel, statement.fix, statement.confidence, statement.sources,
            statement.id, engine, gpu,
        )  # fmt: skip
    return Verdict(
        statement.outcome, _reason(statement, query, where), statement.mode, statement.kernel, statement.fix,
        statement.confidence, statement.sources, statement.id, engine, gpu,
    )  # fmt: skip


def _reason(statement: Statement, query: Query, where: str | None) -> str:
    """Name the rule and the values it was decided on."""
    said = [where] if where else []
    said += [f"{package} {text(query.versions[package])} is {accepted.text}"
            for package, accepted in statement.when.versions.items() if package in query.versions]  # fmt: skip
    if statement.when.undivided is not None:
        clash = _clash(statement.when.undivided, query.facts)
        said += [clash] if clash else []
    return statement.reason + (f" ({'; '.join(said)})" if said else "")


def text(version: Version) -> str:
    """Return a version for people; a point on the main branch says so."""
    if not version.placed:
        return f"{version.text!r}, which could not be placed,"
    return version.text if not (len(version.point) > 3 and version.point[3] == MAIN) else f"{version.text!r}"


def _violated(statement: Statement, facts: Mapping[str, Scalar]) -> str | None:
    for name, test in statement.limits.items():
        value = facts.get(name)
        if value is not None and not test.holds(value):
            return f"{name} {_test_words(test)}, and it is {value}"
    for division in statement.divides:
        clash = _clash(division, facts)
        if clash is not None:
            return clash
    return None


def _too_old(statement: Statement, query: Query) -> str | None:
    """Return the package that the question names in a version which the statement does not accept."""
    for package, needed in statement.requires.items():
        version = query.versions.get(package)
        if version is not None and needed[:1] in "<>=" and version not in parse_range(needed):
            return f"{package} {needed}, and it is {text(version)}"
    return None


def _test_words(test: Test) -> str:
    return test.words()


def _clash(division: Division, facts: Mapping[str, Scalar]) -> str | None:
    """Return what does not divide, or None where it does or is not known."""
    dimension = facts.get(division.dimension)
    by = facts.get(division.by) if isinstance(division.by, str) else division.by
    after = facts.get(division.after) if division.after else 1
    numbers = (dimension, by, 1 if after is None else after)
    if not all(isinstance(number, int) and not isinstance(number, bool) for number in numbers):
        return None
    size, unit, parts = (int(number) for number in numbers if number is not None)
    if size <= 0 or unit <= 0 or parts <= 0:
        return None
    shard = f"{division.dimension} {size}" + (f" / {parts} gpus" if parts > 1 else "")
    if size % parts or (size // parts) % unit:
        return f"{shard} to be a multiple of {division.by if isinstance(division.by, int) else f'{division.by} {unit}'}"
    return None


def _what_is_missing(query: Query, gpu: str | None, data: MatrixData) -> str:
    engine = str(query.engine)
    subject = query.facts.get("scheme") or query.facts.get("format") or "this checkpoint"
    if engine not in data.engines:
        return f"no statement speaks of the engine {engine!r}"
    parts = [f"no statement covers {subject} in {data.engines[engine].title}"]
    if gpu is not None:
        parts.append(f"on {gpu}")
    if query.operation is not None:
        parts.append(f"for {query.operation}")
    if query.versions:
        parts.append("with " + ", ".join(f"{name} {version.text}" for name, version in query.versions.items()))
    missing = [word for word, there in (("a gpu", query.gpus), ("a format", query.facts.get("format"))) if not there]
    tail = f"; the question lacks {' and '.join(missing)}" if missing else ""
    tail += f"; not understood: {', '.join(query.unread)}" if query.unread else ""
    return " ".join(parts) + tail
