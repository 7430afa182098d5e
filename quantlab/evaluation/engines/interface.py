"""What an engine is to the evaluator: a function that runs in a worker process and reports sections of a result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from quantlab.progress import Progress


class Report(Protocol):
    """Receives progress, and sections of the result as they are ready: a later crash does not lose them."""

    def __call__(self, message: Progress | Mapping[str, Any]) -> None:
        """Take one message."""


class Engine(Protocol):
    """A program that loads a checkpoint.

    Attributes:
        id: the engine's name in the matrix.
        target: ``"module:function"`` for ``quantlab.worker.run``; takes ``Job.to_dict()`` and reports the sections
            ``environment``, ``load``, ``probe``, ``perplexity``, ``divergence``, ``sanity``, ``speed``, ``memory``.
        baseline_target: the same for the original: writes its log-probabilities to ``Job.reference``; None where
            the engine cannot give them.
        distribution: name of the Python distribution whose version identifies it.
        extra: extra of quantlab that installs it.
    """

    id: str
    target: str
    baseline_target: str | None
    distribution: str
    extra: str
