"""Which methods fit a model on a gpu and run there, ranked, with the commands that do it.

A candidate is the model as it is, or one of the presets in the order of ``matrix/memory.yaml``. Each is judged by
the matrix for each engine; what the matrix says fails, or does not know, is never recommended but told with its
reason. Memory and the decode limit are arithmetic over the real parameter counts (``quantlab.hardware.memory``).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from quantlab.checkpoint.facts import ActivationScheme, CheckpointFacts, Scheme, WeightScheme
from quantlab.errors import UsageError
from quantlab.hardware.catalogue import Gpu, gpu
from quantlab.hardware.memory import Counts, Footprint, count_parameters, footprint
from quantlab.matrix.api import judge
from quantlab.matrix.data import read_section
from quantlab.matrix.load import MatrixData, load
from quantlab.matrix.model import Verdict
from quantlab.matrix.query import Query
from quantlab.matrix.question import engine_id
from quantlab.matrix.subject import from_checkpoint

AS_IT_IS = "as it is"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run the model.

    Attributes:
        preset: name for ``convert --to``, or "as it is".
        engine: engine id.
        outcome, mode, kernel, confidence, sources: the matrix's verdict.
        memory: bytes of weights, KV cache, overhead, and their sum.
        fits: the sum is within what an engine takes of one device.
        devices_needed: devices of this kind that the sum needs.
        decode_limit: new tokens per second over the batch that memory bandwidth allows; None where unknown.
        commands: what to type, in order.
    """

    preset: str
    title: str
    engine: str
    outcome: str
    mode: str | None
    kernel: str | None
    confidence: str
    reason: str
    sources: tuple[str, ...]
    weights_bytes: int
    kv_cache_bytes: int
    overhead_bytes: int
    total_bytes: int
    fits: bool
    devices_needed: int | None
    decode_limit: float | None
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """A candidate that is not recommended, and why."""

    preset: str
    engine: str
    outcome: str
    reason: str
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Ranked ways to run a model on a gpu; the first is the advice."""

    model: str
    gpu: str
    memory_bytes: int | None
    parameters: int
    context: int
    batch: int
    candidates: tuple[Candidate, ...]
    refused: tuple[Refused, ...]

    @property
    def best(self) -> Candidate | None:
        """The first candidate that fits, or None."""
        return next((candidate for candidate in self.candidates if candidate.fits), None)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of ``quantlab recommend``."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Option:
    """A preset, or the source's own scheme, ready to be judged."""

    preset: str
    title: str
    format: str
    scheme: Scheme
    bits_per_weight: float
    settings: tuple[str, ...] = ()
    bits_per_expert: float | None = None


def recommend(
    model: str | Path, *, gpu: str, engine: str | None = None, context: int = 4096, batch: int = 1
) -> Recommendation:
    """Rank the ways to run a model on a gpu.

    Args:
        model: a folder, a hub id, or a ``config.json``.
        gpu: an architecture id, a product (needed for memory and bandwidth), or ``local``.
        engine: an engine id; all main engines by default.
        context: tokens a sequence.
        batch: sequences at a time.

    Raises:
        UnknownNameError: no such gpu or engine.
        UsageError: context or batch below 1.
        CheckpointError: the model cannot be read, or its config lacks a size.
    """
    if context < 1 or batch < 1:
        raise UsageError(f"context {context} and batch {batch} must be at least 1")
    from quantlab.checkpoint.open import read

    data = load()
    device = _device(gpu)
    facts = read(str(model))
    counts = count_parameters(facts)
    good: list[Candidate] = []
    refused: list[Refused] = []
    for option in _options(facts):
        for engine_name in _engines(engine, data):
            verdict = _verdict(option, facts, device, engine_name, data)
            if verdict.ok:
                bits, expert = _bits_in_memory(option, verdict)
                size = footprint(
                    facts, bits_per_weight=bits, bits_per_expert=expert, context=context, batch=batch, counts=counts
                )
                good.append(
                    _candidate(str(model), option, verdict, size, engine=engine_name, device=device, batch=batch)
                )
            else:
                said = (verdict.outcome, verdict.reason, verdict.sources)
                refused.append(Refused(option.preset, engine_name, *said))
    dense = read_section("memory")["memory"]["dense_modes"]
    ranked = sorted(good, key=lambda item: (not item.fits, item.outcome != "works", item.mode in dense))
    name = device.product or device.arch
    return Recommendation(
        str(model), name, device.memory_bytes, counts.total, context, batch, tuple(ranked), tuple(refused)
    )


