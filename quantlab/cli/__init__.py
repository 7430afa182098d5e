"""The command line: picks a command, imports only its module, turns errors into exit codes.

argparse and not typer, because a whole ``quantlab check`` must answer within 0.3 s and importing typer
alone takes a third of that.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import NoReturn, cast

from quantlab.cli.failure import report_bug, report_error
from quantlab.cli.interface import Command
from quantlab.errors import Exit, QuantlabError, UnknownNameError
from quantlab.version import __version__

COMMANDS: dict[str, str] = {
    "doctor": "what this machine is, what is installed on it, and what works here",
    "matrix": "the compatibility matrix: show, lint, diff, sources",
    "check": "will this checkpoint or method run on that gpu, and why",
    "recommend": "which methods fit and run on a gpu, ranked",
    "inspect": "what is in a checkpoint, and what is wrong with it",
    "sample": "fetch the sample model",
    "convert": "quantize, repack or dequantize a checkpoint",
    "evaluate": "prove that a checkpoint loads and works; measure quality and speed",
    "compare": "several results side by side",
    "sweep": "a grid of conversions and evaluations",
    "evidence": "bundle and import evidence",
}
"""Command name to its one-line summary; the module has the same name."""


class _Parser(argparse.ArgumentParser):
    """A parser whose complaints look like every other error of ours."""

    def error(self, message: str) -> NoReturn:
        print(f"error: {message}\nhint: {self.prog} --help", file=sys.stderr)
        raise SystemExit(int(Exit.USAGE))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        return _dispatch(words)
    except SystemExit as stop:
        return int(stop.code or 0) if isinstance(stop.code, int | None) else int(Exit.USAGE)
    except QuantlabError as error:
        return report_error(error, debug=debug)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return int(Exit.INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()
        return int(Exit.YES)
    except Exception as bug:  # noqa: BLE001 - the last line of defence: a bug is reported as one, with exit 70
        return report_bug(bug, debug=debug)


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in {"-h", "--help"}:
        print(usage())
        return int(Exit.YES if words else Exit.USAGE)
    if words[0] in {"-V", "--version"}:
        print(f"quantlab {__version__}")
        return int(Exit.YES)
    name = words[0]
    if name not in COMMANDS:
        raise UnknownNameError("command", name, COMMANDS, hint="quantlab --help")
    command = cast("Command", importlib.import_module(f"quantlab.cli.{name}"))
    parser = _Parser(prog=f"quantlab {name}", description=COMMANDS[name], allow_abbrev=False)
    command.add_arguments(parser)
    return command.run(parser.parse_args(words[1:]))


def usage() -> str:
    """Return the text of ``quantlab --help``."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items()]
    return "\n".join(
        [
            "usage: quantlab COMMAND [options]",
            "",
            "quantized models: what runs where, exact conversion, and proof that it works",
            "",
            *lines,
            "",
            "quantlab COMMAND --help tells a command's options; --debug shows the traceback of a failure",
        ]
    )
