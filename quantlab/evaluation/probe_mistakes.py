"""Known mistakes, made on purpose: a weight's codes and scales put together the wrong way.

Zero points one off (GPTQ version 1 keeps them minus one), the group map of act order left out, scales left out,
inverted or transposed, codes of one word or byte taken apart in another order (AWQ gemm: 0, 2, 4, 6, 1, 3, 5, 7).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from quantlab.tensors.dequantize import dense_codes, dequantize, effective_scales
from quantlab.tensors.quantized import QuantizedTensor

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Source: casper-hansen/AutoAWQ: awq/utils/packing_utils.py (``AWQ_ORDER``)."""

AWQ_BACK = (0, 4, 1, 5, 2, 6, 3, 7)


def mistakes(weight: QuantizedTensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what each mistake is called and the float32 matrix ``[out, in]`` that it gives."""
    weight = weight.with_codes(dense_codes(weight))
    yield from _zero_points(weight)
    if weight.group_map is not None:
        yield "act order: the group map (g_idx) was ignored", dequantize(replace(weight, group_map=None))
    if weight.scales.ndim == 2:
        yield from _scales(weight)
    if weight.format.number.bits == 4:
        yield from _packing(weight)


def _zero_points(weight: QuantizedTensor) -> Iterator[tuple[str, torch.Tensor]]:
    if weight.format.number.kind != "int" or weight.scales.ndim != 2:
        return
    zeros = weight.zeros if weight.zeros is not None else torch.zeros_like(weight.scales, dtype=torch.int16)
    scheme = replace(weight.format, symmetric=False)
    for step in (1, -1):
        words = "zero points are off by one: GPTQ version 1 read as version 2, or the reverse"
        yield words, dequantize(replace(weight, zeros=zeros + step, format=scheme))
    if weight.zeros is not None and bool(weight.zeros.any()):
        yield "the zero points were left out", dequantize(replace(weight, zeros=None))


def _scales(weight: QuantizedTensor) -> Iterator[tuple[str, torch.Tensor]]:
    scales = effective_scales(weight)
    plain = replace(weight, scale_rule="linear", global_scale=None, global_scale_stored=None)
    yield "the scales were left out: bare codes", dequantize(replace(plain, scales=torch.ones_like(scales)))
    usable = torch.where(scales == 0, torch.ones_like(scales), scales)
    yield (
        "the scales are inverted: divided by instead of multiplied with",
        dequantize(replace(plain, scales=1 / usable)),
    )
    if min(scales.shape) > 1:
        for turned in (scales.T.reshape(scales.shape), scales.reshape(scales.shape[::-1]).T):
            yield "the scales are transposed", dequantize(replace(plain, scales=turned.contiguous()))


def _packing(weight: QuantizedTensor) -> Iterator[tuple[str, torch.Tensor]]:
    rows, columns = weight.shape
    codes = weight.codes
    assert isinstance(codes, torch.Tensor)
    if columns % 2 == 0:
        swapped = codes.view(rows, columns // 2, 2).flip(-1).reshape(rows, columns)
        yield "the two nibbles of each byte are swapped", dequantize(weight.with_codes(swapped))
    for order in (AWQ_ORDER, AWQ_BACK):
        places = list(order)
        words = "AWQ's order of codes in a word was ignored, or applied where it does not hold"
        if rows % 8 == 0:
            by_row = codes.view(rows // 8, 8, columns)[:, places].reshape(rows, columns)
            yield words, dequantize(weight.with_codes(by_row))
            if weight.zeros is not None:
                zeros = weight.zeros.view(rows // 8, 8, -1)[:, places].reshape(weight.zeros.shape)
                yield words, dequantize(replace(weight, codes=by_row, zeros=zeros))
        if columns % 8 == 0:
            by_column = codes.view(rows, columns // 8, 8)[:, :, places].reshape(rows, columns)
            yield words, dequantize(weight.with_codes(by_column))