def _device(name: str) -> Gpu:
    if name.strip().lower() != "local":
        return gpu(name)
    from quantlab.errors import UnknownNameError
    from quantlab.hardware.machine import this_machine

    seen = this_machine().main_device
    try:
        found = gpu(seen.name)
    except UnknownNameError:
        found = gpu(seen.arch or "cpu")
    return replace(found, product=seen.name, memory_bytes=seen.memory_bytes or found.memory_bytes)


def _engines(name: str | None, data: MatrixData) -> list[str]:
    from quantlab.errors import UnknownNameError

    if name is None:
        return [engine.id for engine in data.engines.values() if engine.main]
    found = engine_id(name, data)
    if found is None:
        raise UnknownNameError("engine", name, data.engines)
    return [found]


def _options(facts: CheckpointFacts) -> Iterator[_Option]:
    """Yield the source as it is, then the presets that can be made of it, in the order to try them in."""
    order: list[str] = read_section("memory")["memory"]["order"]
    presets: Mapping[str, Any] = read_section("presets")["presets"]["presets"]
    quantized = facts.scheme.weights is not None
    if quantized:
        bits, expert = stored_bits(facts)
        yield _Option(AS_IT_IS, "as it is", facts.format, facts.scheme, bits, bits_per_expert=expert)
    for name in order:
        entry = presets.get(name)
        if entry is None or (quantized and name not in {"bf16", "fp16"}):
            continue
        scheme, settings = _preset_scheme(entry, facts)
        if scheme is not None:
            bits = 16.0 if scheme.weights is None else bits_per_weight(scheme.weights)
            label = AS_IT_IS if scheme.weights is None and not quantized else name
            yield _Option(label, str(entry["title"]), str(entry["format"]), scheme, bits, settings)


def _preset_scheme(entry: Mapping[str, Any], facts: CheckpointFacts) -> tuple[Scheme | None, tuple[str, ...]]:
    """Return the scheme that a preset gives this model, with the group size that its widths allow."""
    raw = entry.get("weights") or _library_weights(entry.get("options") or {})
    if raw is None:
        return (Scheme(), ()) if entry["format"] == "dense" else (None, ())
    group = raw.get("group_size")
    settings: tuple[str, ...] = ()
    if group and raw["granularity"] == "group":
        fitting = _fitting_group(int(group), facts)
        if fitting is None:
            return None, ()
        settings = (f"group_size={fitting}",) if fitting != group else ()
        group = fitting
    kind, bits, dtype = _number(str(raw["number"]))
    block = raw.get("block")
    weights = WeightScheme(
        bits, kind, str(raw["granularity"]), tuple(block) if block else group, bool(raw.get("symmetric", True)), dtype,
        raw.get("scale_type"),
    )  # fmt: skip
    activations = ActivationScheme(**entry["activations"]) if entry.get("activations") else None
    return Scheme(weights=weights, activations=activations), settings


