"""The matrix as Markdown (docs/matrix.md): the facts of the terminal table, with each cell's reason and sources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantlab.matrix.table import Cell, Table
from quantlab.report.matrix_symbols import MEANINGS, SYMBOLS, Footnotes, column_groups


def matrix_markdown(table: Table, sources: Mapping[str, Mapping[str, Any]]) -> str:
    """Return one section an engine, the footnotes, the reasons of every no, and the sources cited."""
    notes = Footnotes()
    sections = [_section(table, engine, title, notes) for engine, title in table.engines.items()]
    lines = ["# What runs where", "", _legend(), ""]
    lines += [line for section in sections for line in section]
    if notes.numbers:
        lines += ["## Limits", "", *(f"{number}. {text}" for text, number in notes.numbers.items()), ""]
    lines += ["## Why not", "", *_reasons(table), ""]
    lines += ["## Sources", "", *_sources(table, sources), ""]
    return "\n".join(lines)


def _legend() -> str:
    parts = [f"`{SYMBOLS[outcome]}` {meaning}" for outcome, meaning in MEANINGS.items()]
    return f"{'; '.join(parts)}. A number points to the limits below."


def _section(table: Table, engine: str, title: str, notes: Footnotes) -> list[str]:
    """Return an engine's tables, one a backend, so that none is wider than a page."""
    rows = list(table.rows(engine))
    groups = column_groups(table, engine)
    lines = [f"## {title}", ""] if rows else []
    for backend in dict.fromkeys(table.backends[group[0]] for group in groups) if rows else ():
        own = [group for group in groups if table.backends[group[0]] == backend]
        places = [table.gpus.index(group[0]) for group in own]
        head = ["method", *("<br>".join(group) for group in own)]
        lines += [f"### {backend}", "", _line(head), _line(["---"] * len(head))]
        for method, cells in rows:
            here = [cells[place] for place in places]
            if any(cell.outcome != "unknown" for cell in here):
                lines.append(_line([table.methods[method], *(_symbol(cell, notes) for cell in here)]))
        lines.append("")
    return lines


def _symbol(cell: Cell, notes: Footnotes) -> str:
    mark = notes.mark(cell)
    return f"`{SYMBOLS[cell.outcome]}`" + (f"<sup>{mark}</sup>" if mark else "")


def _reasons(table: Table) -> list[str]:
    """One line a statement that says no, with the gpus it speaks of."""
    told: dict[tuple[str, str, str], tuple[Cell, list[str]]] = {}
    for cell in table.cells:
        if cell.outcome in {"fails", "silent-wrong-result"}:
            told.setdefault((cell.engine, cell.method, cell.statement or ""), (cell, []))[1].append(cell.gpu)
    lines = []
    for (engine, method, _), (cell, gpus) in told.items():
        way = f" Way out: {_plain(cell.fix)}." if cell.fix else ""
        where = ", ".join(gpus) if len(gpus) < len(table.gpus) else "every gpu"
        cited = ", ".join(cell.sources)
        lines.append(
            f"- **{table.methods[method]} in {table.engines[engine]}** on {where}: {_reason(cell)}.{way} [{cited}]"
        )
    return lines


def _reason(cell: Cell) -> str:
    """Return the reason without the gpu that the query was asked for: the line names them all."""
    return _plain(cell.reason.removesuffix(f" on {cell.gpu}"))


def _sources(table: Table, sources: Mapping[str, Mapping[str, Any]]) -> list[str]:
    cited = sorted({source for cell in table.cells for source in cell.sources})
    return [f"- `{source}`: {_described(sources.get(source, {}))}" for source in cited]


def _described(entry: Mapping[str, Any]) -> str:
    words = [str(entry[key]) for key in ("title", "repo", "path", "date") if entry.get(key)]
    return _plain(", ".join(dict.fromkeys(words)) or "see matrix/sources.yaml")


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
