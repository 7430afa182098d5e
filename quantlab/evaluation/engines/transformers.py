"""transformers: loads the checkpoint in this process and measures everything."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from quantlab.checkpoint.facts import CheckpointFacts
from quantlab.checkpoint.open import read
from quantlab.errors import QuantlabError
from quantlab.evaluation import load_proof, memory, modules, sanity, scoring, speed, vocabulary, windows
from quantlab.evaluation.divergence import Comparer
from quantlab.evaluation.engines.interface import Report
from quantlab.evaluation.engines.transformers_load import Loaded, first_device, load, load_tokenizer
from quantlab.evaluation.environment import describe, identify, settings_of
from quantlab.evaluation.job import DEFAULT_WINDOW, Job, TextOptions
from quantlab.evaluation.language_model import LanguageModel
from quantlab.evaluation.reference_cache import Reference
from quantlab.evaluation.result import DeviceMemory, Load, Perplexity, plain
from quantlab.formats import FORMATS
from quantlab.formats.interface import Layer


class Transformers:
    """The engine ``transformers``."""

    id = "transformers"
    target = "quantlab.evaluation.engines.transformers:evaluate"
    baseline_target: str | None = "quantlab.evaluation.engines.transformers_baseline:evaluate"
    distribution = "transformers"
    extra = "torch"


ENGINE = Transformers()


def evaluate(argument: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Run one job in a worker process; every section is reported as soon as it is there."""
    job = Job.from_dict(argument)
    torch.manual_seed(job.seed)
    facts = read(job.checkpoint)
    layers, trouble = file_layers(facts)
    report({"environment": plain(describe(first_device(job.load.device), job.load, None, job.load.dtype))})
    try:
        loaded = load(job.checkpoint, job.load)
    except Exception as error:  # noqa: BLE001 - whatever a library raises while loading is the finding
        import traceback

        traceback.print_exc()
        report({"load": plain(Load(False, error=type(error).__name__, message=str(error)))})
        return {}
    model = LanguageModel(loaded.model, compiled(loaded.model, job))
    attention, dtype = settings_of(loaded.model)
    report({"environment": plain(describe(model.device, job.load, attention, dtype))})
    _prove_load(job, facts, layers, loaded=loaded, model=model, report=report)
    if job.probe != 0:
        from quantlab.evaluation.layer_probe import probe

        report({"probe": plain(probe(loaded.model, facts, layers, trouble=trouble, job=job, report=report))})
    _measure_quality(job, model, report)
    if job.speed.cells():
        cells = speed.measure(model, job.speed, traffic(loaded.model, model.device), report, job.seed)
        report({"speed": plain(cells)})
    peak = memory.peaks(loaded.model)
    report({"peaks": peak})
    return {}


def compiled(model: Any, job: Job) -> Any:
    """Return what runs forward passes: the model, compiled where that was asked for."""
    return torch.compile(model) if job.load.compile else model


def file_layers(facts: CheckpointFacts) -> tuple[list[Layer], str | None]:
    """Return the quantized layers of the file, or why quantlab cannot tell them."""
    if facts.format == "dense":
        return [], None
    if facts.format not in FORMATS:
        return [], f"quantlab does not decode the format {facts.format}"
    try:
        return FORMATS[facts.format].layers(facts), None
    except QuantlabError as error:
        return [], error.message


def _prove_load(
    job: Job, facts: CheckpointFacts, layers: list[Layer], *, loaded: Loaded, model: LanguageModel, report: Report
) -> None:
    at_load = memory.allocated(loaded.model)
    quantized = modules.quantized_parameters(loaded.model, layers)
    promised = modules.promised_parameters(loaded.model, facts, layers)
    with load_proof.open_tensors(facts) as source:
        differing, compared = load_proof.differing_tensors(loaded.model, facts, source, layers)
    missing = load_proof.missing_keys(loaded.model, loaded.info)
    mismatched = load_proof.keys(loaded.info, "mismatched_keys")
    found = Load(
        ok=not (missing or mismatched or differing),
        seconds=loaded.seconds,
        modules=modules.classes(loaded.model),
        kernels=modules.kernels(loaded.model, layers),
        quantized_parameters=quantized,
        expected_quantized_parameters=promised,
        missing_keys=load_proof.names(missing),
        unexpected_keys=load_proof.names(load_proof.keys(loaded.info, "unexpected_keys")),
        mismatched_keys=load_proof.names(mismatched),
        differing_tensors=load_proof.names(differing),
        compared_tensors=compared,
        file_bytes=facts.bytes.get("total", 0),
        tokenizer_problem=vocabulary.trouble(job, loaded.model),
    )
    report({"load": plain(found), "memory": plain({d: DeviceMemory(b) for d, b in at_load.items()})})
    model.full_logits(torch.arange(8)[None] % model.vocabulary)
    after = memory.allocated(loaded.model)
    found = replace(
        found,
        kernels=modules.kernels(loaded.model, layers),
        dequantized=load_proof.dequantized(facts, at_load, after),
    )
    devices = {d: DeviceMemory(at_load.get(d), after.get(d)) for d in {**at_load, **after}}
    report({"load": plain(found), "memory": plain(devices)})


