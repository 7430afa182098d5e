#!/usr/bin/env python3
"""Write the pages and files that are made from data: docs/matrix.md, docs/commands.md, docs/results.md.

The statements' JSON schema is written by ``python -m quantlab.matrix.schema``.

usage: generate_docs.py [--check]

With --check nothing is written; the exit code is 1 when a file is stale.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def matrix_page() -> str:
    """Return docs/matrix.md."""
    from quantlab.matrix.load import load, read_sources
    from quantlab.matrix.table import build_table
    from quantlab.report.matrix_markdown import matrix_markdown

    return matrix_markdown(build_table(load()), read_sources())


def commands_page() -> str:
    """Return docs/commands.md: the help of every command."""
    from quantlab.cli import COMMANDS, main

    os.environ["COLUMNS"] = "100"
    parts = ["# Commands", "", "What `--help` prints."]
    for name in COMMANDS:
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            main([name, "--help"])
        parts += ["", f"## quantlab {name}", "", "```", told.getvalue().rstrip(), "```"]
    return "\n".join(parts) + "\n"


def results_page() -> str:
    """Return docs/results.md from the evidence files."""
    from quantlab.report.evidence_markdown import evidence_markdown

    return evidence_markdown(ROOT / "matrix" / "evidence")


PAGES: dict[str, Callable[[], str]] = {
    "docs/matrix.md": matrix_page,
    "docs/commands.md": commands_page,
    "docs/results.md": results_page,
}
"""Path to what makes it."""


def stale() -> list[str]:
    """Return the files that are not what the data says."""
    found = []
    for path, make in PAGES.items():
        file = ROOT / path
        if not file.exists() or file.read_text(encoding="utf-8") != make():
            found.append(path)
    return found


def main() -> int:
    """Write the files, or check them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 when a file is stale")
    options = parser.parse_args()
    if options.check:
        old = stale()
        for path in old:
            print(f"{path} is stale: run make docs", file=sys.stderr)
        return 1 if old else 0
    for path, make in PAGES.items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(make(), encoding="utf-8")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
