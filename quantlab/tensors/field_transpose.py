"""From words packed along one axis to words packed along the other, without taking a code out of its word.

AWQ packs along ``out``, compressed-tensors and GPTQ along ``in``. Eight words of eight 4-bit fields each are an 8 x 8
matrix of fields; the other packing is its transpose. That takes three rounds of swaps between pairs of words
(H. S. Warren, Hacker's Delight, section 7-3), each on all blocks of the weight at once::

    word k   field:  0    1    2    3   ..          word 0   (0,0) (1,0) (2,0) ..
       0           (0,0)(0,1)(0,2)(0,3) ..    ->         1   (0,1) (1,1) (2,1) ..
       1           (1,0)(1,1)(1,2)(1,3) ..               2   (0,2) (1,2) (2,2) ..
"""

from __future__ import annotations

import torch

from quantlab.tensors.quantized import PackedCodes, PackLayout


def can_turn(packed: PackedCodes, layout: PackLayout) -> bool:
    """Say whether the words of one layout become those of another by transposing blocks of fields."""
    source = packed.layout
    if source.axis == layout.axis or (source.bits, source.word_bits, layout.word_bits) != (layout.bits, 32, 32):
        return False
    if source.bits not in (2, 4, 8):
        return False
    count = 32 // source.bits
    return packed.shape[-1] % count == 0 and packed.shape[-2] % count == 0


def turn(packed: PackedCodes, layout: PackLayout) -> torch.Tensor:
    """Return the words of ``layout``, bias and sign still those of the source.

    Args:
        packed: words for which ``can_turn`` holds.
        layout: the other axis, any order and direction of storage.
    """
    source, count = packed.layout, 32 // packed.layout.bits
    grid = packed.words if source.transposed else packed.words.mT  # (in, out / count) or (in / count, out)
    if source.axis == "out":
        blocks = grid.reshape(*grid.shape[:-2], -1, count, grid.shape[-1]).movedim(-2, 0)
    else:
        blocks = grid.reshape(*grid.shape[:-1], -1, count).movedim(-1, 0)
    words = list(blocks.clone(memory_format=torch.contiguous_format))
    _transpose(words, source.bits)
    if source.order is not None:  # field p held code order[p], so word p now has that code's line
        words = [words[source.order.index(code)] for code in range(count)]
    if layout.order is not None:
        words = _reordered_fields(words, layout)
    turned = torch.stack(words, dim=-2 if layout.axis == "out" else -1)
    turned = turned.flatten(-3, -2) if layout.axis == "out" else turned.flatten(-2)
    return (turned if layout.transposed else turned.mT).contiguous()


def _transpose(words: list[torch.Tensor], bits: int) -> None:
    """Transpose a square of fields in place: field ``i`` of word ``k`` becomes field ``k`` of word ``i``."""
    count = len(words)
    half = count // 2
    while half:
        shift = half * bits
        mask = sum((2**bits - 1) << (place * bits) for place in range(count) if not place & half)
        for low in range(count):
            if low & half:
                continue
            one, other = words[low], words[low + half]
            swap = (one >> shift).bitwise_xor_(other).bitwise_and_(mask)
            other.bitwise_xor_(swap)
            one.bitwise_xor_(swap.bitwise_left_shift_(shift))
        half //= 2


def _reordered_fields(words: list[torch.Tensor], layout: PackLayout) -> list[torch.Tensor]:
    """Move code ``order[p]`` of each word into field ``p``."""
    bits, order = layout.bits, layout.order or ()
    result = []
    for word in words:
        moved = torch.zeros_like(word)
        for place, code in enumerate(order):
            moved |= ((word >> (code * bits)) & (2**bits - 1)) << (place * bits)
        result.append(moved)
    return result
