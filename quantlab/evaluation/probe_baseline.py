"""The decoded file against the original's weights: a bad file is told from a bad kernel.

What an error may be is set by quantlab's own rounding of the original in the same scheme: a row may lose twice what
rounding to nearest loses (calibrated methods trade some error of a weight for less error of the output), plus what
rounding a 16-bit scale or weight costs. One scale of many hardly shows in its row, so the cells of one scale are
looked at too: none may lose 0.4 of its norm where rounding loses less than a third of that. Codebooks have no
rounding here: half of the widest gap between two of their sixteen values bounds each element (NF4: 0.15, FP4: 0.17
of the block's largest), so the block's largest over its root mean square sets the bound.

Calibration may move a weight further still where its inputs hardly vary (GPTQ with few samples: seven times what
rounding does). So an error above these bounds counts as damage where a known mistake explains it (``probe_cause``),
or where nothing of a row is left; other drift is noted.

AWQ and SmoothQuant multiply columns and rows and fold the inverses into neighbours (``probe_folds``); that is no
damage. Dense matrices of the file (embeddings, routers, heads) must be the original's, up to folding and rounding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from quantlab.checkpoint.facts import CheckpointFacts
from quantlab.checkpoint.open import read
from quantlab.conversion.source import TensorSource
from quantlab.errors import CheckpointError, QuantlabError
from quantlab.evaluation import load_proof
from quantlab.evaluation.job import Job
from quantlab.evaluation.probe_bounds import ROUNDOFF
from quantlab.evaluation.probe_cause import DRIFT, Mismatch, cause
from quantlab.evaluation.probe_folds import Fold, accepted, find_fold
from quantlab.evaluation.probe_scales import cells
from quantlab.evaluation.result import LayerError, WeightComparison
from quantlab.formats.interface import Layer
from quantlab.tensors.dequantize import dequantize
from quantlab.tensors.quantize import quantize
from quantlab.tensors.quantized import QuantizedTensor

ROUNDING_FACTOR = 2.0
RUINED_ROW = 0.2
"""Correlation of a row with the original's from which something of it is left: chance gives 1/sqrt(columns)."""

CELL_FACTOR = 3.0
CELL_ERROR = 0.4
CODEBOOK_GAP = {"nf4": 0.16, "fp4": 0.17}
"""Half of the widest gap between neighbours, as a share of the largest value."""

QUIET_CELL = 0.25
"""A cell whose norm is below this share of the mean is measured against that share: its errors hardly matter."""

NOT_TAKEN_BACK = "its columns or rows are scaled, and nothing takes that back: scales in another order"
BLOCK = re.compile(r"^(.*?\.\d+)\.")
"""A decoder block's name, at the start of its tensors' names."""

MOST_EXPLAINED = 8
MOST_NOTES = 20


@dataclass(frozen=True)
class _Folded:
    """A matrix that is the original's but for a fold.

    Attributes:
        fold: the fold.
        error: its error if nothing takes the fold back.
        layer: the layer, or None for a dense tensor.
    """

    fold: Fold
    error: LayerError
    layer: Layer | None = None


@dataclass
class _Comparison:
    """What is found as the layers go by.

    Attributes:
        facts: the checkpoint.
        original: the original.
        source: reads the checkpoint's tensors.
        dense: reads the original's.
        layers: the quantized layers that are compared.
        found: their errors.
        folds: matrices whose error a fold explains.
        small_folds: folds of matrices whose error is no more than it may be; they may take back another's.
        drifted: matrices that moved more than rounding moves them, without a known mistake.
        notes: what else is worth knowing.
        bad: how many are bad so far.
    """

    facts: CheckpointFacts
    original: CheckpointFacts
    source: TensorSource
    dense: TensorSource
    layers: Sequence[Layer]
    found: list[LayerError] = field(default_factory=list)
    folds: dict[str, _Folded] = field(default_factory=dict)
    small_folds: dict[str, Fold] = field(default_factory=dict)
    drifted: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    bad: int = 0

    def add(self, error: LayerError) -> None:
        """Take one layer's error."""
        self.found.append(error)
        self.bad += error.relative_error is None or error.relative_error > error.allowed

    def others(self, layer: Layer) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the original's other matrices of the same shape, where causes are still looked for."""
        from quantlab.evaluation.layer_probe import others

        if self.bad >= MOST_EXPLAINED:
            return
        yield from others(self.layers, layer, lambda other: self.dense.read(other.weight_name).float())()


