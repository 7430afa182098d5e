"""The proof: read the finished output again, decode every layer, and compare it with the source.

What is compared follows the class that was promised:

- ``identical``: codes and zero points as bytes, scales as float32 numbers, the float32 decode bit for bit;
- ``exact-value``: the float32 decode as numbers;
- ``rescaled``: codes and scales as above, the decode within the edge's bound;
- ``rounded``: the dense output is the source's decode, rounded once;
- ``requantize``: every element lies within its rounding step of the source; the relative error is measured.

Copied tensors are compared as bytes. The output is opened as any checkpoint is, from its own config and headers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from quantlab.checkpoint.facts import CheckpointFacts
from quantlab.checkpoint.open import read
from quantlab.conversion.jobs import Job, LayerPlan, Plan
from quantlab.conversion.origin import FolderFiles
from quantlab.conversion.source import Needs, TensorSource
from quantlab.conversion.work import Workshop, decode_layer, exactness_of
from quantlab.errors import ConversionRefused
from quantlab.formats import FORMATS
from quantlab.formats.interface import Layer
from quantlab.progress import Observer, Progress
from quantlab.tensors.dequantize import dense_codes, dequantize
from quantlab.tensors.quantized import QuantizedTensor

WINDOW_FLOOR = 128 << 20
PROOF_COST = 2
"""How much more memory a job's proof may take than the job: two float32 decodes instead of one."""


@dataclass(frozen=True, slots=True)
class LayerProof:
    """What was found for one layer.

    Attributes:
        name: module name.
        exactness: the class that was proved.
        error: relative error (Frobenius) of the decoded output against the decoded source.
    """

    name: str
    exactness: str
    error: float


@dataclass(frozen=True, slots=True)
class Proof:
    """What was found for a whole output.

    Attributes:
        layers: number of layers by class.
        tensors_copied: dense tensors that are byte for byte those of the source.
        mean_error: mean of the layers' relative errors; 0 where all are exact.
        worst: the layer with the largest relative error.
        seconds: what the proof took.
    """

    layers: dict[str, int]
    tensors_copied: int
    mean_error: float
    worst: LayerProof | None
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def prove(
    plan: Plan,
    source: TensorSource,
    folder: Path,
    changed: set[str],
    *,
    device: str,
    threads: int,
    observe: Observer,
) -> Proof:
    """Compare the whole output with its source.

    Raises:
        ConversionRefused: a layer is not what was promised; names it and the difference.
        CheckpointError: the output cannot be read.
    """
    started = time.perf_counter()
    facts = read(folder)
    with TensorSource(facts, FolderFiles(folder)) as output:
        prover = _Prover(plan, source, facts=facts, output=output, changed=changed, device=device)
        jobs = list(plan.jobs)
        proofs: list[LayerProof] = []
        needs = Needs(plan, source)
        with ThreadPoolExecutor(threads, "prove") as pool:
            for number, found in enumerate(_ordered(pool, prover.job, jobs, threads), 1):
                proofs += found
                needs.met([jobs[number - 1]])
                observe(Progress("verify", number, len(jobs), "layers"))
    return _summary(proofs, sum(len(job.tensors) for job in jobs if job.action == "copy"), started)


def _ordered(
    pool: ThreadPoolExecutor, work: Callable[[Job], list[LayerProof]], jobs: list[Job], threads: int
) -> Iterator[list[LayerProof]]:
    """Run jobs together as long as their memory stays within twice the largest's, in order."""
    budget = max(WINDOW_FLOOR, 2 * max((job.peak_bytes for job in jobs), default=0))
    batch: list[Job] = []
    for job in jobs:
        if batch and (len(batch) == threads or sum(PROOF_COST * one.peak_bytes for one in [*batch, job]) > budget):
            yield from pool.map(work, batch)
            batch = []
        batch.append(job)
    yield from pool.map(work, batch)


