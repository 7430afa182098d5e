"""A child process for heavy or untrusted library work, with limits; whatever happens to it is a value.

The parent names a function as ``"module:function"``; the child imports it and calls it with a JSON argument
and a ``report`` callback. Everything the libraries print goes to a log file. Messages come back over a pipe of
their own, one JSON object a line: progress, partial results, and the final result. A crash, an ``os._exit``, a
hang past the limit or too much memory end in an ``Outcome`` that says so and keeps the partial results.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from quantlab.progress import Observer, Progress, silent

Kind = Literal["done", "raised", "crashed", "timeout", "out-of-memory"]

POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Limits:
    """What a worker may use.

    Attributes:
        seconds: wall time from start to end, or None.
        resident_bytes: resident host memory of the child and its descendants, or None.
    """

    seconds: float | None = None
    resident_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a worker ended.

    Attributes:
        kind: ``done`` (``result`` is set), ``raised`` (an exception in the function), ``crashed`` (a signal or
            an exit without result), ``timeout`` or ``out-of-memory``.
        result: what the function returned.
        partial: what it reported before it ended, later reports over earlier ones.
        error: class of the exception, or the signal's or limit's name.
        message: the error's words.
        log: file with everything the child printed, tracebacks included.
        seconds: wall time.
        peak_resident_bytes: highest resident memory seen.
    """

    kind: Kind
    result: dict[str, Any] | None
    partial: dict[str, Any]
    error: str | None
    message: str | None
    log: Path
    seconds: float
    peak_resident_bytes: int

    def last_lines(self, count: int = 8) -> str:
        """Return the end of the log."""
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-count:])


def run(
    target: str,
    argument: Mapping[str, Any],
    *,
    limits: Limits | None = None,
    log: Path | None = None,
    environment: Mapping[str, str] | None = None,
    observe: Observer = silent,
) -> Outcome:
    """Run ``target`` in a child process and return how it ended.

    Args:
        target: ``"module:function"``; called as ``function(argument, report)``, returns a JSON-able dict.
        argument: JSON-able argument.
        limits: time and memory limits.
        log: where the child's output goes; a temporary file by default.
        environment: variables set on top of this process's own.
        observe: receives the child's progress.
    """
    if log is None:
        descriptor, name = tempfile.mkstemp(prefix="quantlab-", suffix=".log")
        os.close(descriptor)
        log = Path(name)
    read_end, write_end = os.pipe()
    with log.open("ab") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "quantlab.worker.child", target, str(write_end)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=_child_environment(environment),
            pass_fds=(write_end,),
            start_new_session=True,
        )
    os.close(write_end)
    inbox = _Inbox(observe)
    reader = threading.Thread(target=inbox.drain, args=(os.fdopen(read_end, encoding="utf-8"),), daemon=True)
    reader.start()
    try:
        with child.stdin as stdin:  # type: ignore[union-attr]
            stdin.write(json.dumps(dict(argument)).encode())
    except BrokenPipeError:
        pass  # the child died before it read its argument; the outcome below says so
    try:
        return _supervise(child, limits or Limits(), inbox, reader, log)
    finally:
        _kill_group(child)


def _child_environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    package_root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", **(extra or {})}
    known = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = package_root if not known else f"{package_root}{os.pathsep}{known}"
    return environment


@dataclass
class _Inbox:
    """Messages of the child so far."""

    observe: Observer
    partial: dict[str, Any] = field(default_factory=dict)
    final: dict[str, Any] | None = None

    def drain(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                message = json.loads(line)
                match message["type"]:
                    case "progress":
                        self.observe(Progress(**message["event"]))
                    case "partial":
                        self.partial.update(message["values"])
                    case _:
                        self.final = message


def _supervise(
    child: subprocess.Popen[bytes], limits: Limits, inbox: _Inbox, reader: threading.Thread, log: Path
) -> Outcome:
    started = time.monotonic()
    peak = 0
    stopped: tuple[Kind, str] | None = None
    while child.poll() is None:
        peak = max(peak, _resident_bytes(child.pid))
        if limits.seconds is not None and time.monotonic() - started > limits.seconds:
            stopped = ("timeout", f"no result within {limits.seconds:g} s")
        elif limits.resident_bytes is not None and peak > limits.resident_bytes:
            stopped = ("out-of-memory", f"used {peak} bytes of host memory, allowed are {limits.resident_bytes}")
        if stopped:
            _kill_group(child)
            child.wait()
            break
        time.sleep(POLL_SECONDS)
    reader.join(timeout=5)
    seconds = time.monotonic() - started
    kind, error, message, result = _verdict(child.returncode, inbox.final, stopped)
    return Outcome(kind, result, dict(inbox.partial), error, message, log, seconds, peak)


def _verdict(
    returncode: int, final: dict[str, Any] | None, stopped: tuple[Kind, str] | None
) -> tuple[Kind, str | None, str | None, dict[str, Any] | None]:
    if stopped:
        return stopped[0], stopped[0], stopped[1], None
    if final is not None and final["type"] == "result":
        return "done", None, None, final["value"]
    if final is not None:
        kind: Kind = "out-of-memory" if final["out_of_memory"] else "raised"
        return kind, final["error"], final["message"], None
    if returncode < 0:
        name = signal.Signals(-returncode).name
        return "crashed", name, f"the worker was ended by {name}", None
    return "crashed", "exit", f"the worker left with exit code {returncode} and no result", None


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _resident_bytes(group: int) -> int:
    """Return resident bytes of the process group's leader (Linux; 0 where /proc is absent)."""
    try:
        with Path(f"/proc/{group}/statm").open(encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0
