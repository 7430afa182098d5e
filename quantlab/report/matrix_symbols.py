"""One symbol a state, and columns and footnotes that keep the table narrow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from quantlab.matrix.table import Cell, Table

SYMBOLS = {"works": "+", "works-with-fallback": "~", "fails": "x", "silent-wrong-result": "!", "unknown": "."}
"""Outcome to its symbol: plain ASCII, so that no terminal, font or screen reader loses it."""

MEANINGS = {
    "works": "works",
    "works-with-fallback": "works with a fallback (dequantized, weight-only or emulated)",
    "fails": "fails",
    "silent-wrong-result": "runs and gives wrong results",
    "unknown": "not known",
}


@dataclass
class Footnotes:
    """Numbers for texts, each text once."""

    numbers: dict[str, int] = field(default_factory=dict)

    def mark(self, cell: Cell) -> str:
        """Return the number of the cell's footnote, or nothing where it has none."""
        text = footnote(cell)
        return str(self.numbers.setdefault(text, len(self.numbers) + 1)) if text else ""


def footnote(cell: Cell) -> str:
    """Return what a reader must know of a cell beyond its symbol: mode and kernel of a fallback, and the limits."""
    mode = cell.mode if cell.outcome == "works-with-fallback" else None
    return "; ".join(part for part in (mode, cell.limits, "disputed" if cell.confidence == "disputed" else "") if part)


def column_groups(table: Table, engine: str) -> list[tuple[str, ...]]:
    """Return the gpus of an engine's table, neighbours of one backend with the same column put together."""
    groups: list[list[str]] = []
    for gpu in table.gpus:
        alike = groups and table.backends[groups[-1][0]] == table.backends[gpu]
        if alike and _column(table, engine, groups[-1][0]) == _column(table, engine, gpu):
            groups[-1].append(gpu)
        else:
            groups.append([gpu])
    return [tuple(group) for group in groups]


def _column(table: Table, engine: str, gpu: str) -> list[tuple[str, str]]:
    cells = [table.cell(engine, method, gpu) for method in table.methods]
    return [(cell.outcome, footnote(cell)) for cell in cells]


def legend(outcomes: Sequence[str]) -> str:
    """Return the legend of the symbols that occur."""
    return "   ".join(f"{SYMBOLS[outcome]} {MEANINGS[outcome]}" for outcome in SYMBOLS if outcome in outcomes)
