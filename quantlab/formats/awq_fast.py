"""AWQ's gemv_fast layout: four rows woven into 16-bit words for one kernel.

::

    qweight [out / 4, in] int16. A row holds 4 rows of the weight in chunks of 64 inputs: 4 x 64 codes, row after
    row, cut into 64 words of 4 codes each (word = code | code << 4 | code << 8 | code << 12).
    Before that, each 32 inputs of a row are reordered twice:
        by pairs      [4, 4, 2] -> swap the first two axes:  0 1 8 9 16 17 24 25 | 2 3 10 11 ...
        within eight  [4, 2]    -> swap:                     0 2 4 6 1 3 5 7

    qzeros is not a zero point but -(zero * scale), rounded to float16, to be added after scaling:
    W[o, i] = u[o, i] * scale[o, g] + qzeros[o, g]          with u unsigned, 0 to 15

So a decoded weight has offsets, not zero points: what was rounded cannot be taken apart again.
Source: casper-hansen/AutoAWQ: awq/modules/linear/gemv_fast.py, ``pack_intweight``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from quantlab.formats.headers import dense_dtype
from quantlab.formats.interface import Layer
from quantlab.tensors.quantized import QuantizedTensor


def decode_fast(layer: Layer, tensors: Mapping[str, torch.Tensor]) -> QuantizedTensor:
    """Take a gemv_fast layer apart.

    Returns:
        Signed codes with zeros of -8 (so ``q - zero`` is the stored field) and the file's offsets.
    """
    groups = layer.options["groups"]
    codes = unweave(tensors["codes"]) - 8
    scales = tensors["scales"][:groups].mT.contiguous()
    return QuantizedTensor(
        replace(layer.format, symmetric=False),
        layer.shape,
        codes,
        scales,
        zeros=torch.full(scales.shape, -8, dtype=torch.int16, device=scales.device),
        offsets=tensors["zeros"][:groups].mT.contiguous(),
        dtype=dense_dtype(layer, scales),
    )


def unweave(words: torch.Tensor) -> torch.Tensor:
    """Return ``int8`` fields (0 to 15) ``[out, in]`` of int16 words ``[out / 4, in]``."""
    fours, columns = words.shape
    fields = torch.stack([(words >> shift) & 0xF for shift in (0, 4, 8, 12)], dim=-1).to(torch.int8)
    rows = fields.reshape(fours, columns // 64, 4, 64).transpose(1, 2).reshape(fours * 4, columns)
    eights = rows.reshape(fours * 4, columns // 32, 4, 2, 4).transpose(3, 4)
    pairs = eights.reshape(fours * 4, columns // 32, 4, 4, 2).transpose(2, 3)
    return pairs.reshape(fours * 4, columns)
