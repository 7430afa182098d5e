"""The comparison as a table for a terminal."""

from __future__ import annotations

from quantlab.evaluation.comparison import Comparison
from quantlab.evaluation.result_row import Row
from quantlab.report.figures import MISSING, change, number, size, with_error
from quantlab.report.table import text_table

HEADERS = ("model", "scheme", "on disk", "perplexity", "change", "KL", "prefill ms", "decode tok/s", "verdict")
FIGURES = frozenset({2, 3, 4, 5, 6, 7})


def comparison_text(comparison: Comparison) -> str:
    """Return the table, the module classes of each model, its complaints, and what was not compared."""
    lines = [text_table(HEADERS, [_cells(row) for row in comparison.rows], right=FIGURES), ""]
    lines += [f"{row.name}: {_modules(row)}" for row in comparison.rows]
    lines += [f"{row.name}: {kind}: {words}" for row in comparison.rows for kind, words in complaints(row)]
    lines += [f"note: {note}" for note in comparison.notes]
    return "\n".join(lines)


def complaints(row: Row) -> list[tuple[str, str]]:
    """Return what the evaluator found fault with, the failures first."""
    failures = [("failure", words) for words in row.failures]
    load = [("failure", row.load_error)] if row.load_error and not failures else []
    return [*load, *failures, *(("warning", words) for words in row.warnings)]


def verdict_words(row: Row) -> str:
    """Return the verdict in one or two words."""
    if row.load_ok is False:
        return "does not load"
    if row.damaged:
        return "damaged"
    if row.verdict_ok is None:
        return MISSING
    return (row.quality or "ok") if row.verdict_ok else f"fails ({row.quality or 'see below'})"


def _cells(row: Row) -> tuple[str, ...]:
    first = next((point for point in row.speed if point.batch == 1), row.speed[0] if row.speed else None)
    quality = (
        (with_error(row.perplexity, row.perplexity_error), change(row.perplexity_change), number(row.kl_mean, 3))
        if row.comparable
        else ("not comparable", MISSING, MISSING)
    )
    return (
        row.name,
        row.scheme,
        size(row.bytes_on_disk),
        *quality,
        number(first.prefill_ms, 1) if first else MISSING,
        number(first.decode_tokens_per_second, 1) if first else MISSING,
        verdict_words(row),
    )


def _modules(row: Row) -> str:
    if not row.modules:
        return row.load_error or "no modules reported"
    return ", ".join(f"{count} {name}" for name, count in sorted(row.modules.items(), key=lambda item: -item[1]))
