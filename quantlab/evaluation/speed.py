"""Prefill and decode times over a grid of shapes.

Prefill is the time to compute the prompt's representation and the first token's logits (time to first token).
Decode is the time of each forward pass of one new token after it, with the KV cache. On a gpu (CUDA and ROCm alike)
device events measure it; elsewhere the host's clock does, after a synchronisation where the device has one. The first
call of each shape is kept apart: it carries compilation, autotuning and lazy dequantization.

``bandwidth_fraction`` is the bytes of weights and KV cache that one decode step must read, over the measured
time, over the device's memory bandwidth in the catalogue.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from quantlab.evaluation.job import SpeedOptions
from quantlab.evaluation.language_model import LanguageModel
from quantlab.evaluation.result import SpeedCell
from quantlab.progress import Progress


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a decode step reads.

    Attributes:
        weights_bytes: bytes of all weights that every step reads.
        cache_bytes_per_token: KV cache bytes of one token of one sequence.
        bandwidth: bytes a second of the device, or None where the catalogue does not know.
    """

    weights_bytes: int
    cache_bytes_per_token: int
    bandwidth: float | None

    def fraction(self, batch: int, context: float, seconds: float) -> float | None:
        """Return the share of the device's bandwidth that a step of ``seconds`` used."""
        if not self.bandwidth or seconds <= 0:
            return None
        return (self.weights_bytes + batch * context * self.cache_bytes_per_token) / seconds / self.bandwidth


class Clock:
    """Times work on a device in milliseconds."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.name = "device events" if device.type == "cuda" else "host"

    def time(self, work: Callable[[], Any]) -> tuple[float, Any]:
        """Run ``work`` and return its milliseconds and its value."""
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
                torch.cuda.synchronize()
                begin.record()
                value = work()
                end.record()
                torch.cuda.synchronize()
                return float(begin.elapsed_time(end)), value
        self._wait()
        started = time.perf_counter()
        value = work()
        self._wait()
        return (time.perf_counter() - started) * 1000, value

    def _wait(self) -> None:
        module = getattr(torch, self.device.type, None)
        if self.device.type != "cpu" and hasattr(module, "synchronize"):
            module.synchronize()  # type: ignore[union-attr]


def measure(
    model: LanguageModel, options: SpeedOptions, traffic: Traffic, report: Callable[[Progress], None], seed: int = 0
) -> list[SpeedCell]:
    """Measure every cell of the grid; a cell that fails (out of memory) says so and the next one runs."""
    grid = options.cells()
    generator = torch.Generator().manual_seed(seed)
    cells = []
    for number, (batch, prompt, new) in enumerate(grid):
        report(Progress("speed", number, len(grid), "cells", f"batch {batch}, prompt {prompt}, new {new}"))
        try:
            ids = torch.randint(0, model.vocabulary, (batch, prompt), generator=generator).to(model.device)
            cells.append(_cell(model, ids, new, options, traffic))
        except RuntimeError as error:  # out of memory of any backend is a RuntimeError
            words = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            cells.append(SpeedCell(batch, prompt, new, 0.0, 0.0, 0.0, 0.0, error=words))
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
    return cells


@torch.inference_mode()
def _cell(model: LanguageModel, ids: torch.Tensor, new: int, options: SpeedOptions, traffic: Traffic) -> SpeedCell:
    batch, prompt = ids.shape
    clock = Clock(model.device)
    first, _ = clock.time(lambda: _prefill(model, ids))
    for _ in range(options.warmup):
        _run(model, ids, new, clock)
    runs = [_run(model, ids, new, clock) for _ in range(max(1, options.repeats))]
    prefills = [run[0] for run in runs]
    steps = [step for run in runs for step in run[1]]
    prefill, decode = statistics.median(prefills), statistics.median(steps)
    return SpeedCell(
        batch=batch,
        prompt_tokens=prompt,
        new_tokens=new,
        first_call_ms=first,
        prefill_ms=prefill,
        decode_ms_per_token=decode,
        decode_tokens_per_second=batch * 1000 / decode,
        bandwidth_fraction=traffic.fraction(batch, prompt + new / 2, decode / 1000),
        prefill_ms_p90=percentile(prefills, 90),
        decode_ms_per_token_p90=percentile(steps, 90),
        samples={"prefill_ms": tuple(prefills), "decode_ms_per_token": tuple(steps)},
        clock=clock.name,
    )


def percentile(samples: list[float], percent: float) -> float:
    """Return a percentile by linear interpolation."""
    ordered = sorted(samples)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _prefill(model: LanguageModel, ids: torch.Tensor) -> Any:
    return model.forward(input_ids=ids, use_cache=True, logits_to_keep=1)


def _run(model: LanguageModel, ids: torch.Tensor, new: int, clock: Clock) -> tuple[float, list[float]]:
    """Return the prefill's milliseconds and those of each decode step."""
    milliseconds, output = clock.time(lambda: _prefill(model, ids))
    cache = output.past_key_values
    token = output.logits[:, -1:].argmax(-1)
    steps = []
    for _ in range(max(1, new - 1)):
        step = partial(model.forward, input_ids=token, past_key_values=cache, use_cache=True)
        took, output = clock.time(step)
        steps.append(took)
        token = output.logits[:, -1:].argmax(-1)
        cache = output.past_key_values
    return milliseconds, steps
