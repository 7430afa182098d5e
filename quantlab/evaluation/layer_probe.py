"""The layer probe: does each loaded layer compute what the file's tensors say?

The same random inputs go through the loaded layer and through quantlab's own decode of the file, in float32. The
error is taken for each output row on its own, and the worst row counts: one wrong scale disappears in a whole
matrix's norm, not in its row's. What an error may be is derived in ``probe_bounds``; why it is larger is
looked for in ``probe_cause``. A second comparison, the decoded file against the original's weights, tells a bad file
from a bad kernel (``probe_baseline``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from quantlab.checkpoint.facts import CheckpointFacts
from quantlab.conversion.source import TensorSource
from quantlab.errors import QuantlabError
from quantlab.evaluation import load_proof, modules
from quantlab.evaluation.engines.interface import Report
from quantlab.evaluation.job import Job
from quantlab.evaluation.probe_bounds import ROUNDOFF, allowed_error
from quantlab.evaluation.probe_cause import cause
from quantlab.evaluation.result import LayerError, Probe
from quantlab.formats import FORMATS
from quantlab.formats.interface import Layer
from quantlab.progress import Progress
from quantlab.tensors.dequantize import dequantize
from quantlab.tensors.quantized import QuantizedTensor

TOKENS = 64
"""Random inputs a layer: enough that a row's error stands for its expectation within a tenth."""

EMPTY_ROW = 1e-3
"""A row whose output is below this share of the mean row's is measured against that share: rows of zeros exist."""

CHUNK = 512
"""Unit vectors at a time when a bad layer's matrix is recovered."""


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
            try:
                found.append(_probe_layer(model, facts, layer, source, job.seed))
            except _Skipped as reason:
                skipped[layer.name] = str(reason)
    bad = tuple(error for error in found if over(error))
    against = against_baseline(facts, chosen, job) if job.baseline is not None else None
    ok = not bad and (against is None or against.ok)
    return Probe(len(found), len(layers), ok, worst(found), bad, tuple(found), skipped, None, against)


class _Skipped(Exception):
    """A layer cannot be probed; the words say why."""


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
    """Return the layer's weight as the file holds it."""
    tensors = {role: source.read(name, device) for role, name in layer.tensors.items()}
    return FORMATS[facts.format].decode(layer, tensors)


def _probe_layer(model: Any, facts: CheckpointFacts, layer: Layer, source: TensorSource, seed: int) -> LayerError:
    module = modules.find(model, layer.name)
    try:
        if module is None or (len(layer.shape) == 2 and not hasattr(module, "in_features")):
            return _compare_parameter(model, facts, layer, source)
        device = _device(module)
        weight = decode(facts, layer, source, str(device))
        expected = dequantize(weight).to(device)
    except QuantlabError as error:
        raise _Skipped(error.message) from error
    if expected.ndim != 2:
        return _compare_parameter(model, facts, layer, source)
    return _run_both(module, layer, weight, expected, activations=_activations(facts), seed=seed)


def _device(module: Any) -> torch.device:
    tensors: Iterator[torch.Tensor] = iter([*module.parameters(), *module.buffers()])
    first = next(tensors, None)
    return torch.device("cpu") if first is None or first.device.type == "meta" else first.device


@torch.inference_mode()
def _run_both(
    module: Any, layer: Layer, weight: QuantizedTensor, expected: torch.Tensor, *, activations: Any, seed: int
) -> LayerError:
    dtype = _dtype(module, weight)
    inputs = _inputs(layer, weight, expected, dtype, seed)
    bias = getattr(module, "bias", None)
    reference = inputs.float() @ expected.T
    if isinstance(bias, torch.Tensor):
        reference = reference + bias.float().to(reference.device)
    try:
        output = module(inputs[None])[0].float()
    except Exception as error:  # noqa: BLE001 - whatever a kernel raises is the layer's result
        words = f"the layer raised {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        return LayerError(layer.name, None, 0.0, modules.kernel_name(module), words)
    allowed = allowed_error(dtype, activations, inputs)
    found = row_error(reference, output)
    if found is not None and found <= allowed:
        return LayerError(layer.name, found, allowed, modules.kernel_name(module))
    loaded = recover(module, expected.shape[1], dtype, expected.device)
    return LayerError(layer.name, found, allowed, modules.kernel_name(module), cause(expected, loaded, weight))


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


def _activations(facts: CheckpointFacts) -> Any:
    if facts.scheme.activations is not None:
        return facts.scheme.activations
    return next((group.activations for group in facts.scheme.groups if group.activations is not None), None)


def _inputs(
    layer: Layer, weight: QuantizedTensor, expected: torch.Tensor, dtype: torch.dtype, seed: int
) -> torch.Tensor:
    """Return seeded normal inputs ``[TOKENS, in]``, inside the range of a static input scale where there is one."""
    digest = hashlib.sha256(f"{seed} {layer.name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
    inputs = torch.randn(TOKENS, expected.shape[1], generator=generator)
    if weight.input_scale is not None:
        largest = {"float": 448.0, "int": 127.0}.get(weight.format.number.kind, 6.0) * weight.input_scale.float().max()
        inputs = inputs * float(0.9 * largest.cpu() / inputs.abs().max())
    return inputs.to(expected.device, dtype)


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


def _compare_parameter(model: Any, facts: CheckpointFacts, layer: Layer, source: TensorSource) -> LayerError:
    """Compare the decoded weight with a dense parameter: fused experts have no module of their own."""
    from quantlab.evaluation.probe_experts import loaded_expert

    loaded = loaded_expert(model, layer)
    if loaded is None:
        raise _Skipped("no module and no parameter of the loaded model stands for it")
    if loaded.dtype not in ROUNDOFF:
        raise _Skipped(f"the model holds it as {loaded.dtype}, fused with others")
    weight = decode(facts, layer, source, str(loaded.device))
    expected = dequantize(weight).to(loaded.device)
    if expected.shape != loaded.shape:
        expected = expected.mT
    if expected.shape != loaded.shape:
        raise _Skipped(f"shape {tuple(expected.shape)} in the file, {tuple(loaded.shape)} in the model")
    mine, theirs = expected.flatten(0, -2), loaded.float().flatten(0, -2)
    error = row_error(mine.T, theirs.T)
    allowed = 2 * ROUNDOFF[loaded.dtype]
    why = None if error is not None and error <= allowed else cause(mine, theirs)
    return LayerError(layer.name, error, allowed, f"dense {str(loaded.dtype).removeprefix('torch.')} parameter", why)
