"""The decoded file against the original's weights: a bad file is told from a bad kernel.

What an error may be is set by quantlab's own rounding of the original in the same scheme: a row may lose twice what
rounding to nearest loses (calibrated methods trade some error of a weight for less error of the output), plus what
rounding a 16-bit scale or weight costs. Codebooks have no rounding here: half of the widest gap between two of
their sixteen values bounds each element (NF4 and FP4: below 0.17 of the block's largest), and rows of blocks of 64
normal numbers stay below 0.25.

AWQ and SmoothQuant multiply columns and fold the inverse into the layer before; that is no damage, and it shows:
each column's ratio to the original is one number.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from quantlab.checkpoint.facts import CheckpointFacts
from quantlab.checkpoint.open import read
from quantlab.conversion.source import TensorSource
from quantlab.errors import QuantlabError
from quantlab.evaluation import load_proof
from quantlab.evaluation.job import Job
from quantlab.evaluation.probe_bounds import ROUNDOFF
from quantlab.evaluation.probe_cause import cause
from quantlab.evaluation.result import LayerError, WeightComparison
from quantlab.formats.interface import Layer
from quantlab.tensors.dequantize import dequantize
from quantlab.tensors.quantize import quantize
from quantlab.tensors.quantized import QuantizedTensor

CODEBOOK_ALLOWED = 0.25
ROUNDING_FACTOR = 2.0
SAME_RATIO = 0.2
"""Spread of a column's ratios, relative, under which the column was scaled as a whole."""


def against_baseline(facts: CheckpointFacts, layers: Sequence[Layer], job: Job) -> WeightComparison:
    """Compare the decoded weights of some layers with the original's."""
    from quantlab.evaluation.layer_probe import decode, over, worst

    assert job.baseline is not None
    original = read(str(Path(job.baseline)))
    found: list[LayerError] = []
    notes: list[str] = []
    with load_proof.open_tensors(facts) as source, load_proof.open_tensors(original) as dense:
        for layer in layers:
            info = original.tensors.get(layer.weight_name)
            if info is None or tuple(info.shape) != tuple(layer.shape):
                notes.append(f"{layer.name}: the original has no tensor {layer.weight_name} of its shape")
                continue
            try:
                weight = decode(facts, layer, source, "cpu")
                found.append(_compare(layer, weight, _dense(dense, layer), notes))
            except QuantlabError as error:
                notes.append(f"{layer.name}: {error.message}")
    bad = tuple(error for error in found if over(error))
    return WeightComparison(len(found), worst(found), not bad, bad, tuple(notes[:20]))


def _dense(source: TensorSource, layer: Layer) -> torch.Tensor:
    return source.read(layer.weight_name)


@torch.inference_mode()
def _compare(layer: Layer, weight: QuantizedTensor, original: torch.Tensor, notes: list[str]) -> LayerError:
    decoded, wanted = dequantize(weight).flatten(0, -2), original.float().flatten(0, -2)
    errors = _rows(wanted, decoded)
    if not bool(torch.isfinite(decoded).all()):
        return LayerError(layer.name, None, 0.0, cause="not finite: a scale that is NaN or infinite")
    limits = _limits(layer, weight, original)
    place = int((errors / limits).argmax())
    error, allowed = float(errors[place]), float(limits[place] if limits.ndim else limits)
    if error <= allowed:
        return LayerError(layer.name, error, allowed)
    if scaled_columns(wanted, decoded):
        notes.append(f"{layer.name}: its columns are scaled (AWQ, SmoothQuant)")
        return LayerError(layer.name, 0.0, allowed)
    flat = weight if len(weight.shape) == 2 else None
    return LayerError(layer.name, error, allowed, cause=cause(wanted, decoded, flat))


def _rows(wanted: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    sizes = wanted.norm(dim=1)
    return (got - wanted).norm(dim=1) / torch.maximum(sizes, (1e-3 * sizes.mean()).clamp_min(1e-30))


def _limits(layer: Layer, weight: QuantizedTensor, original: torch.Tensor) -> torch.Tensor:
    """Return each row's allowed error."""
    roundoff = 2 * ROUNDOFF.get(original.dtype, 0.0)
    if layer.format.number.kind == "codebook":
        return torch.full((original.flatten(0, -2).shape[0],), CODEBOOK_ALLOWED)
    rounded: torch.Tensor = dequantize(quantize(original, weight.format, name=layer.name)).flatten(0, -2)
    return ROUNDING_FACTOR * _rows(original.float().flatten(0, -2), rounded) + roundoff


def scaled_columns(wanted: torch.Tensor, got: torch.Tensor) -> bool:
    """Say whether every column of one matrix is the other's times a positive number of its own."""
    square = (wanted * wanted).sum(dim=0).clamp_min(1e-30)
    ratios = (wanted * got).sum(dim=0) / square
    rest = (got - wanted * ratios).norm(dim=0) / (got.norm(dim=0).clamp_min(1e-30))
    varied = float(ratios.std() / ratios.mean().abs().clamp_min(1e-30)) > CLOSE_RATIO
    return bool((ratios > 0).all()) and varied and float(rest.median()) < SAME_RATIO


CLOSE_RATIO = 0.02
"""Spread over columns of their ratios, relative, above which scaling columns explains anything."""
