"""Releases of an engine are listed oldest first, by version and by date."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from quantlab.checkpoint.facts import Finding
from quantlab.matrix.lint.interface import Subject
from quantlab.matrix.versions import point


def check(subject: Subject) -> Iterator[Finding]:
    """Yield a finding for each pair of releases or pull requests that is out of order."""
    for engine in subject.data.engines.values():
        where = f"engines/{engine.id}.yaml"
        for older, newer in pairwise(engine.releases):
            if point(older.version) > point(newer.version):
                yield Finding("releases", "error", where, f"{older.version} is listed before {newer.version}")
            elif older.date > newer.date:
                what = f"{older.version} of {older.date} is dated after {newer.version} of {newer.date}"
                yield Finding("releases", "warning", where, what)
        for (low, before), (high, after) in pairwise(engine.pulls):
            if low >= high or before > after:
                yield Finding("releases", "error", where, f"pull request {low} is listed before {high}")
