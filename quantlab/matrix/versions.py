"""Versions as people write them, and the ranges that statements hold in.

A version is reduced to one point, a tuple of integers: reports say ``~0.8.x``, ``<0.49``, ``main 2026-06`` or
``0.11.1 (0.11.0 works)``, and each of these has one best reading. A date becomes the state of the main branch on
that day: newer than the newest release of then, older than the next one.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

MAIN = 9_000_000
"""Fourth component of a point between two releases: the main branch after a release."""

_DATE = re.compile(r"(20[2-3]\d)-(\d\d)(?:-(\d\d))?|^\D*(20[2-3]\d)(?!\.)\D*$")
_NUMBER = re.compile(r"\d{1,8}(?:\.\d{1,8}){0,5}")
_CLAUSE = re.compile(r"\s*(<=|>=|==|<|>)\s*([0-9][\w.\-]*)\s*$")

Point = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Release:
    """One release of a package; the date is ``YYYY-MM-DD`` (the day, or the first day known to have it)."""

    version: str
    date: str


@dataclass(frozen=True, slots=True)
class History:
    """What is known of a package's past.

    Attributes:
        releases: oldest first.
        pulls: (number, date) of some pull requests, to place ``main after #39612``; ascending.
    """

    releases: tuple[Release, ...] = ()
    pulls: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Version:
    """One version that a query names.

    Attributes:
        text: as it was written.
        point: comparable tuple.
        approximate: it was a guess, a date, a branch or a bound.
        placed: False where nothing tells which version it is; it then lies in every range, so that a narrower
            statement (mostly a failure) decides.
    """

    text: str
    point: Point
    approximate: bool = False
    placed: bool = True


@dataclass(frozen=True, slots=True)
class Range:
    """A half-open or closed set of versions, such as ``>=0.6,<0.9``; an empty text admits all."""

    text: str
    low: Point | None = None
    low_open: bool = False
    high: Point | None = None
    high_open: bool = True

    def __contains__(self, version: object) -> bool:
        if not isinstance(version, Version):
            return False
        if not version.placed:
            return True
        point = version.point
        if self.low is not None and (point < self.low or (self.low_open and point == self.low)):
            return False
        return self.high is None or point < self.high or (not self.high_open and point == self.high)

    def overlaps(self, other: Range) -> bool:
        """Return whether any version lies in both."""
        return not (_below(self, other) or _below(other, self))


def _below(one: Range, other: Range) -> bool:
    if one.high is None or other.low is None:
        return False
    return one.high < other.low or (one.high == other.low and (one.high_open or other.low_open))


def point(text: str) -> Point:
    """Return the comparable tuple of a plain version: ``0.6.4.post1`` is (0, 6, 4), trailing zeros dropped."""
    found = _NUMBER.search(text)
    numbers = [int(part) for part in found.group().split(".")] if found else [0]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


@lru_cache(maxsize=4096)
def parse_range(text: str) -> Range:
    """Read ``>=0.6,<0.9`` (``==`` gives one version).

    Raises:
        ValueError: a clause is not an operator and a version, or nothing can lie in the range.
    """
    low: Point | None = None
    high: Point | None = None
    low_open, high_open = False, True
    for clause in filter(None, (part.strip() for part in text.split(","))):
        match = _CLAUSE.match(clause)
        if match is None:
            message = f"{clause!r} is not a version bound such as >=0.9"
            raise ValueError(message)
        operator, bound = match.group(1), point(match.group(2))
        if operator in {">=", ">", "=="}:
            low, low_open = bound, operator == ">"
        if operator in {"<=", "<", "=="}:
            high, high_open = bound, operator == "<"
    if low is not None and high is not None and (low > high or (low == high and (low_open or high_open))):
        message = f"no version lies in {text!r}"
        raise ValueError(message)
    return Range(text, low, low_open, high, high_open)


def read_version(text: object, history: History = History()) -> Version | None:
    """Read a version as people write it; None where it says nothing.

    Args:
        text: ``"0.8.5.post1+cu118"``, ``"~0.8.x"``, ``">=5.0"``, ``"<2026-03"``, ``"main 2026-06"``, ...
        history: of the package; needed to place dates, pull requests and bare words such as ``main``.
    """
    if isinstance(text, int | float) and not isinstance(text, bool):
        text = str(text)
    if not isinstance(text, str) or not text.strip():
        return None
    words = text.strip()[:200]
    releases = history.releases
    pull = re.search(r"#(\d{1,7})", words)
    if pull is not None:
        return _at_pull(words, int(pull.group(1)), history)
    date = _DATE.search(words)
    if date is not None:
        return _dated(words, date, releases)
    if _NUMBER.search(words) is None:
        return _named(words, releases)
    return _in_series(words, releases) or _numbered(words)


def _in_series(words: str, releases: Sequence[Release]) -> Version | None:
    """Read ``~0.6.x`` as the middle release of its series; whole majors (``5.x``) are too wide for that."""
    series = re.search(r"\b(\d+)\.(\d+)\.x\b", words)
    if series is None:
        return None
    prefix = (int(series.group(1)), int(series.group(2)))
    members = [release for release in releases if (*point(release.version), 0)[:2] == prefix]
    if not members:
        return None
    return Version(words, point(members[len(members) // 2].version), approximate=True)


def _numbered(words: str) -> Version:
    body = words.lstrip("~ v")
    place = point(body)
    below = re.match(r"\s*(<|before\b|older than\b|pre\b)", body, re.IGNORECASE) and not body.startswith("<=")
    if below:
        place = _just_below(place)
    elif re.match(r"\s*(>(?!=)|after\b|newer than\b)", body, re.IGNORECASE) or re.search(r"\bmain\b", body):
        place = (*place, *(0,) * (3 - len(place)), MAIN)
    exact = re.fullmatch(r"v?\d+(\.\d+)+(\.?(post|dev|rc|a|b)\d+)*(\+[\w.]+)?", words)
    return Version(words, place, approximate=exact is None)


def _just_below(place: Point) -> Point:
    last = next((index for index in range(len(place) - 1, -1, -1) if place[index]), 0)
    return (*place[:last], max(place[last] - 1, 0), MAIN, MAIN)


def _dated(words: str, date: re.Match[str], releases: Sequence[Release]) -> Version | None:
    year, month = date.group(1) or date.group(4), date.group(2) or "06"
    day = date.group(3) or "15"
    if re.search(r"<|\bbefore\b|\buntil\b|\bearly\b", words, re.IGNORECASE):
        day = date.group(3) or "00"
    elif re.search(r">|\bafter\b|\bsince\b|\blate\b", words, re.IGNORECASE):
        day = date.group(3) or "28"
    moment = f"{year}-{month}-{day}"
    known = [release for release in releases if release.date <= moment]
    if not releases:
        return None
    newest = point(known[-1].version) if known else (0,)
    return Version(words, (*newest, *(0,) * (3 - len(newest)), MAIN), approximate=True)


def _at_pull(words: str, number: int, history: History) -> Version | None:
    """Place a pull request between the dates of its neighbours."""
    below = [(known, date) for known, date in history.pulls if known <= number]
    above = [(known, date) for known, date in history.pulls if known > number]
    if not below:
        return None
    moment = dt.date.fromisoformat(below[-1][1])
    if above:
        span = dt.date.fromisoformat(above[0][1]) - moment
        moment += span * (number - below[-1][0]) // (above[0][0] - below[-1][0])
    found = read_version(moment.isoformat(), history)
    return None if found is None else Version(words, found.point, approximate=True)


def _named(words: str, releases: Sequence[Release]) -> Version | None:
    if not releases or not re.search(r"\b(main|master|head|nightly|latest|newest)\b", words, re.IGNORECASE):
        return None
    newest = point(releases[-1].version)
    return Version(words, (*newest, *(0,) * (3 - len(newest)), MAIN), approximate=True)
