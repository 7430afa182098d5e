"""Was a matrix scaled by columns and rows as a whole? AWQ and SmoothQuant do that, and fold the inverse elsewhere.

``got = diag(rows) wanted diag(columns)`` with positive factors is found by least squares in turn. A fold moves most
of the columns or rows, a wrong scale moves a few. Channel scales in another order, or twice as large, look like a
fold too: so a fold counts only where something in the same block takes it back, the norm before (for columns), or the
columns of the layer after (for rows).
"""

from __future__ import annotations

from collections.abc import Iterable
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

TAKES_BACK = -0.9
"""Correlation of the logarithms of two lists of factors from which one is the other's inverse."""


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
        columns: factor of each column, or None where columns were not moved.
        rows: factor of each row, or None.
    """

    scaled: torch.Tensor
    columns: torch.Tensor | None
    rows: torch.Tensor | None


def find_fold(wanted: torch.Tensor, got: torch.Tensor) -> Fold | None:
    """Return the fold between two matrices, or None where none explains the difference.

    Args:
        wanted: float32 ``[out, in]``, the original.
        got: float32 ``[out, in]``.
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
    if float((got - scaled).norm()) > EXPLAINS * float((got - wanted).norm()):
        return None
    return Fold(scaled, columns if columns_moved else None, rows if rows_moved else None)


def taken_back(factors: torch.Tensor, candidates: Iterable[torch.Tensor], head: int | None = None) -> bool:
    """Say whether one of the candidates is the inverse of some factors.

    Factors of both rows and columns are known up to a constant only, so varied ones may differ by one. ``head`` is
    the size of an attention head: the columns after repeat each key-value head's rows.
    """
    for other in candidates:
        short, long = sorted((factors, other), key=len)
        if len(long) != len(short):
            if head is None or len(long) % len(short) or len(short) % head:
                continue
            short = short.view(-1, head).repeat_interleave(len(long) // len(short), dim=0).flatten()
        one, two = short.log(), long.log()
        if float((one + two).norm()) < LEFT_OVER * float(one.norm()) or _correlation(one, two) < TAKES_BACK:
            return True
    return False


def _correlation(one: torch.Tensor, other: torch.Tensor) -> float:
    first, second = one - one.mean(), other - other.mean()
    return float((first * second).sum() / (first.norm() * second.norm()).clamp_min(1e-30))


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
