"""Why a format that is a plain grid of codes and scales cannot hold a weight: what most formats have in common."""

from __future__ import annotations

from quantlab.formats.interface import Obstacle
from quantlab.tensors.quantized import QuantizedTensor

_RULES = {
    "inverse": ("inverse-scale", "the file's scales divide, and they multiply in"),
    "absmax127": ("absmax-scale", "a row's largest value is divided by 127 after scaling, and there is one factor in"),
}


def common_obstacle(format_id: str, weight: QuantizedTensor, *, global_scale: bool = False) -> Obstacle | None:
    """Return what keeps a weight out of a format without group map, offsets and (mostly) global scale.

    Args:
        format_id: the format, for the message.
        weight: the weight.
        global_scale: whether the format has a place for one factor a tensor.
    """
    if has_act_order(weight):
        return Obstacle(
            "act-order",
            f"the columns' groups follow a map (act order), and {format_id} has no place for one",
            "keep a format with g_idx, or requantize",
        )
    if weight.offsets is not None:
        return Obstacle("offset", f"the weight has float minima, and {format_id} has zero points only", "requantize")
    if weight.scale_rule in _RULES:
        rule, reason = _RULES[weight.scale_rule]
        return Obstacle(rule, f"{reason} {format_id}", "requantize")
    if weight.scales.ndim == 1 and weight.scales.numel() > 1:
        return Obstacle("flat-blocks", f"blocks run across rows, and {format_id} has scales by row", "requantize")
    if not global_scale and (weight.global_scale is not None or weight.global_scale_stored is not None):
        return Obstacle("global-scale", f"{format_id} has no place for a global scale", "requantize")
    return None


def has_act_order(weight: QuantizedTensor) -> bool:
    """Say whether a group map is there and differs from ``i // group_size``."""
    if weight.group_map is None:
        return False
    import torch

    size = weight.format.group_size or weight.shape[-1]
    if size <= 0:
        size = weight.shape[-1]
    plain = torch.arange(weight.shape[-1], device=weight.group_map.device) // size
    return not torch.equal(weight.group_map.to(plain.dtype), plain)
