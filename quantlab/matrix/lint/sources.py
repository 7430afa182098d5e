"""Every source says what it is and where it lies, and every thread that is listed is cited."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from quantlab.checkpoint.facts import Finding
from quantlab.matrix.data import read_section
from quantlab.matrix.lint.interface import Subject
from quantlab.matrix.load import read_sources

_PLACES = ("url", "repo", "path", "doi")


def check(subject: Subject) -> Iterator[Finding]:
    """Yield a finding for each source without title, kind or place, and for each thread that nothing cites."""
    for name, source in read_sources(subject.folder).items():
        if not isinstance(source, Mapping) or not source.get("title") or not source.get("kind"):
            yield Finding("sources", "error", "sources.yaml", f"{name} needs a title and a kind")
        elif not any(source.get(place) for place in _PLACES) and source["kind"] not in {"derived", "package", "page"}:
            yield Finding("sources", "warning", "sources.yaml", f"{name} does not say where it lies")
    cited = {source for statement in subject.data.statements for source in statement.sources}
    for name in read_section("threads", folder=subject.folder)["threads"]["threads"]:
        if name not in cited:
            yield Finding("sources", "warning", "threads.yaml", f"{name} is cited by no statement")
