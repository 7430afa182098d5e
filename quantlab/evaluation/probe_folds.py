"""Was a matrix scaled by columns and rows as a whole? AWQ and SmoothQuant do that, and fold the inverse elsewhere.

``got = diag(rows) wanted diag(columns)`` with positive factors is found by least squares in turn. A fold moves most
of the columns or rows, a wrong scale moves a few. Channel scales in another order, or twice as large, look like a
fold too: so a fold counts only where something in the same block takes it back, the norm before (for columns), or the
columns of the layer after (for rows).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

ROUNDS = 4
MOST = 0.5
"""Share of columns or rows that a fold moves."""

MOVED = 0.02
"""Relative change from which a factor counts as moved: AWQ's and SmoothQuant's differ by tens of percent."""

EXPLAINS = 0.7
"""Share of the difference that may remain: calibration moves what is scaled as well."""

WIDEST = 256.0
"""Largest factor of a fold, and 1 over the smallest."""

NOTHING = 0.1
"""Root mean square of factors' logarithms that counts as no fold: AWQ's clipping shrinks rows by a few percent."""

NEARLY_NOISE = 1.3
"""Times the error of rounding that may remain as well: a slight fold explains little of the whole."""

NEARLY_ALL = 0.95
"""Share of factors that must be positive and usual: a quiet column may be rounded to nothing."""

SMALLEST = 1e-6

LEFT_OVER = 0.3
"""Share of the factors' logarithms that their product with the inverse may leave."""


@dataclass(frozen=True)
class Fold:
    """A fold that explains a difference.

    Attributes:
        scaled: the original with the fold applied.
        columns: factor of each column.
        rows: factor of each row; their median is 1.
    """

    scaled: torch.Tensor
    columns: torch.Tensor
    rows: torch.Tensor


def find_fold(wanted: torch.Tensor, got: torch.Tensor, noise: float = 0.0) -> Fold | None:
    """Return the fold between two matrices, or None where none explains the difference.

    Args:
        wanted: float32 ``[out, in]``, the original.
        got: float32 ``[out, in]``.
        noise: relative error of rounding, which no fold explains.
    """
    columns, rows = torch.ones(wanted.shape[1]), torch.ones(wanted.shape[0])
    columns, rows = columns.to(wanted.device), rows.to(wanted.device)
    for _ in range(ROUNDS):
        columns = _factors(wanted * rows[:, None], got, 0)
        rows = _factors(wanted * columns, got, 1)
        if not (_positive(columns) and _positive(rows)):
            return None
        columns, rows = columns.clamp_min(SMALLEST), rows.clamp_min(SMALLEST)
        middle = rows.median()
        rows, columns = rows / middle, columns * middle
    if not (_is_fold(columns) or _is_fold(rows)) or not (_usual(columns) and _usual(rows)):
        return None
    columns_moved, rows_moved = _is_fold(columns), _is_fold(rows)
    columns = columns if columns_moved else torch.ones_like(columns)
    rows = rows if rows_moved else torch.ones_like(rows)
    scaled = wanted * columns * rows[:, None]
    rest, whole = float((got - scaled).norm()), float((got - wanted).norm())
    if rest > max(EXPLAINS * whole, NEARLY_NOISE * noise * float(scaled.norm())) or rest >= whole:
        return None
    return Fold(scaled, columns, rows)


def accepted(folds: Mapping[str, Fold], norms: Sequence[torch.Tensor], head: int | None = None) -> set[str]:
    """Return the layers of one block whose folds are taken back.

    Rows and columns of one layer are known up to a constant. A norm before settles it: what its inverse leaves of the
    columns is constant, and belongs to the rows. Rows are taken back by the columns of a layer that no norm explains.

    Args:
        folds: fold of each layer of the block, by name.
        norms: by how much each norm of the block was multiplied, ``[in]``.
        head: size of an attention head: the columns after repeat each key-value head's rows.
    """
    rows: list[tuple[str, torch.Tensor]] = []
    columns: list[tuple[str, torch.Tensor]] = []
    for name, fold in folds.items():
        rows += [(name, fold.rows.log() + constant) for constant in _left_by_norms(fold, norms)]
        if _spread(fold.rows.log()) < NOTHING:
            columns.append((name, fold.columns.log()))
    good = {name for name, wanted in rows if _spread(wanted) < NOTHING}
    for one, before in rows:
        for other, after in columns:
            if one != other and _cancel(before, after, head):
                good |= {one, other}
    return good


def _left_by_norms(fold: Fold, norms: Sequence[torch.Tensor]) -> list[float]:
    """Return the constants that norms' inverses, or no norm, may leave of the columns."""
    logs = fold.columns.log()
    tolerance = max(NOTHING, LEFT_OVER * _spread(logs - logs.median()))
    rests = [logs + norm.log() for norm in (torch.ones_like(logs), *norms) if len(norm) == len(logs)]
    return [float(rest.median()) for rest in rests if _spread(rest - rest.median()) < tolerance]


def _cancel(rows: torch.Tensor, columns: torch.Tensor, head: int | None) -> bool:
    """Say whether the logarithms of rows and of the columns after them add up to nothing."""
    if len(rows) != len(columns):
        if head is None or len(columns) % len(rows) or len(rows) % head:
            return False
        rows = rows.view(-1, head).repeat_interleave(len(columns) // len(rows), dim=0).flatten()
    return _spread(rows + columns) < max(NOTHING, LEFT_OVER * _spread(columns))


def _spread(logs: torch.Tensor) -> float:
    """Return the root mean square by way of the median: the factor of a quiet column is uncertain."""
    return 1.4826 * float(logs.abs().median())


def _factors(wanted: torch.Tensor, got: torch.Tensor, axis: int) -> torch.Tensor:
    square = (wanted * wanted).sum(dim=axis)
    factors = (wanted * got).sum(dim=axis) / square.clamp_min(1e-30)
    return torch.where(square > 0, factors, torch.ones_like(factors))


def _positive(factors: torch.Tensor) -> bool:
    return float((factors > 0).float().mean()) >= NEARLY_ALL


def _usual(factors: torch.Tensor) -> bool:
    return float(((factors < WIDEST) & (factors > 1 / WIDEST)).float().mean()) >= NEARLY_ALL


def _is_fold(factors: torch.Tensor) -> bool:
    """Say whether most factors are not 1."""
    return float(((factors - 1).abs() > MOVED).float().mean()) > MOST