def _summary(proofs: list[LayerProof], copied: int, started: float) -> Proof:
    layers: dict[str, int] = {}
    for proof in proofs:
        layers[proof.exactness] = layers.get(proof.exactness, 0) + 1
    worst = max(proofs, key=lambda proof: proof.error, default=None)
    mean = sum(proof.error for proof in proofs) / len(proofs) if proofs else 0.0
    return Proof(layers, copied, mean, worst, time.perf_counter() - started)


class _Prover:
    """Proves one job at a time."""

    def __init__(
        self,
        plan: Plan,
        source: TensorSource,
        *,
        facts: CheckpointFacts,
        output: TensorSource,
        changed: set[str],
        device: str,
    ) -> None:
        self._plan = plan
        self._source = source
        self._workshop = Workshop(plan, source, device)
        self._output = output
        self._device = device
        self._changed = changed
        self._codec = FORMATS[plan.target_format]
        layers = self._codec.layers(facts)
        self._layers: dict[str, Layer] = {layer.weight_name: layer for layer in layers}
        self._facts = facts

    def job(self, job: Job) -> list[LayerProof]:
        """Return what was found for a job's layers.

        Raises:
            ConversionRefused: something is not what was promised.
        """
        with torch.inference_mode():
            if job.action == "copy":
                for name in job.tensors:
                    self._copied(name)
                return []
            return [self._layer(layer, exactness_of(job, self._changed)) for layer in job.layers]

    def _copied(self, name: str) -> None:
        before = self._source.read(name).reshape(-1).view(torch.uint8)
        if name not in self._facts.tensors:
            raise _broken(name, "is missing in the output")
        after = self._output.read(name).reshape(-1).view(torch.uint8)
        if not torch.equal(before, after):
            raise _broken(name, "was copied and is not the same")

    def _layer(self, layer: LayerPlan, exactness: str) -> LayerProof:
        if exactness == "rounded":
            return self._dense(layer)
        found = self._layers.get(layer.weight_name)
        if found is None:
            raise _broken(layer.name, f"is no {self._plan.target_format} layer in the output")
        after = decode_layer(self._codec, found, self._output, self._device)
        if exactness == "requantize":
            return LayerProof(layer.name, exactness, self._step(layer, after))
        before = self._workshop.decoded(layer)
        if exactness in ("identical", "rescaled"):
            _same_parts(layer.name, before, after)
        return LayerProof(layer.name, exactness, self._decodes(layer.name, before, after, exactness))

    def _dense(self, layer: LayerPlan) -> LayerProof:
        after = self._output.read(layer.weight_name, self._device)
        before = self._workshop.dense(layer)
        if not _same_bits(before.to(after.dtype), after):
            raise _broken(layer.name, "is not the source's decode rounded once")
        return LayerProof(layer.name, "rounded", _relative(after.float() - before.float(), before))

    def _decodes(self, name: str, before: QuantizedTensor, after: QuantizedTensor, exactness: str) -> float:
        dtype = getattr(torch, self._plan.edge.decode_dtype)
        one, two = dequantize(before, dtype), dequantize(after, dtype)
        if exactness == "identical":
            if not _same_bits(one, two):
                raise _broken(name, "decodes to other bits")
            return 0.0
        if exactness == "exact-value":
            if not torch.equal(one, two):
                raise _broken(name, "decodes to other numbers")
            return 0.0
        excess = (two - one).abs() - one.abs() * self._plan.edge.bound
        if bool((excess > 0).any()):
            raise _broken(name, f"decodes to numbers that differ by more than {self._plan.edge.bound:g}")
        return _relative(two - one, one)

    def _step(self, layer: LayerPlan, after: QuantizedTensor) -> float:
        """Check that each element lies within its rounding step, and return the relative error."""
        before = self._workshop.dense(layer)
        values = dequantize(after, torch.float32)
        steps = None if self._plan.preset.clip else dequantize(_all_ones(after), torch.float32)
        number = after.format.number
        absolute, relative = ROUNDING[(number.kind, number.bits)] if number.kind == "float" else (1.0, 2.0**-7)
        wrong = size = 0.0
        columns = before.shape[-1]
        for part in _row_parts(before):
            source = before.view(-1, columns)[part].float()
            error = values.view(-1, columns)[part].sub_(source)
            wrong += float(torch.linalg.vector_norm(error)) ** 2
            if not math.isfinite(wrong):
                raise _broken(layer.name, "decodes to NaN or infinity")
            size += float(torch.linalg.vector_norm(source)) ** 2
            if steps is None:
                continue
            allowed = steps.view(-1, columns)[part].abs_().mul_(absolute).add_(source.abs_().mul_(relative))
            excess = error.abs_().sub_(allowed)
            if bool((excess > 0).any()):
                row, column = divmod(int(excess.argmax()), columns)
                raise _broken(layer.name, f"differs at {[part.start + row, column]} by more than a rounding step")
        return math.sqrt(wrong / size) if size else math.sqrt(wrong)


