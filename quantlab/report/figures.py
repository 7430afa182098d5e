"""Numbers and sizes as people read them; a missing one is a dash."""

from __future__ import annotations

MISSING = "-"


def number(value: float | None, digits: int = 2) -> str:
    """Return a number with a fixed count of decimals, or a dash."""
    return MISSING if value is None else f"{value:,.{digits}f}"


def with_error(value: float | None, error: float | None, digits: int = 2) -> str:
    """Return ``value ± error``; the error is left out where it is not known."""
    if value is None:
        return MISSING
    return number(value, digits) if error is None else f"{number(value, digits)} ± {number(error, digits)}"


def change(fraction: float | None) -> str:
    """Return a relative change as a signed percentage."""
    return MISSING if fraction is None else f"{100 * fraction:+.1f} %"


def size(count: int | None) -> str:
    """Return bytes in MB or GB (powers of ten)."""
    if count is None:
        return MISSING
    return f"{count / 1e9:,.2f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"