def _measure_quality(job: Job, model: LanguageModel, report: Report) -> None:
    if job.text is None:
        return
    tokenizer = load_tokenizer(job.checkpoint, job.load)
    if tokenizer is None:
        return
    ids, parts, settings = cut_text(job.text, tokenizer, model)
    report({"sanity": plain(sanity.check(model, tokenizer, ids[:64], generate=job.generate))})
    comparer = None
    if job.reference is not None:
        reference = Reference.read(Path(job.reference))
        if reference.facts["tokens_sha256"] == settings["tokens_sha256"]:
            comparer = Comparer(reference)
        else:
            report({"notes": ["the original's tokenizer cuts the text into other tokens; divergence left out"]})
    found = measure_perplexity(
        job.text, model, parts, settings, report=report, onlookers=[comparer] if comparer else []
    )
    report({"perplexity": plain(found)})
    if comparer is not None:
        report({"divergence": plain(comparer.result(comparer.reference.facts.get("noise_floor")))})


def cut_text(
    text: TextOptions, tokenizer: Any, model: LanguageModel
) -> tuple[list[int], list[windows.Window], dict[str, Any]]:
    """Return the text's token ids, its windows, and what the record says of them.

    Raises:
        UsageError: window and stride do not fit.
    """
    longest = getattr(model.model.config.get_text_config(), "max_position_embeddings", None) or DEFAULT_WINDOW
    window = text.window or min(DEFAULT_WINDOW, longest)
    stride = text.stride or window
    ids = tokenizer(text.content, add_special_tokens=False, verbose=False)["input_ids"][: text.tokens]
    beginning, words = windows.beginning_of_text(tokenizer)
    parts = windows.cut(ids, window=window, stride=stride, beginning=beginning)
    settings = {
        "window": window,
        "stride": stride,
        "beginning": words,
        "tokens_sha256": windows.tokens_hash(parts),
        "tokenizer_sha256": tokenizer_hash(tokenizer),
    }
    return ids, parts, settings


def tokenizer_hash(tokenizer: Any) -> str:
    """Return a hash of the vocabulary, so that the same words under other file names count as the same."""
    entries = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    return hashlib.sha256("\n".join(f"{index} {word}" for word, index in entries).encode()).hexdigest()


def measure_perplexity(
    text: TextOptions,
    model: LanguageModel,
    parts: list[windows.Window],
    settings: Mapping[str, Any],
    *,
    report: Report,
    onlookers: list[Any],
) -> Perplexity:
    """Score the windows."""
    import time

    started = time.perf_counter()
    scored = scoring.score(model, parts, batch=text.batch, onlookers=onlookers, report=report)
    value, error = scored.perplexity()
    return Perplexity(
        value=value,
        standard_error=error,
        tokens=sum(scored.tokens),
        windows=len(parts),
        batch=text.batch,
        text=text.name,
        text_sha256=text.sha256,
        non_finite_positions=scored.non_finite,
        seconds=time.perf_counter() - started,
        **settings,
    )


def traffic(model: Any, device: torch.device) -> speed.Traffic:
    """Return what each decode step reads: all weights but an input embedding that is only looked up, and the cache."""
    config = model.config.get_text_config()
    total = sum(memory.tensor_bytes(model).values())
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    if head is None or head.weight.data_ptr() != table.weight.data_ptr():
        total -= table.weight.untyped_storage().nbytes()
    heads = getattr(config, "num_key_value_heads", None) or getattr(config, "num_attention_heads", 0)
    size = getattr(config, "head_dim", None) or config.hidden_size // max(1, config.num_attention_heads)
    cache = 2 * config.num_hidden_layers * heads * size * 2
    return speed.Traffic(total, cache, bandwidth(device))


def bandwidth(device: torch.device) -> float | None:
    """Return the memory bandwidth that the catalogue knows for a device, in bytes a second."""
    from quantlab.hardware.catalogue import gpu

    arch, product = identify(device)
    for name in (product, arch):
        try:
            known = gpu(name) if name else None
        except QuantlabError:
            continue
        if known is not None and known.bandwidth_bytes_per_second:
            return math.fabs(known.bandwidth_bytes_per_second)
    return None
