"""The worker's side: calibrate, hand over to the library, clean up after it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from quantlab.errors import QuantlabError, UsageError
from quantlab.progress import Observer, Progress
from quantlab.quantizers import QUANTIZERS
from quantlab.quantizers.calibration import Calibration, CalibrationPlan, calibrate
from quantlab.quantizers.interface import QuantizeJob
from quantlab.text import Text

Report = Callable[[Progress | Mapping[str, Any]], None]


def quantize(argument: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Run one library on one job.

    Args:
        argument: ``quantizer``, ``job`` (the fields of ``QuantizeJob`` with paths as text), ``calibration`` (the
            fields of ``CalibrationPlan``, or None), ``text`` (the fields of ``Text``) and ``scratch``.
        report: receives progress and partial results.

    Returns:
        ``{"report", "calibration"}``, or ``{"refused": {"message", "hint"}}`` for an error that names its way out.
    """
    scratch = Path(argument["scratch"])
    _seed(int(argument["job"]["seed"]))
    try:
        samples = _samples(argument, scratch, report)
        job = _job(argument["job"], None if samples is None else scratch / "samples.json")
        done = QUANTIZERS[argument["quantizer"]].quantize(job, _progress_only(report))
    except QuantlabError as error:
        return {"refused": {"message": error.message, "hint": error.hint}}
    return {
        "report": {
            "library": dict(done.library),
            "call": done.call,
            "seconds": done.seconds,
            "notes": list(done.notes),
        },
        "calibration": None if samples is None else samples.summary(),
    }


def _progress_only(report: Report) -> Observer:
    def observe(event: Progress) -> None:
        report(event)

    return observe


def _job(fields: Mapping[str, Any], calibration: Path | None) -> QuantizeJob:
    recipe = fields.get("recipe")
    return QuantizeJob(
        Path(fields["source"]),
        Path(fields["output"]),
        dict(fields["options"]),
        fields["device"],
        calibration,
        None if recipe is None else Path(recipe),
        int(fields["seed"]),
    )


def _samples(argument: Mapping[str, Any], scratch: Path, report: Report) -> Calibration | None:
    if argument["calibration"] is None:
        return None
    from transformers import AutoTokenizer

    report(Progress("calibrate", 0, None, "samples", "cutting samples"))
    source = Path(argument["job"]["source"])
    tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=True)
    plan, text = CalibrationPlan(**argument["calibration"]), Text(**argument["text"])
    samples = calibrate(text, tokenizer, plan)
    _check_vocabulary(samples, source)
    if (
        plan.chat_template
        and tokenizer.pad_token_id is None
        and int(argument["job"]["options"].get("batch_size", 1)) > 1
    ):
        message = "conversations of different length are batched, and the tokenizer has no padding token"
        raise UsageError(message, hint="--set batch_size=1, or name a pad_token in tokenizer_config.json")
    samples.write(scratch / "samples.json")
    return samples


def _check_vocabulary(samples: Calibration, source: Path) -> None:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(source, local_files_only=True)
    size = getattr(config.get_text_config(), "vocab_size", None)
    highest = max(map(max, samples.ids))
    if size is not None and highest >= size:
        message = f"the tokenizer gives token id {highest}, the model's vocabulary ends at {size - 1}"
        raise UsageError(message, hint="tokenizer and weights are of two models")


def _seed(seed: int) -> None:
    import random

    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed)  # libraries draw from the global generator
    torch.manual_seed(seed)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or torch.get_num_threads()))
