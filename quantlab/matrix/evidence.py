"""Evidence of our own: measurements that prove or refute a statement, by engine, format, gpu and versions.

Files ``matrix/evidence/*.json`` are written by ``quantlab evaluate --record`` and only added to. An agreeing one
makes the verdict ``verified`` for that gpu and those versions, a contradicting one makes it ``disputed``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from quantlab.checkpoint.facts import ActivationScheme, Architecture, Scheme, WeightScheme
from quantlab.matrix.data import data_folder
from quantlab.matrix.load import load
from quantlab.matrix.model import BAD, GOOD, Confidence, Verdict
from quantlab.matrix.query import Query, version_of
from quantlab.matrix.subject import from_checkpoint
from quantlab.matrix.versions import Version, point


@dataclass(frozen=True, slots=True)
class Evidence:
    """One measurement, reduced to what a statement can be compared with.

    Attributes:
        id: file stem, a content hash.
        engine: engine id.
        format: format id, with its variant.
        scheme: class of numbers, or None where the file does not tell.
        gpu: architecture id.
        versions: package to version at the measurement.
        ok: it loaded, computed the right thing and was not damaged.
        date: ``YYYY-MM-DD``.
    """

    id: str
    engine: str
    format: str
    scheme: str | None
    gpu: str
    versions: Mapping[str, str]
    ok: bool
    date: str


def weigh(verdict: Verdict, query: Query, evidence: tuple[Evidence, ...] | None = None) -> Verdict:
    """Return the verdict with the confidence that our own measurements give it."""
    known = read_evidence() if evidence is None else evidence
    fitting = [item for item in known if _speaks_of(item, verdict, query)]
    if not fitting or verdict.outcome == "unknown":
        return verdict
    asked = _asked_version(query, verdict.engine)
    measured = {item.versions.get(str(verdict.engine)) for item in fitting}
    fitting = [item for item in fitting if _same_version(item, asked)]
    if not fitting:
        told = " and ".join(sorted(version for version in measured if version))
        return replace(verdict, reason=f"{verdict.reason} (measured on {verdict.engine} {told}, not since)")
    agree = [item for item in fitting if item.ok == (verdict.outcome in GOOD)]
    against = [item for item in fitting if item.ok == (verdict.outcome in BAD)]
    cited = tuple(f"evidence:{item.id}" for item in (against or agree))
    confidence: Confidence = "disputed" if against else "verified"
    return replace(verdict, confidence=confidence, sources=(*verdict.sources, *cited))


def _speaks_of(item: Evidence, verdict: Verdict, query: Query) -> bool:
    if item.engine != verdict.engine or item.gpu != verdict.gpu:
        return False
    facts = query.facts
    form = "/".join(str(facts[key]) for key in ("format", "variant") if facts.get(key))
    if item.format not in {form, facts.get("format"), facts.get("method")}:
        return False
    return item.scheme is None or facts.get("scheme") is None or item.scheme == facts["scheme"]


def _asked_version(query: Query, engine: str | None) -> Version | None:
    """Return the version of the engine that the question is about: the newest release where it names none."""
    data = load()
    known = data.engines.get(str(engine))
    if known is None or known.package is None:
        return None
    return version_of(known.package, query, data)


def _same_version(item: Evidence, asked: Version | None) -> bool:
    measured = item.versions.get(item.engine)
    return asked is None or measured is None or asked.point == point(measured)


@lru_cache(maxsize=4)
def read_evidence(folder: Path | None = None) -> tuple[Evidence, ...]:
    """Read every evidence file; one that cannot be read is left out (``matrix lint`` reports it)."""
    base = (data_folder() if folder is None else folder) / "evidence"
    found = []
    for path in sorted(base.glob("*.json")) if base.is_dir() else ():
        item = parse_evidence(path)
        if item is not None:
            found.append(item)
    return tuple(found)


def parse_evidence(path: Path) -> Evidence | None:
    """Read one file, or None where its keys are missing or of another type."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        keys: Mapping[str, Any] = raw["statement"]
        result: Mapping[str, Any] = raw.get("result") or {}
        verdict = result.get("verdict") or {}
        versions = {str(name): str(value) for name, value in (keys.get("versions") or {}).items()}
        return Evidence(
            id=path.stem,
            engine=str(keys["engine"]),
            format=str(keys.get("format") or keys["method"]),
            scheme=_scheme_class(str(keys.get("format") or ""), keys.get("scheme")),
            gpu=str(keys["gpu"]),
            versions=versions,
            ok=bool(verdict.get("ok")) and not verdict.get("damaged"),
            date=str(keys.get("date") or ""),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _scheme_class(form: str, scheme: Any) -> str | None:
    """Return the class of numbers of a scheme as ``quantlab inspect`` prints it, the matrix's own word for it."""
    if not isinstance(scheme, Mapping):
        return None if scheme is None else str(scheme)
    weights, activations = scheme.get("weights"), scheme.get("activations")
    if not isinstance(weights, Mapping):
        return None
    group = weights.get("group_size")
    read = Scheme(
        weights=WeightScheme(**{**weights, "group_size": tuple(group) if isinstance(group, list) else group}),
        activations=ActivationScheme(**activations) if isinstance(activations, Mapping) else None,
    )
    found = from_checkpoint(form, read, Architecture(), None).get("scheme")
    return None if found is None else str(found)
