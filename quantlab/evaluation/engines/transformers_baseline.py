"""transformers on the original: its log-probabilities for the cache, and what plain rounding would cost.

One pass over the text gives perplexity, cached log-probabilities and, on the first windows in another batch shape,
the noise floor. A second pass over the same weights, rounded to nearest in the candidate's scheme by quantlab's own
arithmetic, gives the figure that the candidate's quality is judged by. Both are kept in the cache: a second
candidate of the same scheme costs nothing, one of another scheme costs the second pass only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from quantlab.checkpoint.facts import CheckpointFacts
from quantlab.checkpoint.open import read
from quantlab.errors import QuantlabError, UsageError
from quantlab.evaluation import modules, scoring
from quantlab.evaluation.divergence import Comparer
from quantlab.evaluation.engines.interface import Report
from quantlab.evaluation.engines.transformers import compiled, cut_text, file_layers
from quantlab.evaluation.engines.transformers_load import load, load_tokenizer
from quantlab.evaluation.job import Job
from quantlab.evaluation.language_model import LanguageModel
from quantlab.evaluation.reference_cache import Recorder, Reference
from quantlab.evaluation.result import QualityReference, plain
from quantlab.evaluation.windows import Window
from quantlab.formats.interface import Layer
from quantlab.tensors.dequantize import dequantize
from quantlab.tensors.quantize import quantize

NOISE_WINDOWS = 4
"""Windows that the original is run over twice, for the noise floor."""

FEWEST_ACTIVATION_BITS = 8
"""Below this, rounding the inputs costs more than rounding the weights, and weights alone are no fair reference."""


def evaluate(argument: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Measure the original (``job.checkpoint``) and its rounding in the scheme of the candidate (``job.baseline``)."""
    job = Job.from_dict(argument)
    assert job.reference is not None
    path = Path(job.reference)
    candidate, layers, note = _candidate(job)
    scheme = scheme_hash(layers)
    known = _known(path)
    if known is not None and (note is not None or scheme in known.facts["rounded"]):
        return _answer(known, scheme, note)
    model, parts, settings = _open(job)
    if known is None:
        known = _measure(job, model, parts, settings, report)
        known.save(path)
    if note is None and candidate is not None:
        rounded = _rounded(model, layers, parts, known=known, job=job, report=report)
        facts = {**known.facts, "rounded": {**known.facts["rounded"], scheme: rounded}}
        known = replace(known, facts=facts)
        known.save(path)
    return _answer(known, scheme, note)


def scheme_hash(layers: Sequence[Layer]) -> str:
    """Return a hash of which layers are rounded, and how."""
    words = sorted(f"{layer.weight_name} {layer.format}" for layer in layers)
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


def _known(path: Path) -> Reference | None:
    try:
        return Reference.read(path) if path.exists() else None
    except QuantlabError:
        return None


def _candidate(job: Job) -> tuple[CheckpointFacts | None, list[Layer], str | None]:
    """Return the candidate and its layers, or why there is no rounding to compare it with."""
    if job.baseline is None:
        return None, [], "rounding was not asked for"
    facts = read(job.baseline)
    layers, trouble = file_layers(facts)
    activations = facts.scheme.activations
    if trouble is not None or not layers:
        return facts, [], trouble or "the checkpoint is not quantized"
    if activations is not None and activations.bits is not None and activations.bits < FEWEST_ACTIVATION_BITS:
        return facts, [], f"inputs are rounded to {activations.bits} bits at run time"
    if any(layer.format.number.kind == "codebook" for layer in layers):
        return facts, [], f"no rounding to {layers[0].format.number.name} here"
    return facts, layers, None


def _open(job: Job) -> tuple[LanguageModel, list[Window], dict[str, Any]]:
    loaded = load(job.checkpoint, job.load)
    model = LanguageModel(loaded.model, compiled(loaded.model, job))
    tokenizer = load_tokenizer(job.checkpoint, job.load)
    if tokenizer is None or job.text is None:
        raise UsageError(f"the original {job.checkpoint} has no tokenizer", hint="put its tokenizer files beside it")
    _, parts, settings = cut_text(job.text, tokenizer, model)
    return model, parts, settings


def _measure(
    job: Job, model: LanguageModel, parts: list[Window], settings: Mapping[str, Any], report: Report
) -> Reference:
    assert job.text is not None
    recorder = Recorder()
    scored = scoring.score(model, parts, batch=job.text.batch, onlookers=[recorder], report=report)
    value, error = scored.perplexity()
    facts = {
        "perplexity": value,
        "standard_error": error,
        "tokens_sha256": settings["tokens_sha256"],
        "noise_floor": None,
        "rounded": {},
    }
    found = Reference.of(recorder, facts)
    few = [part for part in parts if len(part.ids) == len(parts[0].ids)][:NOISE_WINDOWS]
    if len(few) > 1:
        comparer = Comparer(found)
        scoring.score(model, few, batch=1 if job.text.batch > 1 else len(few), onlookers=[comparer])
        facts["noise_floor"] = comparer.result(None).kl_mean
    return found


@torch.inference_mode()
def _rounded(
    model: LanguageModel, layers: Sequence[Layer], parts: list[Window], *, known: Reference, job: Job, report: Report
) -> dict[str, Any]:
    """Round the model's weights where they are, and score it again."""
    assert job.text is not None
    left_out = 0
    for layer in layers:
        module = modules.find(model.model, layer.name)
        weight = getattr(module, "weight", None)
        if weight is None or weight.ndim != 2 or tuple(weight.shape) != tuple(layer.shape):
            left_out += 1
            continue
        try:
            weight.copy_(dequantize(quantize(weight.detach(), layer.format, name=layer.name), weight.dtype))
        except QuantlabError as error:
            return {"perplexity": None, "kl_mean": None, "note": error.message}
    if left_out:
        note = f"{left_out} of {len(layers)} layers are no plain matrices in the original"
        return {"perplexity": None, "kl_mean": None, "note": note}
    comparer = Comparer(known)
    value, _ = scoring.score(model, parts, batch=job.text.batch, onlookers=[comparer], report=report).perplexity()
    return {"perplexity": value, "kl_mean": comparer.result(None).kl_mean, "note": None}


def _answer(known: Reference, scheme: str, note: str | None) -> dict[str, Any]:
    rounded = known.facts["rounded"].get(scheme, {})
    found = QualityReference(
        known.facts["perplexity"], rounded.get("perplexity"), rounded.get("kl_mean"), note or rounded.get("note")
    )
    return {"reference": plain(found)}
