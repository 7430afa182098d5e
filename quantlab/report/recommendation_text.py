"""A recommendation for a terminal."""

from __future__ import annotations

from quantlab.matrix.recommendation import Candidate, Recommendation
from quantlab.report.figures import MISSING, number
from quantlab.report.table import text_table

HEADERS = ("", "method", "engine", "runs", "weights", "KV cache", "total", "fits", "tok/s at most")
FIGURES = frozenset({0, 4, 5, 6, 8})
SHOWN = 8


def recommendation_text(found: Recommendation, *, everything: bool = False) -> str:
    """Return the ranked table, the first choice's commands, and with ``everything`` what was left out and why."""
    memory = "memory not known" if found.memory_bytes is None else f"{found.memory_bytes / 2**30:.0f} GiB"
    lines = [
        f"{found.model}: {found.parameters / 1e9:.2f} billion parameters",
        f"{found.gpu}: {memory}; context {found.context}, batch {found.batch}",
        "",
    ]
    shown = found.candidates if everything else found.candidates[:SHOWN]
    if shown:
        rows = [_cells(number, item) for number, item in enumerate(shown, 1)]
        lines += [text_table(HEADERS, rows, right=FIGURES), ""]
    best = found.best
    if best is None:
        lines.append("nothing that runs there fits on one device" if shown else "nothing is known to run there")
        needed = min((item.devices_needed for item in found.candidates if item.devices_needed), default=None)
        lines += [f"the smallest needs {needed} devices"] if needed else []
    else:
        lines += [f"first choice: {best.preset} in {best.engine} ({best.confidence}): {best.reason}"]
        lines += [f"  {command}" for command in best.commands]
    if everything:
        lines += ["", "not recommended:"]
        lines += [f"  {item.preset} in {item.engine}: {item.outcome}: {item.reason}" for item in found.refused]
    elif found.refused or len(found.candidates) > SHOWN:
        lines += ["", f"{len(found.refused)} do not run or are not known to; --all shows them with their reasons"]
    return "\n".join(lines)


def _cells(place: int, item: Candidate) -> tuple[str, ...]:
    fits = "yes" if item.fits else f"{item.devices_needed} devices"
    runs = item.mode or ("yes" if item.outcome == "works" else item.outcome)
    return (
        str(place),
        item.preset,
        item.engine,
        runs,
        _gib(item.weights_bytes),
        _gib(item.kv_cache_bytes),
        _gib(item.total_bytes),
        fits,
        MISSING if item.decode_limit is None else number(item.decode_limit, 0),
    )


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
