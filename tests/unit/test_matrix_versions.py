"""Versions as people write them become points that can be compared."""

from __future__ import annotations

import pytest

from quantlab.matrix.versions import MAIN, History, Release, Version, parse_range, point, read_version

HISTORY = History(
    (Release("0.8.5", "2025-05-01"), Release("0.9.0", "2025-06-01"), Release("0.10.1", "2025-08-15")),
    ((100, "2025-05-01"), (200, "2025-09-01")),
)


def version(text: object) -> Version:
    found = read_version(text, HISTORY)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "accepted", "holds"),
    [
        ("0.8.5.post1+cu118", ">=0.8,<0.9", True),
        ("~0.8.x", ">=0.8,<0.9", True),
        ("0.9.0", ">=0.9", True),
        ("0.9.0", ">0.9", False),
        ("0.10.1", ">=0.9", True),
        (">=5.0", ">=5.0", True),
        ("<0.9", "<0.9", True),
        ("<0.9", ">=0.9", False),
        ("before 2025-06", "<0.9", True),
        ("main 2025-07", ">=0.9,<0.10", True),
        ("main 2025-07", "<0.9", False),
        ("after 2025-08", ">=0.10.1", True),
        ("main", ">=0.10.1", True),
        ("0.11.1 (0.11.0 works)", "==0.11.1", True),
        ("4959", ">=4000,<5000", True),
        ("main after #199", ">=0.10.1", True),
        ("main after #101", "<0.9", True),
    ],
)
def test_reading_and_range(text: str, accepted: str, holds: bool) -> None:
    assert (version(text) in parse_range(accepted)) is holds


@pytest.mark.parametrize("text", [None, "", "   ", True, [], {}, "someday"])
def test_nothing_to_read(text: object) -> None:
    assert read_version(text, HISTORY) is None


def test_date_without_history_says_nothing() -> None:
    assert read_version("2025-07-01") is None


def test_main_lies_between_releases() -> None:
    assert point("0.9.0") < version("main 2025-07").point < point("0.10.1")
    assert version("main 2025-07").point[3] == MAIN


def test_unplaced_version_lies_in_every_range() -> None:
    unplaced = Version("between two fixes", (), placed=False)
    assert unplaced in parse_range("<0.1")
    assert unplaced in parse_range(">=99")


@pytest.mark.parametrize("text", ["=>1", "one", ">=2,<1", ">1,<1"])
def test_impossible_ranges_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_range(text)


def test_ranges_overlap() -> None:
    assert parse_range(">=0.5,<0.9").overlaps(parse_range(">=0.8"))
    assert not parse_range("<0.9").overlaps(parse_range(">=0.9"))
    assert parse_range("<=0.9").overlaps(parse_range(">=0.9"))
