"""How a failure looks on the terminal: one error, one hint, and a file for the traceback of a bug."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback

from quantlab.errors import Exit, QuantlabError


def report_error(error: QuantlabError, *, debug: bool) -> int:
    """Print an expected error to stderr and return its exit code."""
    if debug:
        traceback.print_exception(error)
    print(f"error: {error.message}", file=sys.stderr)
    if error.hint:
        print(f"\nhint: {error.hint}", file=sys.stderr)
    return int(error.exit_code)


def report_bug(bug: Exception, *, debug: bool) -> int:
    """Print where a bug's traceback lies (or the traceback itself) and return 70."""
    if debug:
        traceback.print_exception(bug)
        return int(Exit.BUG)
    descriptor, path = tempfile.mkstemp(prefix="quantlab-bug-", suffix=".txt")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        traceback.print_exception(bug, file=file)
    print(f"error: a bug in quantlab: {type(bug).__name__}: {bug}", file=sys.stderr)
    print(f"\nhint: the traceback is in {path}; please report it", file=sys.stderr)
    return int(Exit.BUG)
