"""Statements that can never decide anything: a higher one holds wherever they do."""

from __future__ import annotations

from collections.abc import Iterator

from quantlab.checkpoint.facts import Finding
from quantlab.matrix.lint.interface import Subject
from quantlab.matrix.model import Statement, When


def check(subject: Subject) -> Iterator[Finding]:
    """Yield a finding for each statement that a higher-ranked one hides completely."""
    statements = subject.data.statements
    for lower in statements:
        for higher in statements:
            if higher.rank > lower.rank and _hides(higher, lower):
                what = f"{lower.id} is hidden by {higher.id} ({higher.file}), which holds wherever it does"
                yield Finding("unreachable", "error", lower.file, what)
                break


def _hides(higher: Statement, lower: Statement) -> bool:
    if "any" not in higher.engines and not set(lower.engines) <= set(higher.engines):
        return False
    return higher.when.undivided is None and _covers(higher.when, lower.when)


def _covers(wide: When, narrow: When) -> bool:
    if wide.gpus is not None and (narrow.gpus is None or not narrow.gpus <= wide.gpus):
        return False
    if not narrow.operations <= wide.operations:
        return False
    if any(narrow.facts.get(name) != test for name, test in wide.facts.items()):
        return False
    return all(narrow.versions.get(package) == accepted for package, accepted in wide.versions.items())
