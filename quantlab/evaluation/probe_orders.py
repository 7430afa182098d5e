"""Are two matrices the same rows or columns in another order? Each finds its best match by correlation.

Sorting would not tell: two rows of independent normal numbers are much alike once sorted.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

MATCH = 0.7
"""Correlation from which two rows are the same one: chance stays under 5 / sqrt(length), so short ones are left out."""

MOST = 1024
"""Rows or columns that are looked for; all are looked among."""

SHARE = 0.8
"""Share of them that must be found."""


MOVED = 0.25
"""Share of them that must lie elsewhere: a single one that resembles another has other reasons."""


def orders(decoded: torch.Tensor, other: torch.Tensor) -> Iterator[str]:
    """Yield what order differs, in words."""
    if (places := matching(decoded.T, other.T)) is not None:
        yield f"permuted columns ({_extent(places)}): act order, or packed codes taken apart in another order"
    if (places := matching(decoded, other)) is not None:
        yield f"permuted rows ({_extent(places)}): output channels or packed codes in another order"
    if decoded.shape[0] == decoded.shape[1] and decoded.shape[0] > 1:
        product = (decoded.T * other).sum() / (decoded.norm() * other.norm()).clamp_min(1e-30)
        if float(product) > MATCH:
            yield "the matrix is transposed"


def matching(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor | None:
    """Return the row of ``one`` that each row of ``other`` is, or None where they match in place or not at all."""
    if 5 / one.shape[1] ** 0.5 > MATCH:
        return None
    looked_for = _unit(other)[:MOST]
    best, places = (looked_for @ _unit(one).T).max(dim=1)
    found = (best > MATCH) | (other[:MOST].norm(dim=1) == 0)
    moved = places != torch.arange(len(places), device=places.device)
    if float(found.float().mean()) < SHARE or float((moved & found).float().mean()) < MOVED:
        return None
    return places


def _unit(matrix: torch.Tensor) -> torch.Tensor:
    sizes: torch.Tensor = matrix.norm(dim=1, keepdim=True)
    return matrix / sizes.clamp_min(1e-30)


def _extent(places: torch.Tensor) -> str:
    """Say within which aligned blocks everything stays."""
    home = torch.arange(len(places), device=places.device)
    moved = f"{int((places != home).sum())} of {len(places)}"
    for size, words in ((2, "neighbours swapped, as nibbles are"), (8, "inside words of 8")):
        if bool((places // size == home // size).all()):
            return f"{moved}, {words}"
    return moved
