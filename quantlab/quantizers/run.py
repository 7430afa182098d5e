"""The front door: one call that quantizes with any library, and leaves a whole, checked checkpoint or none.

Up front everything that can be known is asked (``upfront``); the library runs in a worker process and writes
into a staging folder beside the output; what it leaks is taken out; the result is read back and measured; only
then does the folder get its name. A result that fails its check keeps the name ``OUTPUT.rejected``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from quantlab import worker
from quantlab.checkpoint.facts import CheckpointFacts
from quantlab.errors import QuantizerFailed, UsageError
from quantlab.progress import Observer, Progress, silent
from quantlab.quantizers import QUANTIZERS
from quantlab.quantizers.calibration import CalibrationPlan
from quantlab.quantizers.cleaning import strip_leaks
from quantlab.quantizers.dense_share import DenseShare, dense_share
from quantlab.quantizers.interface import QuantizeJob
from quantlab.quantizers.libraries import library
from quantlab.quantizers.provenance import copy_companions, file_hashes, write_card, write_provenance
from quantlab.quantizers.upfront import QuantizePlan, look_ahead, refuse
from quantlab.quantizers.verification import Depth, Verification, verify
from quantlab.quantizers.workplace import Workplace, existing_parent, require_free, workplace
from quantlab.text import read as read_text

BULK = 0.5
"""Share of weights left in 16 bit from which on the user is warned."""

_ENVIRONMENT = {
    "GPTQMODEL_CPU_WORKERS": "2",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "warning",
}
"""Set for every library. gptqmodel stops on a 2-core machine with fewer than two CPU workers; nothing may reach
for the network, since the source is a folder and the calibration text is read before."""


@dataclass(frozen=True, slots=True)
class QuantizeRequest:
    """One run as a user asks for it.

    Attributes:
        quantizer: quantizer id.
        source: folder of the dense checkpoint.
        output: folder to make; must not exist, or be empty.
        options: the preset's options with ``--set`` applied.
        device: torch device string.
        calibration: text source, or None for the built-in text.
        samples: calibration windows, or None for the library's default.
        sequence_length: tokens of a window, or None for the library's default.
        chat_template: apply the tokenizer's chat template.
        recipe: recipe file for libraries that have them.
        seed: seed of everything random.
        verify: ``none``, ``load``, ``quality``, or None for the default: quality where samples were used.
        force: try in spite of known failures elsewhere.
        target: name of the preset, for provenance.
        command: the command line as typed, for provenance.
    """

    quantizer: str
    source: Path
    output: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    calibration: str | None = None
    samples: int | None = None
    sequence_length: int | None = None
    chat_template: bool = False
    recipe: Path | None = None
    seed: int = 0
    verify: Depth | None = None
    force: bool = False
    target: str | None = None
    command: str | None = None


@dataclass(frozen=True, slots=True)
class QuantizeResult:
    """What came out.

    Attributes:
        output: the finished folder.
        plan: what was known up front, warnings included.
        library: versions of the libraries.
        call: the library call that was made.
        seconds: of the library call alone.
        dense: what stayed in 16 bit.
        check: what the check after writing saw, or None.
        notes: what the user should know.
        log: file with everything the library printed.
    """

    output: Path
    plan: QuantizePlan
    library: Mapping[str, str]
    call: str
    seconds: float
    dense: DenseShare
    check: Verification | None
    notes: tuple[str, ...]
    log: Path

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of the result."""
        return {
            "output": str(self.output),
            "plan": self.plan.to_dict(),
            "library": dict(self.library),
            "call": self.call,
            "seconds": self.seconds,
            "dense_share": self.dense.share,
            "check": None if self.check is None else self.check.to_dict(),
            "notes": list(self.notes),
            "log": str(self.log),
        }


def plan(request: QuantizeRequest, facts: CheckpointFacts) -> QuantizePlan:
    """Return what ``quantize`` would do, obstacles included; for ``--dry-run``.

    Raises:
        UnknownNameError, UsageError: an option or the quantizer cannot be meant.
        MissingExtraError: the library is not installed.
    """
    return look_ahead(request.quantizer, facts, _job(request, request.output), _calibration(request))


def quantize(request: QuantizeRequest, facts: CheckpointFacts, observe: Observer = silent) -> QuantizeResult:
    """Quantize with a library and publish the checked result.

    Raises:
        ConversionRefused: something that is known up front stands in the way, or the output is not empty.
        EnvironmentProblem: the library, memory or disk space is lacking.
        UsageError: options or calibration cannot be meant.
        QuantizerFailed: the library stopped, or its result failed the check; names the log.
    """
    require_free(request.output)
    ahead = plan(request, facts)
    refuse(ahead, existing_parent(request.output), force=request.force)
    text = read_text(request.calibration or "builtin") if ahead.calibrated else None
    request.output.parent.mkdir(parents=True, exist_ok=True)
    with workplace(request.output) as place:
        staging, scratch, log = place.staging, place.scratch, place.log
        outcome = _run_library(request, place, None if text is None else asdict(text), observe)
        removed = strip_leaks(staging, library(request.quantizer).strip, (scratch, request.source.resolve()))
        copy_companions(request.source, staging)
        dense = dense_share(request.source, staging)
        _require_quantized(request, staging, dense, log)
        depth = request.verify or ("quality" if ahead.calibrated else "load")
        check = verify(request.source, staging, depth, device=request.device, log=log, observe=observe)
        report = outcome["report"]
        notes = [*report["notes"], *(f"taken out of {where}" for where in removed), *_dense_notes(dense)]
        notes += check.warnings if check else ()
        _describe(request, staging, {**outcome, "call": ahead.call}, dense, check)
        if check is not None and not check.ok:
            _reject(request, place, check)
        place.publish()
    return QuantizeResult(
        request.output,
        ahead,
        report["library"],
        ahead.call,
        report["seconds"],
        dense,
        check,
        tuple(notes),
        log,
    )


