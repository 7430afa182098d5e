"""Every error that quantlab raises on purpose, with its exit code.

A message says what failed, with which value; the hint says what to do and is printed on its own line.
Anything else that escapes is a bug of ours: exit code 70.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of the command line."""

    YES = 0
    NO = 1
    USAGE = 2
    RESUMABLE = 3
    BUG = 70
    INTERRUPTED = 130


class QuantlabError(Exception):
    """Base of all errors that a user can act on.

    Args:
        message: what failed, with which value; one line, no full stop.
        hint: what to do about it.
    """

    exit_code: Exit = Exit.USAGE

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\nhint: {self.hint}"


class UsageError(QuantlabError):
    """The command or call itself cannot be meant: an unknown name, clashing options."""


class UnknownNameError(UsageError):
    """A name that no data file knows; the hint offers the nearest known ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, hint: str | None = None) -> None:
        near = difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.5)
        offer = f"did you mean {', '.join(near)}?" if near else None
        super().__init__(f"unknown {kind} {name!r}", hint=hint if offer is None else offer)
        self.name = name


class DataError(QuantlabError):
    """A file of the matrix cannot be right; names the file and the field."""


class CheckpointError(QuantlabError):
    """A checkpoint is missing, malformed or unsafe; names the file and the field."""


class EnvironmentProblem(QuantlabError):
    """Something that this machine lacks: a library, an extra, memory, disk space, a device."""


class MissingExtraError(EnvironmentProblem):
    """A library that an optional extra installs is absent; the hint is the exact command."""

    def __init__(self, library: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs {library}, which is not installed",
            hint=f'pip install "quantlab[{extra}]"',
        )


class ConversionRefused(QuantlabError):
    """A conversion that would not be exact, or whose output would not run; names layer and reason."""


class QuantizerFailed(QuantlabError):
    """A quantizer library stopped; carries its last words and the path of its log."""


class InterruptedRun(QuantlabError):
    """Stopped half way; the same command with ``--resume`` finishes the work."""

    exit_code = Exit.RESUMABLE
