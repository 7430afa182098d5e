"""Progress as events: the core reports, whoever is interested observes.

A library user who passes nothing hears nothing; the command line passes an observer that draws a bar
on a terminal and stays silent elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Progress:
    """One step of a longer work.

    Attributes:
        task: what is being done, such as ``"convert"`` or ``"quantize layers"``.
        done: units finished so far.
        total: units in all, or None where that is not known.
        unit: the unit's name, such as ``"bytes"``, ``"shards"``, ``"layers"``, ``"windows"``.
        detail: what is in hand now, such as a shard's or layer's name.
    """

    task: str
    done: int
    total: int | None
    unit: str
    detail: str = ""


class Observer(Protocol):
    """Receives progress events; must return quickly and not raise."""

    def __call__(self, event: Progress) -> None:
        """Take note of one event."""


def silent(event: Progress) -> None:
    """Ignore an event: the observer of library users."""
