"""Why a layer is not what its file says, or a file not what the original was: mistakes are made on purpose.

``decoded`` is the file's own matrix. The matrix that it should be equal to (``other``) is the one a loaded layer
multiplies by, or the original's. Each known mistake is applied to the file's codes and scales; the one whose result
is the other matrix is the cause. Against the original a healthy file differs by its rounding (``noise``), and a
hypothesis has to come as close as that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch

from quantlab.evaluation.probe_mistakes import mistakes
from quantlab.evaluation.probe_orders import orders
from quantlab.evaluation.probe_scales import other_groups, wrong_scales
from quantlab.tensors.quantized import QuantizedTensor

CLOSE = 0.05
"""Relative error under which a hypothesis explains a matrix: some roundings of bfloat16 lie far below."""

ALIKE = 0.8
"""Correlation above which two matrices are the same weights: 4-bit rounding leaves 0.98, chance gives 0.01."""

HALF = 0.5
"""A mistake has to explain at least half of the difference: at 8 bits one step is small beside ``CLOSE``."""

DRIFT = "related but not equal"
"""What is said where no mistake explains the difference."""

UNRELATED = 0.1
"""Correlation under which two matrices have nothing in common (chance gives 1/sqrt of the element count)."""

Others = Callable[[], Iterable[tuple[str, torch.Tensor]]]


@dataclass(frozen=True)
class Mismatch:
    """Two matrices that should be equal.

    Attributes:
        decoded: float32 ``[out, in]``, the file's.
        other: float32 ``[out, in]``, the loaded layer's or the original's.
        weight: the file's codes and scales; None for a dense tensor.
        others: gives other layers' counterparts of the same shape by name.
        noise: relative error that a healthy pair has.
        original: ``other`` is the original's.
    """

    decoded: torch.Tensor
    other: torch.Tensor
    weight: QuantizedTensor | None = None
    others: Others | None = None
    noise: float = 0.0
    original: bool = False

    @property
    def close(self) -> float:
        """Relative error under which a hypothesis explains the difference."""
        return max(CLOSE, 1.5 * self.noise)


def cause(found: Mismatch) -> str:
    """Return the likely cause in words."""
    return next(_causes(found), "unknown")


def _causes(found: Mismatch) -> Iterator[str]:
    values = list(_values(found))
    if values:
        yield from values
        return
    decoded, other = found.decoded, found.other
    if not found.original and _worst_row(decoded, other) < CLOSE:
        yield "its matrix is right one input at a time: the kernel fails on batches or on the size of numbers"
    yield from _factor(found)
    if found.weight is not None and len(found.weight.shape) == 2:
        limit = min(found.close, HALF * relative(other, decoded))
        for words, matrix in mistakes(found.weight):
            if matrix.shape == other.shape and relative(other, matrix.to(other.device)) < limit:
                yield words
        grouped = other_groups(found.weight, other)
        if grouped is not None and relative(other, grouped) < limit:
            yield "the right codes under wrong scales: columns belong to other groups, the group map (g_idx) is lost"
    yield from orders(decoded, other)
    yield from _exchanged(found)
    yield from wrong_scales(decoded, other, found.weight, limit=max(CLOSE, 3 * found.noise), original=found.original)
    if abs(correlation(decoded, other)) < UNRELATED:
        yield "unrelated numbers: random, or unpacked in another order"
    yield f"{DRIFT} (correlation {correlation(decoded, other):.2f})"


def _values(found: Mismatch) -> Iterator[str]:
    """Say what needs no hypothesis."""
    if not bool(torch.isfinite(found.decoded).all()):
        yield "not finite: the file holds a scale or weight that is NaN or infinite"
    elif not bool(torch.isfinite(found.other).all()):
        yield "not finite: a scale that is NaN or infinite, or an overflow"
    elif not bool(found.other.any()):
        yield "all zero: weights that were never loaded, or a kernel that returns zeros"
    elif not bool(found.decoded.any()):
        yield "all zero in the file: scales that are zero"


def _exchanged(found: Mismatch) -> Iterator[str]:
    if found.others is None:
        return
    wanted = found.decoded if found.original else found.other
    for name, matrix in found.others():
        if matrix.shape == wanted.shape and alike(matrix.to(wanted.device), wanted):
            yield f"it holds the weights of {name}: layers were exchanged"


def relative(expected: torch.Tensor, got: torch.Tensor) -> float:
    """Return the relative error in the Frobenius norm."""
    return float((got - expected).norm() / expected.norm().clamp_min(1e-30))


def _worst_row(expected: torch.Tensor, got: torch.Tensor) -> float:
    sizes = expected.norm(dim=1)
    return float(((got - expected).norm(dim=1) / torch.maximum(sizes, 1e-3 * sizes.mean()).clamp_min(1e-30)).max())


def correlation(one: torch.Tensor, two: torch.Tensor) -> float:
    """Return the cosine of the angle between two matrices."""
    return float((one * two).sum() / (one.norm() * two.norm()).clamp_min(1e-30))


def alike(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Say whether two matrices are the same weights up to rounding."""
    return correlation(one, two) > ALIKE


def _factor(found: Mismatch) -> Iterator[str]:
    """Look for one factor between the whole matrices, said of what is wrong: the layer, or the file."""
    wrong, right = (found.decoded, found.other) if found.original else (found.other, found.decoded)
    square = (right * right).sum()
    if square == 0:
        return
    factor = float((wrong * right).sum() / square)
    if abs(factor) < 1e-12 or abs(factor - 1) < CLOSE or relative(right * factor, wrong) > found.close:
        return
    if any(abs(factor / known - 1) < CLOSE for known in (2.0, 0.5)):
        yield f"everything times {factor:.3g}: FNUZ bytes read as OCP or the reverse, or a scale doubled or halved"
    else:
        yield f"everything times {factor:.4g}: a constant factor, such as a scale left out or inverted"