def _library_weights(options: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return a library preset's options as a native preset's weights."""
    if "bits" in options and options.get("group_size"):
        number, symmetric = f"int{options['bits']}", bool(options.get("symmetric", True))
        return {"number": number, "granularity": "group", "group_size": options["group_size"], "symmetric": symmetric}
    if options.get("type") in {"nf4", "fp4"}:
        return {"number": options["type"], "granularity": "group", "group_size": 64}
    return None


def _number(name: str) -> tuple[str, int, str]:
    """Return kind, bits and exact type of a number's name."""
    if name.startswith("int"):
        return "int", int(name.removeprefix("int")), name
    return ("float", 8 if "8" in name else 4, name) if name.startswith("float") else (name, 4, name)


def _fitting_group(wanted: int, facts: CheckpointFacts) -> int | None:
    shape = facts.architecture
    widths = [width for width in (shape.hidden_size, shape.intermediate_size, shape.moe_intermediate_size) if width]
    for group in dict.fromkeys((wanted, 64, 32, 16)):
        if group <= wanted and all(width % group == 0 for width in widths):
            return group
    return None


SCALE_BITS = {"e8m0": 8, "float8_e4m3fn": 8, "float32": 32}


def bits_per_weight(scheme: WeightScheme) -> float:
    """Return bits of a weight with its share of scales and zero points (16-bit scales unless the scheme says)."""
    bits = float(scheme.bits or 16)
    scale = SCALE_BITS.get(scheme.scale_dtype or "", 16)
    if scheme.granularity == "group" and isinstance(scheme.group_size, int) and scheme.group_size > 0:
        zero = 0.0 if scheme.symmetric is not False else bits
        return bits + (scale + zero) / scheme.group_size
    if scheme.granularity == "block" and isinstance(scheme.group_size, tuple):
        return bits + scale / (scheme.group_size[0] * scheme.group_size[1])
    return bits


def stored_bits(facts: CheckpointFacts) -> tuple[float, float]:
    """Return the mean stored bits of linear layers' and of experts' weights: of the headers, else of the scheme."""

    def mean(*kinds: str) -> float | None:
        weights = sum(facts.parameters.get(kind, 0) for kind in kinds)
        stored = sum(facts.bytes.get(kind, 0) for kind in kinds)
        return 8 * stored / weights if stored and weights else None

    declared = bits_per_weight(facts.scheme.weights) if facts.scheme.weights else 16.0
    return mean("attention", "mlp") or declared, mean("experts") or declared


def _bits_in_memory(option: _Option, verdict: Verdict) -> tuple[float, float | None]:
    """Return bits of linear and expert weights as the engine holds them; multiplied out, they are 16."""
    if verdict.mode in read_section("memory")["memory"]["dense_modes"]:
        return max(16.0, option.bits_per_weight), None
    return option.bits_per_weight, option.bits_per_expert


def _verdict(option: _Option, facts: CheckpointFacts, device: Gpu, engine: str, data: MatrixData) -> Verdict:
    own = facts.quantization_config if option.scheme is facts.scheme else None
    flat = from_checkpoint(option.format, option.scheme, facts.architecture, own)
    return judge(Query(flat, engine, (device.arch,)), data)


def _candidate(
    model: str, option: _Option, verdict: Verdict, size: Footprint, *, engine: str, device: Gpu, batch: int
) -> Candidate:
    usable = device.memory_bytes * read_section("memory")["memory"]["usable_fraction"] if device.memory_bytes else None
    bandwidth = device.bandwidth_bytes_per_second
    return Candidate(
        preset=option.preset,
        title=option.title,
        engine=engine,
        outcome=verdict.outcome,
        mode=verdict.mode,
        kernel=verdict.kernel,
        confidence=verdict.confidence,
        reason=verdict.reason,
        sources=verdict.sources,
        weights_bytes=size.weights,
        kv_cache_bytes=size.kv_cache,
        overhead_bytes=size.overhead,
        total_bytes=size.total,
        fits=usable is None or size.total <= usable,
        devices_needed=None if usable is None else ceil(size.total / usable),
        decode_limit=round(batch * bandwidth / size.read_per_step, 1) if bandwidth else None,
        commands=tuple(_commands(model, option, engine, device)),
    )


def _commands(model: str, option: _Option, engine: str, device: Gpu) -> Iterator[str]:
    path = model
    if option.preset != AS_IT_IS:
        path = f"{Path(model).name.removesuffix('.json')}-{option.preset}"
        words = ["quantlab", "convert", model, path, "--to", option.preset]
        for setting in option.settings:
            words += ["--set", setting]
        yield shlex.join([*words, "--gpu", device.arch, "--engine", engine])
    serve = read_section("memory")["memory"]["serve"].get(engine)
    if serve:
        yield serve.format(path=shlex.quote(path))


__all__ = ["Candidate", "Counts", "Recommendation", "Refused", "bits_per_weight", "recommend", "stored_bits"]
