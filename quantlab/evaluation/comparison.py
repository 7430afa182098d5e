"""Several evaluation results side by side, and what may not be compared said plainly.

Perplexity and divergence mean something only between results on the same text, cut into the same windows, by the
same tokenizer. The first result sets the measure; a result that was measured otherwise keeps its place in the
table and its own numbers in the data, but no figure of quality is set beside the others'.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from quantlab.errors import UsageError
from quantlab.evaluation.result_row import MEASURE, Row, read_row


@dataclass(frozen=True, slots=True)
class Comparison:
    """The rows in the order asked for, and notes on what was not compared."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of ``quantlab compare``."""
        return {"models": [asdict(row) for row in self.rows], "notes": list(self.notes)}


def compare(results: Sequence[str | Path | Mapping[str, Any]]) -> Comparison:
    """Set evaluation results side by side.

    Args:
        results: result files, or results as ``evaluate`` returns them (``to_dict()``).

    Raises:
        UsageError: no result, or a file that is not an evaluation result.
    """
    if not results:
        raise UsageError("nothing to compare", hint="name one or more result files of quantlab evaluate")
    contents = [_load(result) for result in results]
    names = _unique_names([str(content["checkpoint"].get("path", "")) for content in contents])
    rows = [read_row(content, name) for content, name in zip(contents, names, strict=True)]
    reference = next((row for row in rows if row.perplexity is not None), rows[0])
    notes: list[str] = []
    judged = [_judge(row, reference, notes) for row in rows]
    return Comparison(tuple(judged), tuple(notes))


def _load(result: str | Path | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(result, Mapping):
        content: Any = result
    else:
        try:
            content = json.loads(Path(result).read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"cannot read the result {result}: {error.strerror}") from error
        except ValueError as error:
            raise UsageError(f"the result {result} is not JSON: {error}") from error
    if not isinstance(content, Mapping) or not isinstance(content.get("checkpoint"), Mapping):
        where = "the result" if isinstance(result, Mapping) else f"{result}"
        raise UsageError(f"{where} is not an evaluation result", hint="write one with quantlab evaluate --format json")
    return content


def _unique_names(paths: Sequence[str]) -> list[str]:
    """Return the last path part of each, with parents added until all differ."""
    parts = [Path(path).parts or (path,) for path in paths]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{'/'.join(part)} ({number})" for number, part in enumerate(parts, 1)]


def _judge(row: Row, reference: Row, notes: list[str]) -> Row:
    if row.perplexity is None or reference.perplexity is None or row is reference:
        return row
    different = [
        f"{what} ({mine} against {theirs})"
        for what, mine, theirs in zip(MEASURE, row.measure, reference.measure, strict=True)
        if mine != theirs
    ]
    if different:
        notes.append(f"{row.name} is not compared with {reference.name}: other {', '.join(different)}")
        return replace(row, comparable=False)
    return replace(row, perplexity_change=row.perplexity / reference.perplexity - 1)
