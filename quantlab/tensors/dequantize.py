"""Multiply codes out: from a QuantizedTensor to a dense weight.

All arithmetic is float32, rounded once to the dtype asked for. That is bit for bit what the libraries give: a
product of an 8-bit code and a 16-bit scale is exact in float32, so computing in 16 bits (compressed-tensors, GPTQModel,
AutoAWQ) and computing in float32 and rounding after is the same. A global scale comes first, by
division where the file stores its reciprocal (compressed-tensors: quantization/lifecycle/forward_helpers.py,
``_dequantize``), by multiplication where it stores the factor (NVIDIA/Model-Optimizer:
modelopt/torch/quantization/qtensor/nvfp4_tensor.py).
"""

from __future__ import annotations

from typing import Literal

import torch

from quantlab.tensors.floats import BNB_FP4_VALUES, E2M1_VALUES, NF4_VALUES, from_e8m0, look_up
from quantlab.tensors.packing import unpack
from quantlab.tensors.quantized import PackedCodes, QuantizedTensor

Operation = Literal["subtract", "multiply", "add"]

_CODEBOOKS = {"float4_e2m1": E2M1_VALUES, "nf4": NF4_VALUES, "fp4": BNB_FP4_VALUES}
ABSMAX_STEP = 7.874015718698502e-3
"""1/127 as bitsandbytes writes it (bitsandbytes/_ops.py, ``int8_vectorwise_dequant``): a second factor, rounded after
the first."""
_CHUNK = 1 << 18
"""Elements that are multiplied out at once: bounds the float32 temporaries."""


def dequantize(weight: QuantizedTensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return the dense weight of shape ``weight.shape`` in ``dtype``.

    Raises:
        CheckpointError: packed words do not fit the shape.
    """
    codes = dense_codes(weight)
    if weight.scales.ndim == 1:
        return _flat(weight, codes, dtype)
    result = torch.empty(weight.shape, dtype=dtype, device=codes.device)
    steps: list[tuple[Operation, torch.Tensor]] = [("multiply", effective_scales(weight))]
    if weight.scale_rule == "absmax127":
        steps.append(("multiply", torch.tensor([[ABSMAX_STEP]], dtype=torch.float32, device=codes.device)))
    if weight.zeros is not None:
        steps.insert(0, ("subtract", weight.zeros.float()))
    if weight.offsets is not None:
        steps.append(("add", weight.offsets.float()))
    if len(weight.shape) == 2:
        _matrix(weight, codes, steps, result)
        return result
    for expert in range(weight.shape[0]):
        _matrix(weight, codes[expert], [(what, factors[expert]) for what, factors in steps], result[expert])
    return result


def dense_weight(weight: QuantizedTensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the weight as a dense checkpoint keeps it: ``dequantize``, transposed where that is ``(..., in, out)``."""
    dense = dequantize(weight, dtype)
    return dense.mT.contiguous() if weight.dense_transposed else dense


def dense_codes(weight: QuantizedTensor) -> torch.Tensor:
    """Return the codes one by one, unpacked where they are packed."""
    return unpack(weight.codes) if isinstance(weight.codes, PackedCodes) else weight.codes


def effective_scales(weight: QuantizedTensor) -> torch.Tensor:
    """Return the float32 factor of each group, block, row or tensor, the global scale included."""
    match weight.scale_rule:
        case "e8m0":
            scales = from_e8m0(weight.scales)
        case "inverse":
            scales = 1.0 / weight.scales.float()
        case "linear" | "absmax127":
            scales = weight.scales.float()
    if weight.global_scale_inverse and weight.global_scale_stored is not None:
        return scales / _beside(weight.global_scale_stored, scales)
    if weight.global_scale is not None:
        return scales * _beside(weight.global_scale, scales)
    return scales


def _beside(factor: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Shape one factor, or one an expert, for broadcasting over the scales."""
    flat = factor.float().flatten()
    return flat.view(-1, *[1] * (scales.ndim - 1)) if flat.numel() > 1 else flat


def code_values(weight: QuantizedTensor, codes: torch.Tensor) -> torch.Tensor:
    """Return the float32 value of each code; a table of 256 values is several times faster than torch's float8 cast."""
    if weight.format.number.name in _CODEBOOKS:
        return look_up(codes, torch.tensor(_CODEBOOKS[weight.format.number.name], dtype=torch.float32))
    if codes.dtype.is_floating_point and codes.element_size() == 1:
        every = torch.arange(256, dtype=torch.int32, device=codes.device).to(torch.uint8)
        return look_up(codes.view(torch.uint8), every.view(codes.dtype).to(torch.float32))
    return codes.to(torch.float32)


def _matrix(
    weight: QuantizedTensor,
    codes: torch.Tensor,
    steps: list[tuple[Operation, torch.Tensor]],
    result: torch.Tensor,
) -> None:
    """Multiply one matrix out into ``result``, some rows at a time."""
    rows, columns = codes.shape
    step = max(1, _CHUNK // max(1, columns))
    for start in range(0, rows, step):
        part = slice(start, min(rows, start + step))
        values = code_values(weight, codes[part])
        for operation, factors in steps:
            _each_group(weight, values, _rows(weight, factors, part), operation)
        result[part].copy_(values)


def _each_group(weight: QuantizedTensor, values: torch.Tensor, factors: torch.Tensor, operation: Operation) -> None:
    """Apply one operation in place, each group's factor to the group's columns."""
    columns, groups = values.shape[1], factors.shape[1]
    width = _width(weight, columns, groups)
    if weight.group_map is not None and groups > 1:
        target, other = values, factors.index_select(1, weight.group_map.to(factors.device).long())
    elif groups * width == columns:
        target, other = values.view(values.shape[0], groups, width), factors.unsqueeze(-1)
    else:
        target, other = values, factors.repeat_interleave(width, dim=1)[:, :columns]
    match operation:
        case "subtract":
            target.sub_(other)
        case "multiply":
            target.mul_(other)
        case "add":
            target.add_(other)


def _rows(weight: QuantizedTensor, factors: torch.Tensor, part: slice) -> torch.Tensor:
    """Return the factors of some rows, ``(rows, groups)``; blocks repeat down their rows."""
    if factors.shape[0] == 1:
        return factors
    if weight.format.block is not None:
        index = torch.arange(part.start, part.stop, device=factors.device) // weight.format.block[0]
        return factors.index_select(0, index)
    return factors[part]


def _width(weight: QuantizedTensor, columns: int, groups: int) -> int:
    """Return how many columns share a factor."""
    if groups == 1:
        return columns
    if weight.format.block is not None:
        return weight.format.block[1]
    size = weight.format.group_size
    return size if size is not None and size > 0 else -(-columns // groups)


def _flat(weight: QuantizedTensor, codes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Multiply out blocks of the flattened weight, which may run across rows (bitsandbytes)."""
    size = weight.format.group_size or codes.numel()
    values = code_values(weight, codes).flatten()
    scales = effective_scales(weight).repeat_interleave(size)[: values.numel()]
    return values.mul_(scales).view(weight.shape).to(dtype)
