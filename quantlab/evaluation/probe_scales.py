"""Which scales of a matrix are wrong, and by how much: cells of one scale each are compared."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from quantlab.tensors.dequantize import code_values, dense_codes, effective_scales
from quantlab.tensors.quantized import QuantizedTensor

FEW = 0.2
"""Share of cells up to which it is some scales, not all."""


WRONG_FACTOR = 0.2
"""Relative change of a cell from which its scale is wrong: calibration shrinks cells by a few percent."""

EXPLAINED = 0.3
"""Relative error that may remain in a cell once its factor is taken out."""


def cells(matrix: torch.Tensor, weight: QuantizedTensor) -> torch.Tensor | None:
    """Return the matrix as ``[scale rows, scale columns, elements]``, or None where scales lie otherwise."""
    if weight.scales.ndim != 2 or matrix.ndim != 2:
        return None
    rows, columns = weight.scales.shape
    if rows == 0 or columns == 0 or matrix.shape[0] % rows or matrix.shape[1] % columns:
        return None
    if weight.group_map is not None:
        matrix = matrix[:, weight.group_map.to(matrix.device).long().argsort(stable=True)]
    parts = matrix.reshape(rows, matrix.shape[0] // rows, columns, matrix.shape[1] // columns)
    return parts.transpose(1, 2).flatten(2)


def wrong_scales(
    decoded: torch.Tensor, other: torch.Tensor, weight: QuantizedTensor | None, *, limit: float, original: bool
) -> Iterator[str]:
    """Say where cells are wrong by a factor of their own; ``limit`` is the relative error of a healthy cell."""
    if weight is None or (mine := cells(decoded, weight)) is None or (theirs := cells(other, weight)) is None:
        return
    bad, good = (mine, theirs) if original else (theirs, mine)
    sizes = good.norm(dim=-1)
    floor = (1e-3 * sizes.mean()).clamp_min(1e-30)
    far = (bad - good).norm(dim=-1) / torch.maximum(sizes, floor) > limit
    factors = (bad * good).sum(-1) / sizes.square().clamp_min(1e-30)
    rest = (bad - factors.unsqueeze(-1) * good).norm(dim=-1) / torch.maximum(bad.norm(dim=-1), floor)
    wrong = far & ((factors - 1).abs() > WRONG_FACTOR) & (rest < max(limit, EXPLAINED))
    count = int(wrong.sum())
    if count == 0:
        return
    explained = count / int(far.sum())
    row, group = (int(index) for index in wrong.nonzero()[0])
    if count <= FEW * wrong.numel():
        where = f"{count} of {wrong.numel()} scales {'is' if count == 1 else 'are'} wrong"
        yield f"{where}, first row {row} group {group}: {_factor(float(factors[row, group]))}"
    elif explained > 0.8:
        low, high = float(factors[wrong].min()), float(factors[wrong].max())
        yield f"the right codes under wrong scales in {count} of {wrong.numel()} groups (times {low:.3g} to {high:.3g})"


def other_groups(weight: QuantizedTensor, wanted: torch.Tensor) -> torch.Tensor | None:
    """Give each column the group whose scales fit it best; return the matrix where that is another arrangement.

    A dropped group map (act order) leaves the right codes under the scales of other columns.
    """
    if weight.scales.ndim != 2 or weight.format.granularity != "group" or wanted.ndim != 2:
        return None
    rows, groups = weight.scales.shape
    if groups < 2 or rows != wanted.shape[0]:
        return None
    scales = effective_scales(weight).to(wanted.device)
    values = code_values(weight, dense_codes(weight)).to(wanted.device)
    zeros = torch.zeros_like(scales) if weight.zeros is None else weight.zeros.float().to(wanted.device)

    def under(group: int, columns: torch.Tensor | slice) -> torch.Tensor:
        return (values[:, columns] - zeros[:, group, None]) * scales[:, group, None]

    errors = [(under(group, slice(None)) - wanted).norm(dim=0) for group in range(groups)]
    best, results = torch.stack(errors).argmin(dim=0), torch.empty_like(wanted)
    for group in range(groups):
        results[:, best == group] = under(group, best == group)
    return results


def _factor(factor: float) -> str:
    return "the scale is zero" if abs(factor) < 1e-3 else f"times {factor:.3g}"
