"""The child's side of ``quantlab.worker``: import, call, report."""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import IO, Any

from quantlab.progress import Progress

Report = Callable[[Progress | Mapping[str, Any]], None]
"""What a worker function may call: a Progress event, or a mapping of partial results that survive a crash."""


def main() -> None:
    """Run the target named on the command line with the argument from stdin."""
    target, descriptor = sys.argv[1], int(sys.argv[2])
    os.set_inheritable(descriptor, False)
    argument = json.load(sys.stdin)
    with os.fdopen(descriptor, "w", encoding="utf-8", buffering=1) as pipe:
        _send(pipe, _answer(target, argument, _reporter(pipe)))


def _answer(target: str, argument: dict[str, Any], report: Report) -> dict[str, Any]:
    try:
        module, name = target.split(":")
        function = getattr(importlib.import_module(module), name)
        return {"type": "result", "value": function(argument, report)}
    except Exception as error:  # noqa: BLE001 - whatever a library raises is the worker's result
        traceback.print_exc()
        return {
            "type": "error",
            "error": type(error).__name__,
            "message": str(error),
            "out_of_memory": isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError",
        }


def _reporter(pipe: IO[str]) -> Report:
    def report(message: Progress | Mapping[str, Any]) -> None:
        if isinstance(message, Progress):
            _send(pipe, {"type": "progress", "event": asdict(message)})
        else:
            _send(pipe, {"type": "partial", "values": dict(message)})

    return report


def _send(pipe: IO[str], message: dict[str, Any]) -> None:
    pipe.write(json.dumps(message) + "\n")
    pipe.flush()


if __name__ == "__main__":
    main()