def against_baseline(facts: CheckpointFacts, layers: Sequence[Layer], job: Job) -> WeightComparison:
    """Compare the decoded weights of some layers, and the dense matrices, with the original's."""
    from quantlab.evaluation.layer_probe import over, worst

    assert job.baseline is not None
    original = read(str(Path(job.baseline)))
    with load_proof.open_tensors(facts) as source, load_proof.open_tensors(original) as dense:
        comparison = _Comparison(facts, original, source, dense, layers)
        for layer in layers:
            _compare_layer(comparison, layer)
        _compare_dense(comparison)
        _check_folds(comparison, complete=job.probe is None)
    if comparison.drifted:
        words = f"{len(comparison.drifted)} matrices moved more than rounding moves them, as calibration does"
        comparison.notes.insert(0, f"{words}; first {comparison.drifted[0]}")
    bad = tuple(error for error in comparison.found if over(error))
    found = comparison.found
    return WeightComparison(len(found), worst(found), not bad, bad, tuple(comparison.notes[:MOST_NOTES]))


def _compare_layer(comparison: _Comparison, layer: Layer) -> None:
    from quantlab.evaluation.layer_probe import decode

    info = comparison.original.tensors.get(layer.weight_name)
    if info is None:
        comparison.notes.append(f"{layer.name}: the original has no tensor {layer.weight_name}")
        return
    try:
        weight = decode(comparison.facts, layer, comparison.source, "cpu")
        wanted = comparison.dense.read(layer.weight_name)
        wanted = wanted.mT.contiguous() if weight.dense_transposed else wanted
        if tuple(wanted.shape) != tuple(weight.shape):
            comparison.notes.append(f"{layer.name}: shape {list(weight.shape)}, {list(wanted.shape)} in the original")
            return
        comparison.add(_compare(comparison, layer, weight, wanted))
    except CheckpointError as error:  # the file contradicts itself
        comparison.add(LayerError(layer.name, None, 0.0, cause=error.message))
    except QuantlabError as error:
        comparison.notes.append(f"{layer.name}: {error.message}")


@torch.inference_mode()
def _compare(comparison: _Comparison, layer: Layer, weight: QuantizedTensor, original: torch.Tensor) -> LayerError:
    decoded, wanted = dequantize(weight), original.float()
    if not bool(torch.isfinite(decoded).all()):
        return LayerError(layer.name, None, 0.0, cause=cause(Mismatch(decoded, wanted, weight, original=True)))
    error = _excess(weight, decoded, original)
    worse = error.relative * ROUNDING_FACTOR > error.allowed
    fold = find_fold(wanted, decoded, error.noise) if wanted.ndim == 2 and worse else None
    if error.relative <= error.allowed:
        if fold is not None:
            comparison.small_folds[layer.name] = fold
        return LayerError(layer.name, error.relative, error.allowed)
    if fold is not None:
        wrong = LayerError(layer.name, error.relative, error.allowed, cause=NOT_TAKEN_BACK)
        comparison.folds[layer.name] = _Folded(fold, wrong, layer)
        wanted = fold.scaled
        error = _excess(weight, decoded, wanted.to(original.dtype))
        if error.relative <= error.allowed:
            return LayerError(layer.name, error.relative, error.allowed)
    mismatch = Mismatch(
        decoded.flatten(0, -2),
        wanted.flatten(0, -2),
        weight if wanted.ndim == 2 else None,
        lambda: comparison.others(layer),
        error.noise,
        original=True,
    )
    why = cause(mismatch)
    if why.startswith(DRIFT) and _row_correlation(decoded, wanted) >= RUINED_ROW:
        comparison.drifted.append(layer.name)
        return LayerError(layer.name, error.relative, error.relative, cause=why)
    comparison.folds.pop(layer.name, None)
    return LayerError(layer.name, error.relative, error.allowed, cause=why)


