"""GPTQ's zero points, and the one that version 1 subtracts.

Zero points are unsigned fields, packed like codes but along ``out``: ``qzeros`` is ``[groups, out * bits / 32]``.
Version 2 stores them as they are. Version 1 stores them minus one, and who subtracted how decides what a zero point
of 0 became::

    GPTQModel, 2, 4, 8 bit   word - 0x11111111     a 0 borrows from its neighbour; adding to the word undoes it
    GPTQModel, 3 bit         field - 1 mod 8       a 0 becomes 7; adding to the field undoes it
    AutoGPTQ and others      field - 1             a 0 becomes all ones, or spoils the fields above it

Source: ModelCloud/GPTQModel: gptqmodel/utils/model.py, ``convert_gptq_v1_to_v2_format_module``;
AutoGPTQ/AutoGPTQ: auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py, ``pack``.
"""

from __future__ import annotations

import torch

from quantlab.tensors.packing import pack, unpack
from quantlab.tensors.quantized import PackedCodes, PackLayout


def zeros_layout(bits: int) -> PackLayout:
    """Return the layout of ``qzeros`` for logical zero points ``[out, groups]``, as raw unsigned fields."""
    return PackLayout(bits, 32, "out", transposed=True, dense=True)


def read_zeros(words: torch.Tensor, bits: int, shape: tuple[int, int], *, version: int, by_word: bool) -> torch.Tensor:
    """Return signed zero points ``int16`` ``[out, groups]`` (unsigned field minus ``2^(bits-1)``).

    Args:
        words: ``qzeros`` as stored, ``int32``.
        bits: bits of a field.
        shape: ``(out, groups)``.
        version: 1 or 2.
        by_word: version 1 was written by subtracting from whole words (2, 4 and 8 bit).
    """
    if version == 1 and by_word and 32 % bits == 0:
        words = _add_to_words(words, bits, 1)
    fields = unpack(PackedCodes(words, zeros_layout(bits), shape)).to(torch.int16)
    if version == 1 and not (by_word and 32 % bits == 0):
        fields = (fields + 1) & (2**bits - 1)
    half: int = 1 << (bits - 1)
    return fields - half


def write_zeros(zeros: torch.Tensor, bits: int, *, version: int) -> torch.Tensor:
    """Return ``qzeros`` words of signed zero points ``[out, groups]``.

    The caller has made sure that no unsigned zero point is 0 where ``version`` is 1.
    """
    fields = zeros.to(torch.int16) + 2 ** (bits - 1) - (1 if version == 1 else 0)
    return pack((fields & (2**bits - 1)).to(torch.uint8), zeros_layout(bits)).words


def _add_to_words(words: torch.Tensor, bits: int, amount: int) -> torch.Tensor:
    """Add ``amount`` to each field by one addition to the 32-bit word, carries and all."""
    ones = sum(1 << shift for shift in range(0, 32, bits))
    total = (words.to(torch.int64) + amount * ones) & 0xFFFFFFFF
    return torch.where(total >= 2**31, total - 2**32, total).to(torch.int32)
