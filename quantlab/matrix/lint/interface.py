"""What a lint rule is: a function from the data to findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from quantlab.checkpoint.facts import Finding
from quantlab.matrix.load import MatrixData


@dataclass(frozen=True, slots=True)
class Subject:
    """What is linted.

    Attributes:
        folder: folder of the matrix data.
        data: the data, loaded.
    """

    folder: Path
    data: MatrixData


Rule = Callable[[Subject], Iterator[Finding]]
