"""The layer probe: does each loaded layer compute what the file's tensors say?

The same random inputs go through the loaded layer and through quantlab's own decode of the file, in float32. The
error is taken for each output row on its own, and the worst row counts: one wrong scale disappears in a whole
matrix's norm, not in its row's. What an error may be is derived in ``probe_bounds``; why it is larger is
looked for in ``probe_cause``. A second comparison, the decoded file against the original's weights, tells a bad file
from a bad kernel (``probe_baseline``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from quantlab.checkpoint.facts import ActivationScheme, CheckpointFacts
from quantlab.checkpoint.patterns import matches
from quantlab.conversion.source import TensorSource
from quantlab.errors import CheckpointError, QuantlabError
from quantlab.evaluation import load_proof, modules
from quantlab.evaluation.engines.interface import Report
from quantlab.evaluation.job import Job
from quantlab.evaluation.probe_bounds import ROUNDOFF, allowed_error
from quantlab.evaluation.probe_cause import Mismatch, Others, cause
from quantlab.evaluation.probe_experts import loaded_expert
from quantlab.evaluation.result import LayerError, Probe
from quantlab.formats import FORMATS
from quantlab.formats.interface import Layer
from quantlab.progress import Progress
from quantlab.tensors.dequantize import dequantize
from quantlab.tensors.quantized import QuantizedTensor

NVFP4_RANGE = 448.0 * 6.0
"""Largest e4m3 scale times largest e2m1 number."""

TOKENS = 64
"""Random inputs a layer: enough that a row's error stands for its expectation within a tenth."""

EMPTY_ROW = 1e-3
"""A row whose output is below this share of the mean row's is measured against that share: rows of zeros exist."""

BATCH = 2
"""Rows that the inputs are given in: a kernel may answer for the first alone."""

CHUNK = 512
"""Unit vectors at a time when a bad layer's matrix is recovered."""

MOST_EXPLAINED = 8
"""Bad layers whose cause is looked for: one mistake mostly befalls all."""

MOST_OTHERS = 64
"""Layers of the same shape that a bad one is compared with, the nearest first."""


def probe(
    model: Any, facts: CheckpointFacts, layers: Sequence[Layer], *, trouble: str | None, job: Job, report: Report
) -> Probe:
    """Probe the quantized layers of a loaded model.

    Args:
        model: the loaded model.
        facts: the checkpoint.
        layers: its quantized layers.
        trouble: why they are not known, if so.
        job: ``probe`` says how many (None: all), ``baseline`` names the original, ``seed`` seeds the inputs.
        report: hears of progress.
    """
    from quantlab.evaluation.probe_baseline import against_baseline

    if trouble is not None or not layers:
        return Probe(0, len(layers), ok=True, error=trouble)
    chosen = sample(layers, job.probe)
    found: list[LayerError] = []
    skipped: dict[str, str] = {}
    with load_proof.open_tensors(facts) as source:
        for number, layer in enumerate(chosen):
            report(Progress("probe", number, len(chosen), "layers", layer.name))
            explain = sum(map(over, found)) < MOST_EXPLAINED
            task = _Task(model, facts, layer, source, layers if explain else (), job.seed)
            try:
                found.append(_probe_layer(task))
            except _Skipped as reason:
                skipped[layer.name] = str(reason)
    bad = tuple(error for error in found if over(error))
    against = against_baseline(facts, chosen, job) if job.baseline is not None else None
    ok = not bad and (against is None or against.ok)
    return Probe(len(found), len(layers), ok, worst(found), bad, tuple(found), skipped, None, against)


class _Skipped(Exception):
    """A layer cannot be probed; the words say why."""


@dataclass(frozen=True)
class _Task:
    """One layer to probe.

    Attributes:
        model: the loaded model.
        facts: the checkpoint.
        layer: the layer.
        source: reads the checkpoint's tensors.
        layers: all layers, to compare a bad one with; empty where no cause is looked for.
        seed: of the inputs.
    """

    model: Any
    facts: CheckpointFacts
    layer: Layer
    source: TensorSource
    layers: Sequence[Layer]
    seed: int

    def why(self, decoded: torch.Tensor, loaded: torch.Tensor, weight: QuantizedTensor) -> str | None:
        """Return the cause of a difference."""
        if not self.layers:
            return None
        return cause(Mismatch(decoded, loaded, weight, others(self.layers, self.layer, self._dense)))

    def _dense(self, layer: Layer) -> torch.Tensor:
        return dequantize(decode(self.facts, layer, self.source, "cpu"))


