"""What formats of packed integers with float16 scales and no more (GPTQ, AWQ) can hold."""

from __future__ import annotations

from quantlab.formats.interface import Obstacle
from quantlab.tensors.quantized import QuantizedTensor


def integer_obstacle(weight: QuantizedTensor, title: str, bits: tuple[int, ...]) -> Obstacle | None:
    """Say why such a format cannot hold a weight bit for bit, or None if it can."""
    return _number_obstacle(weight, title, bits) or _shape_obstacle(weight, title) or _scale_obstacle(weight, title)


def _number_obstacle(weight: QuantizedTensor, title: str, bits: tuple[int, ...]) -> Obstacle | None:
    number = weight.format.number
    if number.kind == "int" and number.bits in bits:
        return None
    offer = ", ".join(str(one) for one in bits)
    return Obstacle("number-type", f"{title} holds integers of {offer} bits, the weight is {number.name}")


def _shape_obstacle(weight: QuantizedTensor, title: str) -> Obstacle | None:
    if len(weight.shape) != 2:
        return Obstacle("rank", f"{title} holds matrices, the weight has shape {list(weight.shape)}")
    bits, (out, columns) = weight.format.number.bits, weight.shape
    unit = 32 if 32 % bits else 32 // bits
    if out % unit or columns % unit:
        return Obstacle("padding", f"{title} needs rows and columns in multiples of {unit}, not {out} x {columns}")
    return None


def _scale_obstacle(weight: QuantizedTensor, title: str) -> Obstacle | None:
    scheme, scales = weight.format, weight.scales
    if scheme.granularity == "block" or weight.offsets is not None or scales.ndim != 2:
        return Obstacle("granularity", f"{title} has one scale a group of a row, the weight has {scheme.granularity}s")
    if weight.scale_rule != "linear" or weight.global_scale is not None:
        return Obstacle("scale-rule", f"{title} scales are plain factors, the weight's are not")
    if not survives_half(weight):
        return Obstacle("scale-dtype", f"{title} scales are float16, and a scale in {scales.dtype} does not fit")
    return None


def survives_half(weight: QuantizedTensor) -> bool:
    """Say whether every scale is the same number in float16."""
    import torch

    scales = weight.scales
    return scales.dtype == torch.float16 or bool((scales.to(torch.float16).to(scales.dtype) == scales).all())
