"""One evaluation result as a row: the figures that a comparison shows, read leniently from the result's JSON."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SpeedPoint:
    """One cell of the speed grid; times in milliseconds, throughput in new tokens per second over the batch."""

    batch: int
    prompt_tokens: int
    new_tokens: int
    prefill_ms: float | None
    decode_ms_per_token: float | None
    decode_tokens_per_second: float | None
    bandwidth_fraction: float | None


@dataclass(frozen=True, slots=True)
class LayerError:
    """The probe's relative error of one layer, and what its scheme allows."""

    layer: str
    relative_error: float
    allowed: float


@dataclass(frozen=True, slots=True)
class Row:
    """One result, as the table shows it.

    Attributes:
        name: last part of the checkpoint's path, made unique by more of the path where needed.
        weights_sha256: hash of the weight file, or of all weight files' names and hashes where there are several.
        bytes_on_disk: bytes of the weight files.
        measure: hashes and sizes that make perplexities comparable.
        comparable: measured as the first result was.
        perplexity_change: perplexity over the first result's, minus one; None where not comparable.
        load_ok, verdict_ok: None where the result does not say.
    """

    name: str
    path: str
    format: str
    scheme: str
    engine: str
    gpu: str
    weights_sha256: str | None
    bytes_on_disk: int | None
    modules: Mapping[str, int]
    kernels: Mapping[str, Any]
    load_ok: bool | None
    load_error: str | None
    perplexity: float | None
    perplexity_error: float | None
    measure: tuple[str, ...]
    kl_mean: float | None
    kl_p99: float | None
    top1_agreement: float | None
    speed: tuple[SpeedPoint, ...]
    peak_bytes: int | None
    weights_bytes: int | None
    verdict_ok: bool | None
    damaged: bool | None
    quality: str | None
    failures: tuple[str, ...]
    warnings: tuple[str, ...]
    layers: tuple[LayerError, ...] = ()
    comparable: bool = True
    perplexity_change: float | None = None


MEASURE = ("text", "window", "stride", "tokens", "tokenizer")
"""What has to be equal for two perplexities to be compared, in the order of ``Row.measure``."""


def _measure(perplexity: Mapping[str, Any]) -> tuple[str, ...]:
    keys = ("text_sha256", "window", "stride", "tokens", "tokenizer_sha256")
    return tuple(str(perplexity.get(key, "?"))[:12] for key in keys)


def read_row(content: Mapping[str, Any], name: str) -> Row:
    """Return the row of one result; what the result does not have is None or empty."""
    checkpoint = _part(content, "checkpoint")
    load = _part(content, "load")
    perplexity = _part(content, "perplexity")
    divergence = _part(content, "divergence")
    verdict = _part(content, "verdict")
    memory = _part(content, "memory")
    return Row(
        name=name,
        path=str(checkpoint.get("path", "")),
        format=str(checkpoint.get("format", "unknown")),
        scheme=describe_scheme(_part(checkpoint, "scheme")),
        engine=str(content.get("engine", "")),
        gpu=str(_part(content, "environment").get("gpu") or ""),
        weights_sha256=weights_hash(_part(checkpoint, "sha256")),
        bytes_on_disk=_whole(checkpoint.get("bytes")),
        modules=_part(load, "modules"),
        kernels=_part(load, "kernels"),
        load_ok=load.get("ok"),
        load_error=load.get("error"),
        perplexity=_number(perplexity.get("value")),
        perplexity_error=_number(perplexity.get("standard_error")),
        measure=_measure(perplexity),
        kl_mean=_number(divergence.get("kl_mean")),
        kl_p99=_number(divergence.get("kl_p99")),
        top1_agreement=_number(divergence.get("top1_agreement")),
        speed=tuple(_speed_points(content.get("speed") or ())),
        peak_bytes=_memory(memory, "peak_bytes"),
        weights_bytes=_memory(memory, "weights_bytes"),
        verdict_ok=verdict.get("ok"),
        damaged=verdict.get("damaged"),
        quality=verdict.get("quality"),
        failures=tuple(str(item) for item in verdict.get("failures") or ()),
        warnings=tuple(str(item) for item in verdict.get("warnings") or ()),
        layers=tuple(_layer_errors(_part(content, "probe").get("by_layer") or ())),
    )


def describe_scheme(scheme: Mapping[str, Any]) -> str:
    """Return a scheme in a few words: ``int4 group 64``, ``float8 channel``, ``16 bit``."""
    weights = _part(scheme, "weights")
    if weights.get("bits") is None:
        return "16 bit"
    kind, bits = str(weights.get("type") or ""), weights["bits"]
    words = [kind if kind not in ("int", "float") else f"{kind}{bits}"]
    words.append(str(weights.get("granularity") or ""))
    if weights.get("group_size"):
        size = weights["group_size"]
        words.append("x".join(map(str, size)) if isinstance(size, list | tuple) else str(size))
    if scheme.get("mixed"):
        words.append("(mixed)")
    return " ".join(word for word in words if word)


WEIGHT_SUFFIXES = (".safetensors", ".gguf", ".bin", ".pt")


def weights_hash(hashes: Mapping[str, Any]) -> str | None:
    """Return the hash of the weights: the file's own, or that of all weight files' names and hashes."""
    weights = sorted((name, str(value)) for name, value in hashes.items() if name.endswith(WEIGHT_SUFFIXES))
    if len(weights) == 1:
        return weights[0][1]
    if not weights:
        return None
    return hashlib.sha256("".join(f"{name} {value}\n" for name, value in weights).encode()).hexdigest()


def _speed_points(grid: Iterable[Mapping[str, Any]]) -> Iterable[SpeedPoint]:
    for cell in grid:
        yield SpeedPoint(
            batch=int(cell.get("batch", 1)),
            prompt_tokens=int(cell.get("prompt_tokens", 0)),
            new_tokens=int(cell.get("new_tokens", 0)),
            prefill_ms=_middle(cell.get("prefill_ms")),
            decode_ms_per_token=_middle(cell.get("decode_ms_per_token")),
            decode_tokens_per_second=_middle(cell.get("decode_tokens_per_second")),
            bandwidth_fraction=_middle(cell.get("bandwidth_fraction")),
        )


def _layer_errors(layers: Iterable[Mapping[str, Any]]) -> Iterable[LayerError]:
    for layer in layers:
        error, allowed = _number(layer.get("relative_error")), _number(layer.get("allowed"))
        if error is not None and allowed is not None:
            yield LayerError(str(layer.get("layer", "")), error, allowed)


def _part(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = content.get(key)
    return part if isinstance(part, Mapping) else {}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def _middle(value: Any) -> float | None:
    """Return a plain number, or the median where the result gives a distribution."""
    return _number(value.get("median")) if isinstance(value, Mapping) else _number(value)


def _memory(memory: Mapping[str, Any], key: str) -> int | None:
    """Return one figure of the memory part, summed over the accelerators, or the host's where there are none."""
    if key in memory:
        return _whole(memory[key])
    devices = {name: device for name, device in memory.items() if isinstance(device, Mapping)}
    accelerators = [device for name, device in devices.items() if name != "cpu"]
    parts = [_whole(device.get(key)) for device in accelerators or devices.values()]
    known = [part for part in parts if part is not None]
    return sum(known) if known else None
