"""What the headers settle that the config leaves open: who shares a scale, and bits that two configs dispute."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from quantlab.checkpoint.facts import Scheme, TensorInfo, WeightScheme
from quantlab.checkpoint.layers import LayerTensors, Layout
from quantlab.checkpoint.safetensors_header import DTYPE_BITS


def refine(scheme: Scheme, layout: Layout, form: str) -> Scheme:
    """Return the scheme with gaps filled from the tensors of its layers; a mixed scheme is left as it is."""
    weights = scheme.weights
    if weights is None or scheme.mixed or not layout.layers:
        return scheme
    if form in {"fp8", "fp8-fnuz", "fbgemm_fp8"} and weights.granularity in {"tensor", None}:
        weights = _fp8(weights, layout)
    if form == "mlx" and weights.bits is None and isinstance(weights.group_size, int):
        weights = replace(weights, bits=_affine_bits(layout, weights.group_size))
    if weights == scheme.weights:
        return scheme
    groups = tuple(
        replace(group, weights=weights) if group.weights == scheme.weights else group for group in scheme.groups
    )
    return replace(scheme, weights=weights, groups=groups)


def _fp8(weights: WeightScheme, layout: Layout) -> WeightScheme:
    """Most layers' scale shape against the weight's: ``[]``, ``[out]`` or ``[out, 1]``, or a grid of blocks."""
    seen: Counter[WeightScheme] = Counter()
    for layer in layout.layers.values():
        scale = next(iter(layer.scales.values()), None)
        if layer.codes is not None and scale is not None and len(layer.codes.shape) == 2:
            seen[_by_shape(weights, layer.codes, scale)] += 1
    return seen.most_common(1)[0][0] if seen else weights


def _by_shape(weights: WeightScheme, codes: TensorInfo, scale: TensorInfo) -> WeightScheme:
    rows, columns = codes.shape
    count = math.prod(scale.shape)
    if count <= 1 and (rows, columns) != (1, 1):
        return replace(weights, granularity="tensor", group_size=None)
    if count == rows:
        return replace(weights, granularity="channel", group_size=None)
    if len(scale.shape) == 2 and min(scale.shape) > 0:
        block = (_side(rows, scale.shape[0]), _side(columns, scale.shape[1]))
        return replace(weights, granularity="block", group_size=block)
    return weights


def _side(length: int, parts: int) -> int:
    """The block's side: the power of two that cuts ``length`` into ``parts``, else the plain quotient."""
    for side in (128, 64, 32, 256):
        if -(-length // side) == parts:
            return side
    return -(-length // parts)


def _affine_bits(layout: Layout, group: int) -> int | None:
    """MLX: words are ``[out, in * bits / 32]``, scales ``[out, in / group]``."""
    seen: Counter[int] = Counter()
    for layer in layout.layers.values():
        bits = _bits(layer, group)
        if bits is not None:
            seen[bits] += 1
    return seen.most_common(1)[0][0] if seen else None


def _bits(layer: LayerTensors, group: int) -> int | None:
    scale = next(iter(layer.scales.values()), None)
    if layer.codes is None or scale is None or not scale.shape or not scale.shape[-1] or not layer.codes.shape:
        return None
    width = DTYPE_BITS.get(layer.codes.dtype, 32)
    bits = layer.codes.shape[-1] * width / (scale.shape[-1] * group)
    return int(bits) if bits.is_integer() else None
