"""A table in plain text: fixed columns, readable without colour, the same on a terminal and in a file."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset()) -> str:
    """Return lines of cells in columns as wide as their widest cell.

    Args:
        headers: one word or two a column.
        rows: cells as text.
        right: numbers of the columns that are flush right.
    """
    widths = [max(len(line[column]) for line in [headers, *rows]) for column in range(len(headers))]

    def line(cells: Sequence[str]) -> str:
        aligned = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join(aligned).rstrip()

    return "\n".join([line(headers), line(["-" * width for width in widths]), *map(line, rows)])
