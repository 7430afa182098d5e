"""Which elements of a matrix share a scale, as a view that can be cut along its first axis.

::

    tensor   (out, in)                             everything
    channel  (out, in)                             along the last axis
    group    (out, in / size, size)                along the last axis
    block    (out / high, high, in / wide, wide)   along axes 1 and 3; edges are padded with zeros

A view costs no copy, and working on some rows of it at a time keeps temporaries small.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from quantlab.tensors.quantized import WeightFormat
from quantlab.tensors.scales import absmax

CHUNK = 1 << 18
"""Elements that are worked on at once."""


@dataclass(frozen=True)
class Groups:
    """A matrix seen as groups.

    Attributes:
        values: the view.
        axes: its axes that share a scale.
        whole: the first axis shares it too.
        shape: shape of the matrix.
        scheme: what the groups come from.
    """

    values: torch.Tensor
    axes: tuple[int, ...]
    whole: bool
    shape: tuple[int, int]
    scheme: WeightFormat

    def parts(self) -> Iterator[slice]:
        """Yield slices of the first axis that hold about a quarter of a million elements."""
        rows = self.values.shape[0]
        step = max(1, CHUNK // max(1, self.values[0].numel()))
        return (slice(start, min(rows, start + step)) for start in range(0, rows, step))

    def largest(self) -> torch.Tensor:
        """Return the largest magnitude of each group; shared axes are kept with length 1."""
        tops = torch.cat([absmax(self.values[part], self.axes) for part in self.parts()])
        return tops.amax(0, keepdim=True) if self.whole else tops

    def extremes(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the smallest and the largest value of each group, shaped as ``largest``."""
        low = torch.cat([self.values[part].amin(self.axes, keepdim=True) for part in self.parts()])
        high = torch.cat([self.values[part].amax(self.axes, keepdim=True) for part in self.parts()])
        return (low.amin(0, keepdim=True), high.amax(0, keepdim=True)) if self.whole else (low, high)

    def tiles(self) -> torch.Tensor:
        """Return ``(rows, groups, size)`` with each group's elements side by side (a copy for blocks)."""
        values = self.values
        if self.whole:
            return values.reshape(1, 1, -1)
        if self.scheme.granularity == "block":
            return values.transpose(1, 2).flatten(2)
        return values if values.ndim == 3 else values.unsqueeze(1)

    def like_largest(self, per_tile: torch.Tensor) -> torch.Tensor:
        """Shape ``(rows, groups)`` numbers as ``largest`` shapes its own."""
        kept = [1 if axis in self.axes else size for axis, size in enumerate(self.values.shape)]
        return per_tile.reshape([1] * len(kept) if self.whole else kept)

    def of(self, factors: torch.Tensor, part: slice) -> torch.Tensor:
        """Return the factors of some rows, ready for broadcasting."""
        return factors if self.whole else factors[part]

    def matrix(self, codes: torch.Tensor) -> torch.Tensor:
        """Bring codes of the view's shape back to the matrix, padding cut off."""
        rows, columns = self.shape
        if self.scheme.granularity != "block":
            return codes.view(self.shape)
        high, wide = codes.shape[0] * codes.shape[1], codes.shape[2] * codes.shape[3]
        whole = codes.view(high, wide)
        if (high, wide) == self.shape:
            return whole
        return whole.view(torch.uint8)[:rows, :columns].contiguous().view(codes.dtype)

    def scale_grid(self, scales: torch.Tensor) -> torch.Tensor:
        """Bring scales shaped as ``largest`` to the matrix of scales of a ``QuantizedTensor``."""
        return scales.reshape(scales.shape[0], -1)


def grouped(weight: torch.Tensor, scheme: WeightFormat) -> Groups:
    """See a matrix ``(out, in)`` as the groups of a scheme; columns are a multiple of the group size."""
    rows, columns = weight.shape
    shape = (rows, columns)
    match scheme.granularity:
        case "tensor":
            return Groups(weight, (1,), True, shape, scheme)
        case "channel":
            return Groups(weight, (1,), False, shape, scheme)
        case "group":
            return Groups(weight.reshape(rows, -1, scheme.group_size or columns), (2,), False, shape, scheme)
        case "block":
            high, wide = scheme.block or (128, 128)
            if rows % high or columns % wide:
                weight = torch.nn.functional.pad(weight, (0, -columns % wide, 0, -rows % high))
            blocks = weight.reshape(weight.shape[0] // high, high, weight.shape[1] // wide, wide)
            return Groups(blocks, (1, 3), False, shape, scheme)
