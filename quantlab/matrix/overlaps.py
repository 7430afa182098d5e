"""Finds pairs of statements that answer one question differently while neither is narrower.

Two statements of equal rank (precedence, then number of conditions) may meet only where they say the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from quantlab.matrix.model import Statement, Test, When
from quantlab.matrix.versions import Range


def overlapping(statements: Iterable[Statement]) -> Iterator[tuple[Statement, Statement]]:
    """Yield pairs of equal rank that can both apply to one query and disagree in outcome or mode."""
    by_rank: dict[tuple[str, tuple[int, int]], list[Statement]] = defaultdict(list)
    for statement in statements:
        for engine in statement.engines:
            by_rank[engine, statement.rank].append(statement)
    for group in by_rank.values():
        for index, one in enumerate(group):
            for two in group[index + 1 :]:
                if (one.outcome, one.mode) != (two.outcome, two.mode) and meet(one.when, two.when):
                    yield one, two


def meet(one: When, two: When) -> bool:
    """Return whether some query meets the conditions of both."""
    if one.gpus is not None and two.gpus is not None and not one.gpus & two.gpus:
        return False
    if not one.operations & two.operations:
        return False
    return _versions_meet(one.versions, two.versions) and _facts_meet(one.facts, two.facts)


def _versions_meet(one: Mapping[str, Range], two: Mapping[str, Range]) -> bool:
    return all(accepted.overlaps(two[package]) for package, accepted in one.items() if package in two)


def _facts_meet(one: Mapping[str, Test], two: Mapping[str, Test]) -> bool:
    return all(test.overlaps(two[name]) for name, test in one.items() if name in two) and not _scheme_excludes(one, two)


def _scheme_excludes(one: Mapping[str, Test], two: Mapping[str, Test]) -> bool:
    """A scheme settles bits and type, so that a condition on these may contradict the other's scheme."""
    for first, second in ((one, two), (two, one)):
        schemes = first.get("scheme")
        if schemes is None or schemes.values is None or "scheme" in second:
            continue
        for name in ("bits", "type"):
            test = second.get(name)
            if test is not None and not any(_may_be(str(scheme), name, test) for scheme in schemes.values):
                return True
    return False


def _may_be(scheme: str, fact: str, test: Test) -> bool:
    from quantlab.matrix.subject import settled_by_scheme

    settled = settled_by_scheme(scheme).get(fact)
    return settled is None or test.holds(settled)
