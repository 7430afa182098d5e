"""What a quantizer is: a library that makes a quantized checkpoint from a dense one.

Members run inside a worker process (``quantlab.worker``), so they may import their library at the top of
``quantize`` and leave global state behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from quantlab.checkpoint.facts import CheckpointFacts
from quantlab.formats.interface import Obstacle
from quantlab.progress import Observer


@dataclass(frozen=True, slots=True)
class QuantizeJob:
    """One run of one library.

    Attributes:
        source: folder of the dense checkpoint.
        output: folder to write; does not exist yet.
        options: the preset's options with ``--set`` applied (``bits``, ``group_size``, ``symmetric``, ...).
        device: torch device string.
        calibration: file of token ids (JSON: list of lists of int), or None where the method needs none.
        recipe: a recipe file that is handed to the library as it is.
        seed: seed of every random generator.
    """

    source: Path
    output: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    calibration: Path | None = None
    recipe: Path | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class QuantizeReport:
    """What a library did.

    Attributes:
        library: distribution name and version of every library that took part.
        call: the library call as a user would write it.
        seconds: wall time of the library call alone, without imports.
        notes: what the user should know (experts left dense, keys stripped from the config).
    """

    library: Mapping[str, str]
    call: str
    seconds: float
    notes: tuple[str, ...] = ()


class Quantizer(Protocol):
    """A library behind the front door."""

    id: str
    extra: str

    def settings(self, job: QuantizeJob) -> Mapping[str, Any]:
        """Return every option with its value, defaults filled in.

        Raises:
            UnknownNameError: the library has no such option.
            UsageError: a value does not fit.
        """

    def calibrated(self, job: QuantizeJob) -> bool:
        """Say whether the run needs calibration samples."""

    def obstacles(self, facts: CheckpointFacts, job: QuantizeJob) -> list[Obstacle]:
        """Say what will not work, before any heavy import or work."""

    def call(self, job: QuantizeJob) -> str:
        """Return the exact library call, for ``--dry-run`` and provenance."""

    def quantize(self, job: QuantizeJob, observe: Observer) -> QuantizeReport:
        """Do it and write a complete checkpoint to ``job.output``.

        Raises:
            QuantizerFailed: the library stopped; nothing usable was written.
        """
