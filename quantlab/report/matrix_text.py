"""The matrix for a terminal: one table an engine, gpus with equal columns put together, footnotes for limits."""

from __future__ import annotations

import textwrap

from quantlab.matrix.table import Table
from quantlab.report.matrix_symbols import SYMBOLS, Footnotes, column_groups, legend
from quantlab.report.table import text_table

WIDTH = 100


def matrix_text(table: Table, *, width: int = WIDTH) -> str:
    """Return the tables as plain text, readable without colour, at most ``width`` columns wide where names allow."""
    notes = Footnotes()
    parts = [_engine(table, engine, title, notes, width) for engine, title in table.engines.items()]
    outcomes = sorted({cell.outcome for cell in table.cells})
    lines = [*(part for part in parts if part), legend(outcomes)]
    for text, number in notes.numbers.items():
        lines.append(textwrap.fill(f"{number}: {text}", width, subsequent_indent="   "))
    return "\n".join(lines)


def _engine(table: Table, engine: str, title: str, notes: Footnotes, width: int) -> str:
    rows = list(table.rows(engine))
    if not rows:
        return f"{title}: nothing known for these\n"
    groups = column_groups(table, engine)
    letters = [_letter(number) for number in range(len(groups))]
    places = [table.gpus.index(group[0]) for group in groups]
    body = [
        [table.methods[method], *(f"{SYMBOLS[cells[place].outcome]}{notes.mark(cells[place])}" for place in places)]
        for method, cells in rows
    ]
    names = [
        textwrap.fill(f"{letter}  {' '.join(group)}", width, subsequent_indent="   ")
        for letter, group in zip(letters, groups, strict=True)
    ]
    return "\n".join([title, *names, text_table(["", *letters], body), ""])


def _letter(number: int) -> str:
    return (chr(ord("A") + number // 26 - 1) if number >= 26 else "") + chr(ord("A") + number % 26)
