"""``quantlab compare``: results side by side, as a table, JSON, and one HTML file."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from quantlab.errors import Exit, UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``quantlab compare``."""
    parser.add_argument("results", nargs="+", type=Path, help="results of quantlab evaluate --format json")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one HTML file with plots")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the comparison as JSON")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(options: argparse.Namespace) -> int:
    """Print the comparison; exit 1 when one of the results carries a failed verdict."""
    from quantlab.evaluation.comparison import compare
    from quantlab.report.comparison_text import comparison_text

    comparison = compare(options.results)
    content = json.dumps(comparison.to_dict(), indent=1)
    if options.html is not None:
        from quantlab.report.comparison_html import comparison_html

        _write(options.html, comparison_html(comparison))
    if options.output is not None:
        _write(options.output, content + "\n")
    print(content if options.format == "json" else comparison_text(comparison))
    return int(Exit.NO if any(row.verdict_ok is False for row in comparison.rows) else Exit.YES)


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    print(f"wrote {path}", file=sys.stderr)
