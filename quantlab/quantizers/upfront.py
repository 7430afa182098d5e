"""Everything that can be known before hours of work: what stops a run, what to warn of, what it costs."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantlab.checkpoint.facts import CheckpointFacts
from quantlab.errors import ConversionRefused, EnvironmentProblem, MissingExtraError
from quantlab.formats.interface import Obstacle
from quantlab.quantizers import QUANTIZERS
from quantlab.quantizers.calibration import CalibrationPlan
from quantlab.quantizers.interface import QuantizeJob
from quantlab.quantizers.libraries import Library, library
from quantlab.quantizers.shapes import expert_weights

_DENSE = {"dense", "unknown"}
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
_UNFORCED = {"already-quantized", "tokenizer", "no-weights"}
"""Obstacles that ``--force`` does not lift: the library itself would stop."""


@dataclass(frozen=True, slots=True)
class QuantizePlan:
    """What a run would do.

    Attributes:
        quantizer: quantizer id.
        call: the exact library call.
        calibrated: calibration samples are needed.
        obstacles: why it will not work; empty means go.
        warnings: what the user should know first.
        memory_bytes: expected peak of host memory (device memory is not estimated).
        disk_bytes: expected need of disk space while it runs.
        seconds: expected time on two CPU cores, or None on another device.
        resume: what happens to an interrupted run.
    """

    quantizer: str
    call: str
    calibrated: bool
    obstacles: tuple[Obstacle, ...]
    warnings: tuple[str, ...]
    memory_bytes: int
    disk_bytes: int
    seconds: float | None
    resume: str

    def to_dict(self) -> dict[str, Any]:
        """Return what ``convert --dry-run --format json`` prints of the library's part."""
        return {
            "quantizer": self.quantizer,
            "call": self.call,
            "calibrated": self.calibrated,
            "obstacles": [{"rule": o.rule, "reason": o.reason, "fix": o.fix} for o in self.obstacles],
            "warnings": list(self.warnings),
            "memory_bytes": self.memory_bytes,
            "disk_bytes": self.disk_bytes,
            "seconds": self.seconds,
            "resume": self.resume,
        }


def look_ahead(quantizer: str, facts: CheckpointFacts, job: QuantizeJob, calibration: CalibrationPlan) -> QuantizePlan:
    """Return the plan of one run, its obstacles included; imports no heavy library.

    Raises:
        UnknownNameError: no such quantizer, or an option that it does not have.
        UsageError: an option's value cannot be meant.
        MissingExtraError: the library is not installed; the hint is the exact command.
    """
    known, member = library(quantizer), QUANTIZERS[quantizer]
    version = known.installed()
    if version is None:
        raise MissingExtraError(known.package, known.extra, f"quantizing with {known.title}")
    options = member.settings(job)
    calibrated = member.calibrated(job)
    obstacles = [*_source_obstacles(facts, job, calibrated), *member.obstacles(facts, job)]
    obstacles += _unsupported(facts, known)
    held = [c for c in known.clauses if c.holds(options, job.device, facts.architecture.model_type)]
    obstacles += [Obstacle("known-failure", c.reason, c.fix) for c in held if c.outcome == "refused"]
    warnings = [*known.version_warnings(version), *(c.reason for c in held if c.outcome == "experts-dense")]
    warnings += _unknown_experts(facts, known, bool(held))
    tokens = calibration.samples * calibration.sequence_length if calibrated else 0
    if calibrated and tokens < known.minimum_tokens:
        reason = f"{tokens} calibration tokens are too few for {known.title}, which needs {known.minimum_tokens}"
        obstacles.append(Obstacle("calibration", reason, "more --samples or a longer --sequence-length"))
    size = facts.bytes.get("total") or _weights_on_disk(job.source)
    parameters = (facts.parameters.get("total") or size // 2) / 1e9
    cost = known.cost
    seconds = cost.seconds + parameters * (cost.seconds_per_billion + cost.seconds_per_billion_kilotoken * tokens / 1e3)
    return QuantizePlan(
        quantizer,
        member.call(job),
        calibrated,
        tuple(obstacles),
        tuple(warnings),
        int(cost.base_bytes + cost.memory_factor * size),
        int((1 + cost.disk_factor) * size),
        seconds if job.device.startswith("cpu") else None,
        known.resume,
    )


def refuse(plan: QuantizePlan, folder: Path, *, force: bool = False) -> None:
    """Raise the first obstacle that stands, then what the machine lacks.

    Args:
        plan: what ``look_ahead`` found.
        folder: an existing folder on the file system that will hold the output.
        force: try in spite of obstacles that are known from runs elsewhere.

    Raises:
        ConversionRefused: an obstacle; all reasons are in the message.
        EnvironmentProblem: too little memory or disk space.
    """
    standing = [o for o in plan.obstacles if not force or o.rule in _UNFORCED]
    if standing:
        fixes = [o.fix for o in standing if o.fix]
        raise ConversionRefused("; ".join(o.reason for o in standing), hint="; ".join(fixes) or None)
    free = shutil.disk_usage(folder).free
    if free < plan.disk_bytes:
        message = f"{plan.disk_bytes / 1e9:.1f} GB of disk space are needed in {folder}, {free / 1e9:.1f} GB are free"
        raise EnvironmentProblem(message)
    memory = available_memory()
    if memory is not None and memory < plan.memory_bytes and not force:
        message = f"about {plan.memory_bytes / 1e9:.1f} GB of memory are needed, {memory / 1e9:.1f} GB are available"
        raise EnvironmentProblem(message, hint="a machine with more memory, or --force to try")


def available_memory() -> int | None:
    """Return the host memory in bytes that new work may use, or None where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return None


def _source_obstacles(facts: CheckpointFacts, job: QuantizeJob, calibrated: bool) -> list[Obstacle]:
    found = []
    if facts.format not in _DENSE:
        fix = "dequantize first: quantlab convert SOURCE DENSE --to bf16, then this command on DENSE"
        found.append(Obstacle("already-quantized", f"the source is already quantized ({facts.format})", fix))
    if not facts.tensors:
        found.append(Obstacle("no-weights", "the source has no safetensors weights", None))
    if calibrated and not any((job.source / name).is_file() for name in _TOKENIZERS):
        fix = f"put one of {', '.join(_TOKENIZERS)} beside the weights"
        found.append(Obstacle("tokenizer", "the source has no tokenizer, and calibration needs one", fix))
    return found


def _unsupported(facts: CheckpointFacts, known: Library) -> list[Obstacle]:
    kind = facts.architecture.model_type
    if not known.supported_models or kind in known.supported_models:
        return []
    reason = f"{known.title} has no mapping for the architecture {kind!r}"
    return [Obstacle("architecture", reason, f"it maps {', '.join(known.supported_models)}")]


def _unknown_experts(facts: CheckpointFacts, known: Library, stated: bool) -> list[str]:
    experts = sum(1 for _ in expert_weights(facts))
    if stated or (not experts and facts.experts is None):
        return []
    who = facts.architecture.model_type or "this architecture"
    return [f"nobody has tried {known.title} on the experts of {who} yet; the load check after writing will tell"]


def _weights_on_disk(source: Path) -> int:
    return sum(path.stat().st_size for path in source.glob("*.safetensors"))