def _row_correlation(decoded: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the lowest correlation of a row with the original's, rows of next to nothing aside."""
    mine, theirs = decoded.flatten(0, -2), wanted.flatten(0, -2)
    sizes = theirs.norm(dim=1)
    found = (mine * theirs).sum(dim=1) / (sizes * mine.norm(dim=1)).clamp_min(1e-30)
    return float(found[sizes > 1e-3 * sizes.mean()].min()) if bool(sizes.any()) else 1.0


@dataclass(frozen=True)
class _Error:
    """The worst row or cell: its error, what it may be, and the error of the whole matrix that rounding makes."""

    relative: float
    allowed: float
    noise: float


def _excess(weight: QuantizedTensor, decoded: torch.Tensor, original: torch.Tensor) -> _Error:
    """Compare rows with what rounding costs them, then cells."""
    wanted = original.float()
    rounded = _rounded(weight, original)
    roundoff = 2 * ROUNDOFF.get(original.dtype, 0.0)
    errors = _norms(decoded - wanted, wanted.flatten(0, -2))
    if rounded is None:
        usual = _codebook_error(weight, wanted)
        noise = usual
        limits = torch.full_like(errors, usual)
    else:
        limits = ROUNDING_FACTOR * _norms(rounded - wanted, wanted.flatten(0, -2)) + roundoff
        noise = float((rounded - wanted).norm() / wanted.norm().clamp_min(1e-30))
    place = int((errors / limits).argmax())
    found = _Error(float(errors[place]), float(limits[place]), noise)
    if found.relative > found.allowed or rounded is None:
        return found
    return _worst_cell(weight, decoded, wanted, rounded, noise) or found


def _rounded(weight: QuantizedTensor, original: torch.Tensor) -> torch.Tensor | None:
    """Return the original rounded to nearest in the weight's scheme, or None for codebooks."""
    if weight.format.number.kind == "codebook":
        return None
    plain = original if original.dtype in ROUNDOFF else original.float()
    if weight.group_map is None or weight.format.group_size is None:
        return dequantize(quantize(plain, weight.format, name="the original"))
    order = weight.group_map.long().argsort(stable=True)
    ordered = dequantize(quantize(plain[:, order].contiguous(), weight.format, name="the original"))
    return ordered[:, order.argsort()]


def _norms(difference: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return each row's error over its norm."""
    sizes: torch.Tensor = wanted.norm(dim=1)
    errors: torch.Tensor = difference.flatten(0, -2).norm(dim=1)
    return errors / torch.maximum(sizes, (1e-3 * sizes.mean()).clamp_min(1e-30))


def _codebook_error(weight: QuantizedTensor, wanted: torch.Tensor) -> float:
    """Return half of the widest gap times the root mean square of the blocks' largest, over that of the weights."""
    gap = CODEBOOK_GAP.get(weight.format.number.name, 0.25)
    size = weight.format.group_size or 64
    flat = wanted.flatten()
    flat = torch.nn.functional.pad(flat, (0, -flat.numel() % size))
    largest = flat.view(-1, size).abs().amax(dim=1).square().mean().sqrt()
    return float(gap * largest / flat.square().mean().sqrt().clamp_min(1e-30))


def _worst_cell(
    weight: QuantizedTensor, decoded: torch.Tensor, wanted: torch.Tensor, rounded: torch.Tensor, noise: float
) -> _Error | None:
    """Return a cell of one scale that lost far more than rounding costs it, or None."""
    mine, theirs, usual = cells(decoded, weight), cells(wanted, weight), cells(rounded, weight)
    if mine is None or theirs is None or usual is None:
        return None
    sizes = theirs.norm(dim=-1)
    sizes = torch.maximum(sizes, (QUIET_CELL * sizes.mean()).clamp_min(1e-30))
    errors = (mine - theirs).norm(dim=-1) / sizes
    limits = (CELL_FACTOR * (usual - theirs).norm(dim=-1) / sizes).clamp_min(CELL_ERROR)
    place = int((errors / limits).argmax())
    error, limit = float(errors.flatten()[place]), float(limits.flatten()[place])
    return _Error(error, limit, noise) if error > limit else None


@torch.inference_mode()
def _compare_dense(comparison: _Comparison) -> None:
    """Compare the matrices that the file keeps dense: they cost nothing to keep right."""
    quantized = {name for layer in comparison.layers for name in layer.tensors.values()}
    for name, info in comparison.facts.tensors.items():
        original = comparison.original.tensors.get(name)
        if name in quantized or original is None or len(info.shape) != 2 or info.shape != original.shape:
            continue
        if info.dtype not in {"BF16", "F16", "F32"} or original.dtype not in {"BF16", "F16", "F32"}:
            continue
        mine, theirs = comparison.source.read(name), comparison.dense.read(name)
        if torch.equal(mine, theirs):
            continue
        allowed = 2 * max(ROUNDOFF[mine.dtype], ROUNDOFF[theirs.dtype])
        decoded, wanted = mine.float(), theirs.float()
        error = float(_norms(decoded - wanted, wanted).max()) if bool(torch.isfinite(decoded).all()) else None
        if error is not None and error > allowed and (fold := find_fold(wanted, decoded)) is not None:
            comparison.folds[name] = _Folded(fold, LayerError(name, error, allowed, cause=NOT_TAKEN_BACK))
            continue
        why = None if error is not None and error <= allowed else cause(Mismatch(decoded, wanted, original=True))
        comparison.add(LayerError(name, error, allowed, cause=why))


def _check_folds(comparison: _Comparison, *, complete: bool) -> None:
    """Accept folds that something in the same block takes back; a sample of layers need not hold that."""
    if not comparison.folds:
        return
    good: set[str] = set(comparison.folds)
    if complete:
        good = set()
        for block in {_block(name) for name in comparison.folds}:
            every = comparison.small_folds | {name: item.fold for name, item in comparison.folds.items()}
            near = {name: fold for name, fold in every.items() if _block(name) == block}
            good |= comparison.folds.keys() & accepted(
                near, list(_norm_ratios(comparison, block)), comparison.facts.architecture.head_dim
            )
    for name, folded in comparison.folds.items():
        if name in good:
            continue
        wrong = folded.error
        if folded.layer is not None:
            wrong = replace(wrong, cause=_unfolded_cause(comparison, folded.layer) or wrong.cause)
        comparison.found = [wrong if error.layer == name else error for error in comparison.found]
        if all(error.layer != name for error in comparison.found):
            comparison.found.append(wrong)
    if good:
        words = "taken back by their neighbours" if complete else "not looked for in their neighbours"
        comparison.notes.insert(0, f"columns or rows of {len(good)} matrices are scaled (AWQ, SmoothQuant), {words}")


def _unfolded_cause(comparison: _Comparison, layer: Layer) -> str | None:
    """Return why a layer differs from the original as it is, where a known mistake explains it."""
    from quantlab.evaluation.layer_probe import decode

    weight = decode(comparison.facts, layer, comparison.source, "cpu")
    wanted = comparison.dense.read(layer.weight_name)
    noise = _excess(weight, dequantize(weight), wanted).noise
    why = cause(Mismatch(dequantize(weight), wanted.float(), weight, noise=noise, original=True))
    return None if why.startswith(DRIFT) else why


def _block(name: str) -> str:
    found = BLOCK.match(name)
    return "" if found is None else found[1]


def _norm_ratios(comparison: _Comparison, block: str) -> Iterator[torch.Tensor]:
    """Yield by how much each vector of a block was multiplied; some norms add 1 to their weight (Gemma)."""
    for name, info in comparison.facts.tensors.items():
        original = comparison.original.tensors.get(name)
        if _block(name) != block or original is None or len(info.shape) != 1 or info.shape != original.shape:
            continue
        mine, theirs = comparison.source.read(name).float(), comparison.dense.read(name).float()
        if not torch.equal(mine, theirs):
            for added in (0.0, 1.0):
                yield ((mine + added) / (theirs + added)).abs().clamp(1e-6, 1e6).nan_to_num(1.0)