def others(layers: Sequence[Layer], layer: Layer, read: Callable[[Layer], torch.Tensor]) -> Others:
    """Return a reader of other layers' matrices of the same shape, the nearest first."""
    home = next((place for place, other in enumerate(layers) if other.name == layer.name), 0)
    same = [
        (abs(place - home), other)
        for place, other in enumerate(layers)
        if other.shape == layer.shape and other.name != layer.name
    ]
    nearest = [other for _, other in sorted(same, key=lambda item: item[0])[:MOST_OTHERS]]

    def matrices() -> Iterator[tuple[str, torch.Tensor]]:
        for other in nearest:
            with suppress(QuantlabError):
                yield other.name, read(other)

    return matrices


def sample(layers: Sequence[Layer], count: int | None) -> list[Layer]:
    """Return all layers, or ``count`` of them spread evenly, the first and the last included."""
    if count is None or count >= len(layers):
        return list(layers)
    if count == 1:
        return [layers[0]]
    places = {round(index * (len(layers) - 1) / (count - 1)) for index in range(count)}
    return [layers[place] for place in sorted(places)]


def over(error: LayerError) -> bool:
    """Say whether an error is more than may be; one that is not finite is."""
    return error.relative_error is None or error.relative_error > error.allowed


def worst(found: Sequence[LayerError]) -> LayerError | None:
    """Return the layer with the highest error in units of what it may be."""
    return max(found, key=_excess, default=None)


def _excess(error: LayerError) -> float:
    return float("inf") if error.relative_error is None else error.relative_error / max(error.allowed, 1e-30)


def decode(facts: CheckpointFacts, layer: Layer, source: TensorSource, device: str) -> QuantizedTensor:
    """Return the layer's weight as the file holds it.

    Raises:
        CheckpointError: the file contradicts itself.
    """
    tensors = {role: source.read(name, device) for role, name in layer.tensors.items()}
    weight = FORMATS[facts.format].decode(layer, tensors)
    _check_codes(layer, weight)
    return weight


def _check_codes(layer: Layer, weight: QuantizedTensor) -> None:
    """Refuse codes that the number type does not have: a config may say 4 bits where bytes hold 8."""
    number, codes = weight.format.number, weight.codes
    if number.kind != "int" or number.bits >= 8 or not isinstance(codes, torch.Tensor) or codes.numel() == 0:
        return
    low, high = int(codes.min()), int(codes.max())
    if low < number.minimum or high > number.maximum:
        raise CheckpointError(
            f"{layer.name} has codes from {low} to {high}, the config says {number.bits} bits "
            f"({number.minimum:g} to {number.maximum:g})"
        )


def _probe_layer(task: _Task) -> LayerError:
    layer, module = task.layer, modules.find(task.model, task.layer.name)
    try:
        if module is None or len(layer.shape) != 2 or not hasattr(module, "in_features"):
            return _compare_parameter(task)
        device = _device(module)
        weight = decode(task.facts, layer, task.source, str(device))
        return _run_both(task, module, weight, dequantize(weight).to(device))
    except CheckpointError as error:  # the file contradicts itself: that is the layer's result
        return LayerError(layer.name, None, 0.0, None if module is None else modules.kernel_name(module), error.message)
    except QuantlabError as error:
        raise _Skipped(error.message) from error


def _device(module: Any) -> torch.device:
    tensors: Iterator[torch.Tensor] = iter([*module.parameters(), *module.buffers()])
    first = next(tensors, None)
    return torch.device("cpu") if first is None or first.device.type == "meta" else first.device


@torch.inference_mode()
def _run_both(task: _Task, module: Any, weight: QuantizedTensor, expected: torch.Tensor) -> LayerError:
    name, kernel, dtype = task.layer.name, modules.kernel_name(module), _dtype(module, weight)
    activations = _activations(task.facts, task.layer, weight)
    inputs = _inputs(task, weight, activations, expected, dtype)
    reference = inputs.float() @ expected.T
    bias = getattr(module, "bias", None)
    if isinstance(bias, torch.Tensor):
        reference = reference + bias.float().to(reference.device)
    allowed = allowed_error(dtype, activations, inputs, weight)
    try:
        output = module(inputs.view(BATCH, -1, inputs.shape[1])).float().flatten(0, 1)
        alone = module(inputs[None, :1]).float()[0]
    except Exception as error:  # noqa: BLE001 - whatever a kernel raises is the layer's result
        words = f"the layer raised {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        return LayerError(name, None, allowed, kernel, words)
    found, single = row_error(reference, output), row_error(reference[:1].T, alone.T)
    if found is not None and single is not None:
        found = max(found, single)
        if found <= allowed:
            return LayerError(name, found, allowed, kernel)
    loaded = recover(module, expected.shape[1], dtype, expected.device)
    worst_error = found if single is not None else None
    return LayerError(name, worst_error, allowed, kernel, task.why(expected, loaded, weight))


