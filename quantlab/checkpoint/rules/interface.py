"""What a rule is: it looks at an opened checkpoint and yields what is wrong, one idea a module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from quantlab.checkpoint.facts import Finding
from quantlab.checkpoint.open import Opened

MOST = 5
"""Findings of one rule and kind before the rest is summed up in one."""


class Rule(Protocol):
    """Finds one kind of fault; reads no weights and never raises on bad content."""

    def __call__(self, opened: Opened) -> Iterator[Finding]:
        """Yield findings."""
