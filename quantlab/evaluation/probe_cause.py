"""Why a layer computes something else: the loaded matrix is recovered and compared with what mistakes would give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from quantlab.tensors.dequantize import dequantize, effective_scales
from quantlab.tensors.quantized import QuantizedTensor

CLOSE = 0.05
"""Relative error under which a hypothesis explains a matrix: some roundings of bfloat16 lie far below."""

UNRELATED = 0.1
"""Correlation under which two matrices have nothing in common (chance gives 1/sqrt of the element count)."""


def cause(
    expected: torch.Tensor,
    loaded: torch.Tensor,
    weight: QuantizedTensor | None = None,
    others: Mapping[str, torch.Tensor] | None = None,
) -> str:
    """Return the likely cause in words.

    Args:
        expected: float32 ``[out, in]``, what the file says.
        loaded: float32 ``[out, in]``, what the layer multiplies by.
        weight: the file's codes and scales, for hypotheses about zero points and groups.
        others: other layers' expected matrices of the same shape, by name.
    """
    return next(_causes(expected, loaded, weight, others or {}), "unknown")


def _causes(
    expected: torch.Tensor, loaded: torch.Tensor, weight: QuantizedTensor | None, others: Mapping[str, torch.Tensor]
) -> Iterator[str]:
    if not bool(torch.isfinite(loaded).all()):
        yield "not finite: a scale that is NaN or infinite"
        return
    if not bool(loaded.any()):
        yield "all zero: weights that were never loaded, or a kernel that returns zeros"
    yield from _factors(expected, loaded)
    if weight is not None:
        yield from _zero_points(loaded, weight)
        yield from _groups(loaded, weight)
    yield from _orders(expected, loaded)
    for name, other in others.items():
        if relative(other, loaded) < CLOSE:
            yield f"the weights of {name}: layers were exchanged"
    if weight is not None:
        yield from _some_scales(expected, loaded, weight)
    if abs(correlation(expected, loaded)) < UNRELATED:
        yield "unrelated numbers: random, or unpacked in another order"


def relative(expected: torch.Tensor, loaded: torch.Tensor) -> float:
    """Return the relative error in the Frobenius norm."""
    return float((loaded - expected).norm() / expected.norm().clamp_min(1e-30))


def correlation(one: torch.Tensor, two: torch.Tensor) -> float:
    """Return the cosine of the angle between two matrices."""
    return float((one * two).sum() / (one.norm() * two.norm()).clamp_min(1e-30))


def _factors(expected: torch.Tensor, loaded: torch.Tensor) -> Iterator[str]:
    square = (expected * expected).sum()
    if square == 0:
        return
    factor = float((loaded * expected).sum() / square)
    if factor == 0 or relative(expected * factor, loaded) > CLOSE or abs(factor - 1) < CLOSE:
        return
    if any(abs(factor / other - 1) < CLOSE for other in (2.0, 0.5)):
        yield f"everything times {factor:.3g}: FNUZ bytes read as OCP or the reverse, or a scale doubled"
    else:
        yield f"everything times {factor:.4g}: a constant factor, such as a scale left out or inverted"


def _zero_points(loaded: torch.Tensor, weight: QuantizedTensor) -> Iterator[str]:
    if weight.format.number.kind != "int" or weight.scales.ndim != 2:
        return
    scales = effective_scales(weight)
    ones = torch.ones_like(scales, dtype=torch.int16)
    zeros = torch.zeros_like(ones) if weight.zeros is None else weight.zeros
    for step in (1, -1):
        shifted = dequantize(replace(weight, zeros=zeros + step * ones, format=replace(weight.format, symmetric=False)))
        if relative(shifted.to(loaded.device), loaded) < CLOSE:
            yield "off by one zero point: GPTQ version 1 read as version 2, or the reverse"


def _groups(loaded: torch.Tensor, weight: QuantizedTensor) -> Iterator[str]:
    if weight.group_map is not None:
        plain = dequantize(replace(weight, group_map=None))
        if relative(plain.to(loaded.device), loaded) < CLOSE:
            yield "act order: the group map (g_idx) was ignored"


def _orders(expected: torch.Tensor, loaded: torch.Tensor) -> Iterator[str]:
    """Compare sorted rows and columns: a permutation keeps them."""
    if relative(expected.sort(dim=1).values, loaded.sort(dim=1).values) < CLOSE:
        yield "permuted columns: act order, or packed codes taken apart in another order (AWQ, nibbles)"
    if relative(expected.sort(dim=0).values, loaded.sort(dim=0).values) < CLOSE:
        yield "permuted rows: output channels in another order"


def _some_scales(expected: torch.Tensor, loaded: torch.Tensor, weight: QuantizedTensor) -> Iterator[str]:
    """Say where a few groups alone are wrong, and by which factor."""
    if weight.scales.ndim != 2 or weight.scales.shape[0] != expected.shape[0]:
        return
    groups = weight.scales.shape[1]
    if groups == 0 or expected.shape[1] % groups:
        return
    mine = expected.reshape(expected.shape[0], groups, -1)
    theirs = loaded.reshape(mine.shape)
    errors = (theirs - mine).norm(dim=-1) / mine.norm(dim=-1).clamp_min(1e-30)
    wrong = errors > CLOSE
    if 0 < int(wrong.sum()) < 0.2 * wrong.numel():
        row, group = (int(index) for index in wrong.nonzero()[0])
        part = (mine[row, group] * mine[row, group]).sum().clamp_min(1e-30)
        factor = float((theirs[row, group] * mine[row, group]).sum() / part)
        where = f"{int(wrong.sum())} of {wrong.numel()} groups are wrong, first row {row} group {group}"
        yield f"{where}: times {factor:.3g} (its scale)"
