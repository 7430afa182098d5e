"""A range that gives up the largest values for finer steps: llm-compressor's ``memoryless_mse`` observer.

Each group tries its own range shrunk by 0 to 19 per cent in steps of 1 and keeps the one with the smallest sum of
``|error|^2.4``; the search ends for all when five steps improved nothing (vllm-project/llm-compressor:
src/llmcompressor/observers/mse_quant.py, ``_grid_search_mse``, the eager path). Errors are summed in the
weights' dtype, as there, so that ties and rounding fall the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quantlab.tensors import scales as scale_rules
from quantlab.tensors.floats import E2M1_VALUES, e2m1_codes, look_up
from quantlab.tensors.grouping import Groups
from quantlab.tensors.number_types import FP4_E2M1
from quantlab.tensors.quantized import WeightFormat


@dataclass(frozen=True, slots=True)
class Clip:
    """How far and how finely to search.

    Attributes:
        shrink: largest part of the range to give up.
        steps: steps in which a whole range would be given up.
        patience: steps without any improvement before the search ends.
        power: exponent of the error.
    """

    shrink: float = 0.20
    steps: float = 100.0
    patience: int = 5
    power: float = 2.4


def clipped_range(groups: Groups, clip: Clip) -> tuple[torch.Tensor, torch.Tensor]:
    """Return lowest and highest value to represent for each group.

    Args:
        groups: a matrix and what it will be rounded to.
        clip: the search.

    Returns:
        Two tensors shaped as ``groups.largest()``.
    """
    tiles = groups.tiles()
    if groups.scheme.scale_type == "float32":
        tiles = tiles.float()
    low, high = _search(tiles, groups.scheme, clip)
    return groups.like_largest(low), groups.like_largest(high)


def _search(groups: torch.Tensor, scheme: WeightFormat, clip: Clip) -> tuple[torch.Tensor, torch.Tensor]:
    """Search ``(rows, groups, size)`` weights; return two tensors ``(rows, groups)``."""
    low, high = groups.amin(-1), groups.amax(-1)
    best = torch.full_like(low, torch.finfo(low.dtype).max)
    best_low, best_high = low.clone(), high.clone()
    idle = 0
    for step in range(int(clip.shrink * clip.steps)):
        part = 1 - step / clip.steps
        error = (_rounded(groups, low * part, high * part, scheme) - groups).abs().pow(clip.power).sum(-1)
        better = error < best
        if not bool(better.any()):
            idle += 1
            if idle >= clip.patience:
                break
            continue
        idle = 0
        best = torch.where(better, error, best)
        best_low = torch.where(better, low * part, best_low)
        best_high = torch.where(better, high * part, best_high)
    return best_low, best_high


def _rounded(groups: torch.Tensor, low: torch.Tensor, high: torch.Tensor, scheme: WeightFormat) -> torch.Tensor:
    """Round to a scheme and back, in the dtype of the weights."""
    number, zeros = scheme.number, None
    top = torch.maximum(low.clamp(max=0).abs(), high.clamp(min=0).abs())
    if not scheme.symmetric:
        scales, zeros = scale_rules.asymmetric_scales(low, high, number)
    elif scheme.scale_type == "e8m0":
        scales = scale_rules.mx_scales(scale_rules.mx_exponents(top, number), groups.dtype)
    else:
        scales = scale_rules.symmetric_scales(top, number)
    scales = scales.unsqueeze(-1)
    scaled = groups / scales
    shift = 0 if zeros is None else zeros.unsqueeze(-1).to(groups.dtype)
    scaled = (scaled + shift).clamp_(number.minimum, number.maximum)
    if number.name == FP4_E2M1.name:
        values = look_up(e2m1_codes(scaled), torch.tensor(E2M1_VALUES, dtype=groups.dtype))
    elif number.kind == "float":
        values = scaled.to(torch.float8_e4m3fn).to(groups.dtype)
    else:
        values = scaled.round_()
    return (values - shift) * scales
