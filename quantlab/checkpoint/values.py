"""Reading values of other people's JSON without trusting their types.

Every reader of a config goes through these: a value of another type than expected counts as absent, so that no
malformed config can raise anything, and the caller decides whether that is worth a finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def mapping(value: object) -> Mapping[str, Any]:
    """Return the value if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict | Mapping) else {}


def integer(value: object) -> int | None:
    """Return a whole number (also one written as ``"128"`` or ``128.0``), else None; booleans are none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if abs(value) < 2**63 else None
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**53 else None
    if isinstance(value, str) and len(value) < 20:
        try:
            return int(value)
        except ValueError:
            return None
    return None


def number(value: object) -> int | float | None:
    """Return a number, whole where it can be, else None."""
    whole = integer(value)
    if whole is not None:
        return whole
    if isinstance(value, float) and value == value and abs(value) != float("inf"):  # noqa: PLR0124 - NaN
        return value
    if isinstance(value, str) and len(value) < 20:
        try:
            return number(float(value))
        except ValueError:
            return None
    return None


def boolean(value: object) -> bool | None:
    """Return a truth value, else None."""
    return value if isinstance(value, bool) else None


def text(value: object) -> str | None:
    """Return a non-empty string without surrounding space, else None."""
    return value.strip() or None if isinstance(value, str) else None


def strings(value: object) -> tuple[str, ...]:
    """Return the strings of a list (a single string counts as a list of one)."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list | tuple):
        return tuple(item for item in value if isinstance(item, str))
    return ()


def integers(value: object) -> tuple[int, ...]:
    """Return the whole numbers of a list, or nothing if any item is none."""
    if not isinstance(value, list | tuple):
        return ()
    found = [integer(item) for item in value]
    return () if None in found else tuple(item for item in found if item is not None)


def first(source: Mapping[str, Any], keys: Iterable[str]) -> Any:
    """Return the value of the first key that is present and not null."""
    return next((source[key] for key in keys if source.get(key) is not None), None)