def row_error(reference: torch.Tensor, output: torch.Tensor) -> float | None:
    """Return the worst output row's relative error over all inputs (``[tokens, out]``), None where not finite."""
    if not bool(torch.isfinite(output).all()):
        return None
    sizes = reference.norm(dim=0)
    floor = (EMPTY_ROW * sizes.mean()).clamp_min(1e-30)
    return float(((output - reference).norm(dim=0) / torch.maximum(sizes, floor)).max())


def _dtype(module: Any, weight: QuantizedTensor) -> torch.dtype:
    """Return the dtype that the layer computes in: that of its dense tensors, else the model's."""
    for tensor in module.parameters():
        held: torch.dtype = tensor.dtype
        if held in ROUNDOFF and held is not torch.float32:
            return held
    declared = getattr(torch, weight.dtype, None)
    return declared if isinstance(declared, torch.dtype) and declared in ROUNDOFF else torch.bfloat16


def _activations(facts: CheckpointFacts, layer: Layer, weight: QuantizedTensor) -> ActivationScheme | None:
    """Return how a layer's inputs are rounded at run time."""
    if weight.scale_rule == "absmax127":
        return ActivationScheme(8, "int", "token", dynamic=True)
    groups = facts.scheme.groups
    for group in groups if len(groups) > 1 else ():
        if any(target == "Linear" or matches(target, layer.name) for target in group.targets):
            return group.activations
    if facts.scheme.activations is not None:
        return facts.scheme.activations
    return next((group.activations for group in groups if group.activations is not None), None)


def _inputs(
    task: _Task,
    weight: QuantizedTensor,
    activations: ActivationScheme | None,
    expected: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return seeded normal inputs ``[TOKENS, in]``, inside the range of a static input scale where there is one."""
    digest = hashlib.sha256(f"{task.seed} {task.layer.name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
    inputs = torch.randn(TOKENS, expected.shape[1], generator=generator)
    if weight.input_scale is not None and activations is not None:
        largest = _largest_input(weight, activations)
        if 0 < largest < float("inf"):
            inputs = inputs * (0.9 * largest / float(inputs.abs().max()))
    return inputs.to(expected.device, dtype)


def _largest_input(weight: QuantizedTensor, activations: ActivationScheme) -> float:
    """Return the largest input that a static scale is made for; NVFP4 has a scale for e4m3 scales of e2m1 numbers."""
    assert weight.input_scale is not None
    scale = float(weight.input_scale.float().max())
    if activations.bits == 4:
        return NVFP4_RANGE / scale if weight.global_scale_inverse else NVFP4_RANGE * scale
    return scale * (127.0 if activations.type == "int" else 448.0)


def recover(module: Any, columns: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return the matrix ``[out, in]`` that a layer multiplies by, from its answers to unit vectors."""
    zero = module(torch.zeros(1, 1, columns, dtype=dtype, device=device))[0].float()
    parts = []
    for start in range(0, columns, CHUNK):
        size = min(CHUNK, columns - start)
        units = torch.zeros(size, columns, dtype=dtype, device=device)
        units[torch.arange(size), start + torch.arange(size)] = 1
        parts.append(module(units[None])[0].float() - zero)
    return torch.cat(parts).T


def _compare_parameter(task: _Task) -> LayerError:
    """Compare the decoded weight with a dense parameter: fused experts have no module of their own."""
    layer, loaded = task.layer, loaded_expert(task.model, task.layer)
    if loaded is None:
        raise _Skipped("no module and no parameter of the loaded model stands for it")
    if loaded.dtype not in ROUNDOFF:
        raise _Skipped(f"the model holds it as {loaded.dtype}, fused with others")
    weight = decode(task.facts, layer, task.source, str(loaded.device))
    expected = dequantize(weight).to(loaded.device)
    if expected.shape != loaded.shape or weight.dense_transposed:
        expected = expected.mT
    if expected.shape != loaded.shape:
        raise _Skipped(f"shape {tuple(expected.shape)} in the file, {tuple(loaded.shape)} in the model")
    mine, theirs = expected.flatten(0, -2), loaded.float().flatten(0, -2)
    error = row_error(mine.T, theirs.T)
    allowed = 2 * ROUNDOFF[loaded.dtype]
    why = None if error is not None and error <= allowed else task.why(mine, theirs, weight)
    return LayerError(layer.name, error, allowed, f"dense {str(loaded.dtype).removeprefix('torch.')} parameter", why)
