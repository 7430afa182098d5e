"""Was a matrix scaled by columns and rows as a whole? AWQ and SmoothQuant do that, and fold the inverse elsewhere.

``got = diag(rows) wanted diag(columns)`` with positive factors is found by least squares in turn. A fold moves most
of the columns or rows; a wrong scale moves a few, and a constant is a mistake, not a fold.
"""

from __future__ import annotations

import torch

ROUNDS = 4
MOST = 0.5
"""Share of columns or rows that a fold moves."""

MOVED = 0.02
"""Relative change from which a factor counts as moved: AWQ's and SmoothQuant's differ by tens of percent."""


def unfolded(wanted: torch.Tensor, got: torch.Tensor, noise: float) -> torch.Tensor | None:
    """Return the original with the fold applied, or None where no fold explains the difference.

    Args:
        wanted: float32 ``[out, in]``, the original.
        got: float32 ``[out, in]``.
        noise: relative error of rounding.
    """
    columns, rows = torch.ones(wanted.shape[1]), torch.ones(wanted.shape[0])
    columns, rows = columns.to(wanted.device), rows.to(wanted.device)
    for _ in range(ROUNDS):
        columns = _factors(wanted * rows[:, None], got, 0)
        rows = _factors(wanted * columns, got, 1)
        if float(columns.min()) <= 0 or float(rows.min()) <= 0:
            return None
        middle = rows.median()
        rows, columns = rows / middle, columns * middle
    if not (_is_fold(columns) or _is_fold(rows)):
        return None
    columns = columns if _is_fold(columns) else torch.full_like(columns, float(columns.median()))
    rows = rows if _is_fold(rows) else torch.ones_like(rows)
    scaled = wanted * columns * rows[:, None]
    error = float((got - scaled).norm() / scaled.norm().clamp_min(1e-30))
    return scaled if error <= max(2 * noise, MOVED) else None


def _factors(wanted: torch.Tensor, got: torch.Tensor, axis: int) -> torch.Tensor:
    square = (wanted * wanted).sum(dim=axis)
    factors = (wanted * got).sum(dim=axis) / square.clamp_min(1e-30)
    return torch.where(square > 0, factors, torch.ones_like(factors))


def _is_fold(factors: torch.Tensor) -> bool:
    """Say whether most factors differ from the commonest one."""
    return float(((factors / factors.median() - 1).abs() > MOVED).float().mean()) > MOST