def _job(request: QuantizeRequest, output: Path) -> QuantizeJob:
    return QuantizeJob(
        request.source, output, dict(request.options), request.device, None, request.recipe, request.seed
    )


def _calibration(request: QuantizeRequest) -> CalibrationPlan:
    known = library(request.quantizer)
    return CalibrationPlan(
        request.calibration or "builtin",
        known.samples if request.samples is None else request.samples,
        known.sequence_length if request.sequence_length is None else request.sequence_length,
        request.chat_template,
        request.seed,
    )


def _run_library(
    request: QuantizeRequest,
    place: Workplace,
    text: dict[str, Any] | None,
    observe: Observer,
) -> dict[str, Any]:
    staging, scratch, log = place.staging, place.scratch, place.log
    job = _job(replace(request, source=request.source.resolve()), staging)
    argument = {
        "quantizer": request.quantizer,
        "job": {**asdict(job), "source": str(job.source), "output": str(staging), "recipe": _text(job.recipe)},
        "calibration": None if text is None else asdict(_calibration(request)),
        "text": text,
        "scratch": str(scratch),
    }
    outcome = worker.run(
        "quantlab.quantizers.child:quantize",
        argument,
        log=log,
        environment={**_ENVIRONMENT, "TMPDIR": str(scratch)},
        observe=_with_time_left(observe),
    )
    if outcome.kind != "done" or outcome.result is None:
        words = f"{outcome.error}: {(outcome.message or '').strip() or outcome.kind}"
        message = f"{library(request.quantizer).title} stopped: {words}"
        raise QuantizerFailed(message, hint=f"log: {log}\nits last lines:\n{outcome.last_lines()}")
    refused = outcome.result.get("refused")
    if refused:
        raise UsageError(refused["message"], hint=refused["hint"])
    return outcome.result


def _require_quantized(request: QuantizeRequest, staging: Path, dense: DenseShare, log: Path) -> None:
    """Stop where a library succeeded at nothing: an llm-compressor recipe without a known stage does that."""
    config = json.loads((staging / "config.json").read_text(encoding="utf-8"))
    if "quantization_config" in config and (not dense.total or dense.share < 1.0):
        return
    message = f"{library(request.quantizer).title} ended without an error and quantized nothing"
    hint = "is every stage and modifier of the recipe spelled right?" if request.recipe else "see its log"
    raise QuantizerFailed(message, hint=f"{hint} log: {log}")


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path.resolve())


def _with_time_left(observe: Observer) -> Observer:
    """Add the time that is left to events that count, once a tenth is done."""
    started: dict[str, float] = {}

    def timed(event: Progress) -> None:
        begun = started.setdefault(event.task, time.monotonic())
        if event.total and event.done and event.done < event.total:
            left = (time.monotonic() - begun) / event.done * (event.total - event.done)
            detail = f"{event.detail}, about {left:.0f} s left" if event.detail else f"about {left:.0f} s left"
            event = replace(event, detail=detail)
        observe(event)

    return timed


def _dense_notes(dense: DenseShare) -> list[str]:
    notes = [f"{100 * dense.share:.1f} % of the weights (embeddings and output head apart) stay in 16 bit"]
    if dense.share >= BULK:
        notes.append("the bulk of the model is not quantized")
    if dense.dense_experts:
        notes.append(f"experts of {dense.dense_experts / 1e6:.1f} million parameters stay in 16 bit")
    return notes


def _describe(
    request: QuantizeRequest,
    staging: Path,
    outcome: Mapping[str, Any],
    dense: DenseShare,
    check: Verification | None,
) -> None:
    report, known = outcome["report"], library(request.quantizer)
    settings = QUANTIZERS[request.quantizer].settings(_job(request, request.output))
    content = {
        "command": request.command,
        "target": request.target,
        "source": {"name": request.source.resolve().name, "files": file_hashes(request.source)},
        "quantizer": {
            "id": request.quantizer,
            "library": report["library"],
            "options": {name: value for name, value in settings.items() if value is not None},
            "call": outcome["call"],
            "seconds": round(report["seconds"], 2),
            "seed": request.seed,
            "device": request.device,
        },
        "calibration": outcome["calibration"],
        "dense_share": round(dense.share, 6),
        "check": None if check is None else check.to_dict(),
    }
    title = f"{request.source.resolve().name}, quantized by {known.title}" + (
        f" (preset {request.target})" if request.target else ""
    )
    write_card(staging, name=request.output.name, title=title, load=known.load, content=content)
    write_provenance(staging, content)


def _reject(request: QuantizeRequest, place: Workplace, check: Verification) -> None:
    kept = place.keep_as_rejected()
    message = f"the result of {library(request.quantizer).title} failed its check: {'; '.join(check.problems)}"
    raise QuantizerFailed(message, hint=f"it is kept as {kept}; log: {place.log}")
