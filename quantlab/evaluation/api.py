"""``quantlab.evaluate``: run the engine in a worker, put what it found together, judge it."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from quantlab import text as texts
from quantlab import worker
from quantlab.checkpoint.facts import CheckpointFacts, Finding
from quantlab.checkpoint.open import read
from quantlab.errors import EnvironmentProblem, QuantlabError, UsageError
from quantlab.evaluation.engines import ENGINES
from quantlab.evaluation.engines.interface import Engine
from quantlab.evaluation.identity import content_hash, identify
from quantlab.evaluation.job import DEFAULT_TOKENS, Job, LoadOptions, SpeedOptions, TextOptions
from quantlab.evaluation.result import (
    DeviceMemory,
    Divergence,
    Environment,
    Load,
    Perplexity,
    Probe,
    QualityReference,
    Result,
    Sanity,
    SpeedCell,
    typed,
)
from quantlab.evaluation.verdict import Measured, Thresholds, judge
from quantlab.matrix.data import cache_folder
from quantlab.progress import Observer, silent
from quantlab.version import __version__


def evaluate(
    checkpoint: str | Path,
    *,
    baseline: str | Path | None = None,
    engine: str = "transformers",
    text: str | None = "builtin",
    tokens: int | None = DEFAULT_TOKENS,
    window: int | None = None,
    stride: int | None = None,
    batch: int = 1,
    probe: int | None = None,
    load: LoadOptions | None = None,
    speed: SpeedOptions | None = None,
    generate: bool = True,
    rounding: bool = True,
    thresholds: Thresholds | None = None,
    limits: worker.Limits | None = None,
    seed: int = 0,
    observe: Observer = silent,
) -> Result:
    """Load a checkpoint in a worker process, prove it, measure it, judge it.

    Args:
        checkpoint: local folder.
        baseline: folder of the original: adds divergence, the decode against its weights, and the reference.
        engine: engine id.
        text: what ``quantlab.text.read`` understands; None leaves quality out.
        tokens: tokens of the text, None for all.
        window: tokens in a window; None means 2048 or the model's maximum.
        stride: new tokens of each window; None means no overlap.
        batch: windows in one forward pass.
        probe: layers to probe; None means all, 0 none.
        load: device, dtype, attention and the like.
        speed: the grid; one small cell by default.
        generate: continue some prompts.
        rounding: measure the original rounded to nearest in the checkpoint's scheme, as the judge's reference.
        thresholds: what fails beside damage and ruin.
        limits: of each worker.
        seed: of all random inputs.
        observe: hears of progress.

    Raises:
        CheckpointError: a folder that cannot be read.
        UsageError: options that do not fit.
        EnvironmentProblem: the engine is not installed; the worker of the original failed.
    """
    chosen = ENGINES[engine]
    _require_engine(chosen)
    options = load or LoadOptions()
    facts = _read(checkpoint)
    job = Job(
        str(checkpoint),
        options,
        None if text is None else _text(text, tokens, window, stride, batch),
        probe,
        speed or SpeedOptions(),
        None if baseline is None else str(baseline),
        generate=generate,
        seed=seed,
    )
    reference = None
    if baseline is not None and job.text is not None:
        job, reference = _with_reference(job, chosen, limits, observe, rounding=rounding)
    outcome = worker.run(chosen.target, job.to_dict(), limits=limits, observe=observe)
    return _result(facts, chosen, outcome, reference=reference, thresholds=thresholds or Thresholds())


def _require_engine(engine: Engine) -> None:
    from importlib.util import find_spec

    from quantlab.errors import MissingExtraError

    if engine.id == "transformers" and (find_spec("torch") is None or find_spec("transformers") is None):
        raise MissingExtraError("transformers", engine.extra, "evaluating")


def _read(checkpoint: str | Path) -> CheckpointFacts:
    path = Path(checkpoint)
    if not path.is_dir():
        raise UsageError(
            f"there is no checkpoint folder at {str(path)!r}", hint="hub models: download them first (hf download)"
        )
    return read(str(path))


def _text(source: str, tokens: int | None, window: int | None, stride: int | None, batch: int) -> TextOptions:
    if batch < 1:
        raise UsageError(f"a batch of {batch} windows cannot run", hint="--batch 1 or more")
    if tokens is not None and tokens < 2:
        raise UsageError(f"{tokens} tokens are too few to measure on", hint="--tokens 2 or more")
    found = texts.read(source, part="evaluation")
    return TextOptions(found.name, found.content, found.sha256, tokens, window, stride, batch)


def _with_reference(
    job: Job, engine: Engine, limits: worker.Limits | None, observe: Observer, *, rounding: bool
) -> tuple[Job, QualityReference | None]:
    """Make or find the original's log-probabilities; return the job that uses them, and the judge's reference."""
    if engine.baseline_target is None or job.baseline is None:
        return job, None
    original = identify(_read(job.baseline))
    content = job.text
    assert content is not None
    key = [content_hash(original), content.sha256, content.tokens, content.window, content.stride, content.batch]
    key += [job.load.device, job.load.dtype, job.load.attention, engine.id, __version__]
    digest = hashlib.sha256(repr(key).encode()).hexdigest()[:32]
    path = cache_folder() / "reference" / f"{digest}.safetensors"
    request = replace(job, checkpoint=job.baseline, baseline=job.checkpoint if rounding else None, reference=str(path))
    outcome = worker.run(engine.baseline_target, request.to_dict(), limits=limits, observe=observe)
    if outcome.result is None:
        raise EnvironmentProblem(
            f"measuring the original failed ({outcome.kind}): {outcome.error}: {outcome.message}",
            hint=f"the log is in {outcome.log}",
        )
    reference = typed(QualityReference, outcome.result["reference"])
    return replace(job, reference=str(path)), reference


def _result(
    facts: CheckpointFacts,
    engine: Engine,
    outcome: worker.Outcome,
    *,
    reference: QualityReference | None,
    thresholds: Thresholds,
) -> Result:
    found = dict(outcome.partial)
    load = typed(Load, found.get("load")) or Load(False)
    if outcome.kind != "done":
        load = replace(load, ok=False, error=outcome.error, message=outcome.message)
    memory = {device: typed(DeviceMemory, item) for device, item in found.get("memory", {}).items()}
    for device, peak in found.get("peaks", {}).items():
        memory[device] = replace(memory.get(device, DeviceMemory()), peak_bytes=peak)
    measured = Measured(
        load=load,
        probe=typed(Probe, found.get("probe")),
        perplexity=typed(Perplexity, found.get("perplexity")),
        divergence=typed(Divergence, found.get("divergence")),
        reference=reference,
        sanity=typed(Sanity, found.get("sanity")),
        findings=_findings(facts),
        vocabulary=facts.architecture.vocab_size,
        notes=found.get("notes", ()),
    )
    return Result(
        checkpoint=identify(facts),
        engine=engine.id,
        environment=typed(Environment, found.get("environment")) or Environment(),
        load=load,
        verdict=judge(measured, thresholds),
        probe=measured.probe,
        perplexity=measured.perplexity,
        divergence=measured.divergence,
        reference=reference,
        sanity=measured.sanity,
        speed=tuple(typed(SpeedCell, cell) for cell in found.get("speed", ())),
        memory=memory,
        worker=_worker(outcome),
        quantlab=__version__,
        date=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    )


def _findings(facts: CheckpointFacts) -> Sequence[Finding]:
    try:
        from quantlab.checkpoint.inspection import inspect

        return inspect(facts.path).findings
    except (ImportError, QuantlabError):
        return facts.findings


def _worker(outcome: worker.Outcome) -> dict[str, Any]:
    return {
        "kind": outcome.kind,
        "seconds": round(outcome.seconds, 3),
        "peak_resident_bytes": outcome.peak_resident_bytes,
        "log": str(outcome.log),
        "last_lines": outcome.last_lines() if outcome.kind != "done" else "",
    }