ROUNDING = {("float", 8): (2.0**-9, 2.0**-4 + 2.0**-6), ("float", 4): (1.25, 2.0**-4)}
"""How far rounding may move an element: parts of the scale (subnormal step; largest step of e2m1, with the clamp that
a rounded scale causes), and of the element (half a unit in the last place, and the rounding of the quotient)."""


def _row_parts(weight: torch.Tensor) -> list[slice]:
    """Cut rows into slices of about a million elements, which bounds the temporaries."""
    columns = max(1, weight.shape[-1])
    rows, step = weight.numel() // columns, max(1, (1 << 20) // columns)
    return [slice(start, min(rows, start + step)) for start in range(0, rows, step)]


def _all_ones(weight: QuantizedTensor) -> QuantizedTensor:
    """Return the weight whose every code means one: its decode is the scale of each element."""
    number = weight.format.number
    one = 2 if number.name == "float4_e2m1" else 1  # the code of 1.0
    ones = torch.full(weight.shape, one, dtype=getattr(torch, number.torch_dtype), device=weight.scales.device)
    return replace(weight, codes=ones, zeros=None, offsets=None)


def _same_parts(name: str, before: QuantizedTensor, after: QuantizedTensor) -> None:
    """Refuse unless codes, scales, zero points and group maps are the same bytes."""
    if not _same_bits(dense_codes(before), dense_codes(after)):
        raise _broken(name, "has other codes")
    if not _same_bits(_numbers(before.scales), _numbers(after.scales)):
        raise _broken(name, f"has other scales ({before.scales.dtype} {list(before.scales.shape)} before, "
                            f"{after.scales.dtype} {list(after.scales.shape)} after)")  # fmt: skip
    if not torch.equal(_zeros(before), _zeros(after)):
        raise _broken(name, "has other zero points")
    if not torch.equal(_groups(before), _groups(after)):
        raise _broken(name, "has its columns in other groups")


def _numbers(scales: torch.Tensor) -> torch.Tensor:
    """Widen scales to float32, which is exact, so that equal numbers in two dtypes compare equal."""
    return scales if scales.dtype == torch.uint8 else scales.float()


def _zeros(weight: QuantizedTensor) -> torch.Tensor:
    shape = weight.scales.shape
    return torch.zeros(shape, dtype=torch.int16) if weight.zeros is None else weight.zeros.to(torch.int16).cpu()


def _groups(weight: QuantizedTensor) -> torch.Tensor:
    columns = weight.shape[-1]
    if weight.group_map is not None:
        return weight.group_map.to(torch.int64).cpu()
    size = weight.format.group_size or columns
    return torch.arange(columns) // (size if size > 0 else columns)


def _same_bits(one: torch.Tensor, two: torch.Tensor) -> bool:
    if one.dtype != two.dtype or one.numel() != two.numel():
        return False
    return torch.equal(one.contiguous().reshape(-1).view(torch.uint8), two.contiguous().reshape(-1).view(torch.uint8))


def _relative(error: torch.Tensor, reference: torch.Tensor) -> float:
    size = float(torch.linalg.vector_norm(reference.float()))
    wrong = float(torch.linalg.vector_norm(error))
    return wrong / size if size else wrong


def _broken(name: str, what: str) -> ConversionRefused:
    return ConversionRefused(
        f"the proof failed: {name} {what}", hint="nothing was written; this is a fault of quantlab, please report it"
    )
