"""Run a sweep cell by cell, each command in a process of its own; what is done already is not done again.

A cell leaves ``cells/ID.json`` (its commands, exit codes, seconds and last words) and, where it evaluates,
``results/ID.json``. A cell whose record carries the same digest is finished, whether it went well or not;
``retry_failed`` runs the failed ones again. Cells do not depend on each other, so a cluster's array job can run
one cell a task (``--only``).
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from quantlab.errors import Exit
from quantlab.sweep.plan import Cell, Plan

State = Literal["done", "no", "failed", "skipped"]

LAST_WORDS = 2000
"""Characters of a failed command's stderr that its record keeps."""


@dataclass(frozen=True, slots=True)
class CellRecord:
    """How one cell went.

    Attributes:
        id: the cell.
        digest: hash of what it does.
        state: ``done``; ``no`` (it ran, and the verdict is no); ``failed``; ``skipped`` (no time left).
        commands: the commands as typed in a shell.
        exit_codes: of the commands that ran.
        seconds: wall time of each.
        words: the end of stderr where a command failed, or why the cell was skipped.
    """

    id: str
    digest: str
    state: State
    commands: tuple[str, ...]
    exit_codes: tuple[int, ...] = ()
    seconds: tuple[float, ...] = ()
    words: str = ""


def run_plan(
    plan: Plan,
    *,
    only: set[str] | None = None,
    retry_failed: bool = False,
    jobs: int = 1,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[CellRecord]:
    """Run the cells of a plan and yield each one's record, in the plan's order.

    Args:
        plan: the plan.
        only: ids of the cells to run; all by default.
        retry_failed: run cells again whose record says that a command failed.
        jobs: cells at a time; more than one disturbs what they measure of speed.
        clock: monotonic seconds, for the budget.
    """
    started = clock()
    cells = [cell for cell in plan.cells if only is None or cell.id in only]

    def left() -> float | None:
        return None if plan.budget_seconds is None else plan.budget_seconds - (clock() - started)

    with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
        yield from pool.map(lambda cell: _settle(plan.output, cell, left, retry_failed=retry_failed), cells)


def _settle(output: Path, cell: Cell, left: Callable[[], float | None], *, retry_failed: bool) -> CellRecord:
    known = read_record(output, cell)
    if known is not None and not (retry_failed and known.state == "failed"):
        return known
    seconds = left()
    if seconds is not None and seconds <= cell.seconds:
        words = f"{seconds:.0f} s of the budget are left, the cell is expected to take {cell.seconds:.0f}"
        return CellRecord(cell.id, cell.digest(output), "skipped", _shell(output, cell), words=words)
    record = _run_cell(output, cell, seconds)
    _write(output / "cells" / f"{cell.id}.json", asdict(record))
    return record


def read_record(output: Path, cell: Cell) -> CellRecord | None:
    """Return the record of a finished cell, or None where it has to run (again)."""
    try:
        content: dict[str, Any] = json.loads((output / "cells" / f"{cell.id}.json").read_text(encoding="utf-8"))
        fields: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in content.items()}
        record = CellRecord(**fields)
    except (OSError, ValueError, TypeError):
        return None
    return record if record.digest == cell.digest(output) else None


def result_path(output: Path, cell: Cell) -> Path:
    """Return where the cell's evaluation result lies once it has one."""
    return output / "results" / f"{cell.id}.json"


def _run_cell(output: Path, cell: Cell, left: float | None) -> CellRecord:
    codes: list[int] = []
    seconds: list[float] = []
    words = ""
    state: State = "done"
    if cell.convert is not None:
        shutil.rmtree(cell.checkpoint(output), ignore_errors=True)
    for command in cell.commands(output):
        code, stdout, stderr, took = _run_command(command, left)
        codes.append(code)
        seconds.append(round(took, 3))
        if command[0] == "evaluate" and stdout.lstrip().startswith("{"):
            _write(result_path(output, cell), json.loads(stdout))
        if code != Exit.YES:
            state = "no" if code == Exit.NO else "failed"
            words = stderr[-LAST_WORDS:]
            break
    if cell.convert is not None and not cell.keep:
        shutil.rmtree(cell.checkpoint(output), ignore_errors=True)
    return CellRecord(
        cell.id,
        cell.digest(output),
        state,
        _shell(output, cell),
        tuple(codes),
        tuple(seconds),
        words,
    )


def _run_command(command: list[str], limit: float | None) -> tuple[int, str, str, float]:
    started = time.monotonic()
    Path(command[2] if command[0] == "convert" else ".").parent.mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "quantlab", *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=limit,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as late:
        said = late.stderr.decode(errors="replace") if isinstance(late.stderr, bytes) else (late.stderr or "")
        return 124, "", f"{said}\nstopped at the budget's end", time.monotonic() - started
    return done.returncode, done.stdout, done.stderr, time.monotonic() - started


def _shell(output: Path, cell: Cell) -> tuple[str, ...]:
    return tuple(shlex.join(["quantlab", *command]) for command in cell.commands(output))


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)
