"""Progress on a terminal: one line on stderr that is drawn over; nothing where stderr is no terminal."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from quantlab.progress import Observer, Progress, silent

REDRAW_SECONDS = 0.1


class _Line:
    """The line as it stands."""

    def __init__(self) -> None:
        self._drawn = 0.0
        self._lock = threading.Lock()

    def __call__(self, event: Progress) -> None:
        now = time.monotonic()
        if now - self._drawn < REDRAW_SECONDS and event.done != event.total:
            return
        self._drawn = now
        with self._lock:
            sys.stderr.write(f"\r\x1b[2K{_text(event)[: _width()]}")
            sys.stderr.flush()

    def clear(self) -> None:
        """Leave the terminal as it was."""
        if self._drawn:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()


@contextmanager
def terminal_observer() -> Iterator[Observer]:
    """Yield an observer that draws on a terminal and stays silent elsewhere."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield silent
        return
    line = _Line()
    try:
        yield line
    finally:
        line.clear()


def _text(event: Progress) -> str:
    share = f"{100 * event.done / event.total:3.0f} %" if event.total else ""
    amount = f"{event.done}/{event.total}" if event.total else f"{event.done}"
    return f"{event.task} {share} {amount} {event.unit}  {event.detail}"


def _width() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns - 1
    except OSError:
        return 79
