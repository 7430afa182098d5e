"""The plan of a conversion as frozen values: what is read, what becomes of it, where it is written.

A job is the smallest piece that can be done alone: one layer, several that share a scale, or one tensor that is
copied. Jobs of a shard are done in order of their numbers as far as the output's bytes are concerned, so the same
plan always gives the same bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from quantlab.checkpoint.facts import CheckpointFacts
from quantlab.conversion.edges import Edge, Exactness
from quantlab.conversion.presets import Preset
from quantlab.formats.interface import Layer
from quantlab.tensors.quantized import WeightFormat

Action = Literal["copy", "cast", "repack", "quantize", "dequantize", "requantize"]
Case = Literal["cast", "repack", "quantize", "dequantize", "requantize", "quantizer"]
"""What ``--to`` means for a source; ``quantizer`` hands the whole checkpoint to a library."""


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """One weight on its way.

    Attributes:
        name: module name.
        weight_name: name of the dense tensor that the layer stands for.
        shape: logical shape.
        source: how the source holds it, or None where it is dense.
        target: scheme of the output, or None where it becomes dense.
    """

    name: str
    weight_name: str
    shape: tuple[int, ...]
    source: Layer | None
    target: WeightFormat | None


@dataclass(frozen=True, slots=True)
class Job:
    """One piece of work.

    Attributes:
        action: what is done.
        tensors: names of the source tensors that are read.
        layers: the weights; empty for ``copy``; more than one only where they share a scale.
        exactness: what is promised of the outcome.
        read_bytes: bytes of the source tensors.
        written_bytes: bytes of the output, from the schemes.
        peak_bytes: memory while it is done: input, output and the float32 that lies between.
    """

    action: Action
    tensors: tuple[str, ...]
    layers: tuple[LayerPlan, ...]
    exactness: Exactness
    read_bytes: int
    written_bytes: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """One output file and its jobs."""

    file: str
    jobs: tuple[Job, ...]

    @property
    def written_bytes(self) -> int:
        """Bytes that the file will have, but for its header."""
        return sum(job.written_bytes for job in self.jobs)


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole conversion.

    Attributes:
        source: folder of the checkpoint, or its hub id.
        output: folder to write.
        case: what ``--to`` means here.
        facts: what the source is.
        preset: what was asked for; for ``--to-format`` alone, a preset without a scheme.
        target_format: format id of the output.
        edge: the way between the formats.
        shards: the work, in order.
        kept_dense: modules that stay dense although they are matrices.
        requantize: whether layers that cannot be exact may be quantized again.
        notes: what the user should know.
        verdict: what the matrix says of the output where a gpu or engine was named.
        quantizer: what a library would do, for ``quantizer``.
    """

    source: str
    output: Path
    case: Case
    facts: CheckpointFacts
    preset: Preset
    target_format: str
    edge: Edge
    shards: tuple[ShardPlan, ...]
    kept_dense: tuple[str, ...] = ()
    requantize: bool = False
    notes: tuple[str, ...] = ()
    verdict: Mapping[str, Any] | None = None
    quantizer: Mapping[str, Any] | None = field(default=None)

    @property
    def jobs(self) -> Iterator[Job]:
        """Every job, in order."""
        return (job for shard in self.shards for job in shard.jobs)

    @property
    def written_bytes(self) -> int:
        """Bytes of all weights of the output."""
        return sum(shard.written_bytes for shard in self.shards)

    @property
    def largest_job(self) -> int:
        """Peak memory of the job that needs most."""
        return max((job.peak_bytes for job in self.jobs), default=0)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of ``--dry-run``."""
        return {
            "source": self.source,
            "output": str(self.output),
            "case": self.case,
            "preset": self.preset.name,
            "source_format": self.facts.format,
            "target_format": self.target_format,
            "exactness": _exactness(self),
            "condition": self.edge.condition,
            "layers": sum(len(job.layers) for job in self.jobs),
            "kept_dense": list(self.kept_dense),
            "shards": [
                {"file": shard.file, "jobs": len(shard.jobs), "bytes": shard.written_bytes} for shard in self.shards
            ],
            "bytes": {"read": sum(job.read_bytes for job in self.jobs), "written": self.written_bytes},
            "peak_memory_bytes": 2 * self.largest_job,
            "verdict": None if self.verdict is None else dict(self.verdict),
            "quantizer": None if self.quantizer is None else dict(self.quantizer),
            "notes": list(self.notes),
        }


def _exactness(plan: Plan) -> list[dict[str, Any]]:
    """Return, for each kind of layer (the last part of its name), what is promised and for how many layers."""
    count: Counter[tuple[str, str, str]] = Counter()
    for job in plan.jobs:
        kinds = [layer.name.rsplit(".", 1)[-1] for layer in job.layers]
        count.update((kind, job.action, job.exactness) for kind in kinds or ["dense tensors"])
    return [
        {"kind": kind, "action": action, "class": exactness, "count": number}
        for (kind, action, exactness), number in sorted(count.items())
    ]
