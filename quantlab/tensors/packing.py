"""Codes into machine words and back, and from one arrangement of words to another.

Every layout here is a little-endian stream of bit fields. Seen as bytes it needs no 32-bit arithmetic: a field of
2, 4 or 8 bits never crosses a byte, and 8 fields of ``b`` bits fill exactly ``b`` bytes::

    4 bit   byte k          [ code 2k+1 | code 2k ]                       (bits 7..4 | 3..0)
    3 bit   bytes 3k..3k+2  code 8k at bits 0..2, 8k+1 at bits 3..5, ...  (dense)
    3 bit   word k          codes 10k..10k+9 at bits 0..29, two bits lost (not dense)

The dense stream is GPTQ's (ModelCloud/GPTQModel: gptqmodel/nn_modules/qlinear/__init__.py, ``pack_block``) and that
of compressed-tensors from 0.19 on (compressors/pack_quantized/helpers.py); before, compressed-tensors lost the
odd bits of each word. They differ in which axis runs along a word and in which order words lie, so a symmetric
GPTQ weight becomes a pack-quantized one by transposing words: ``relayout`` sees that and never unpacks.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from quantlab.errors import CheckpointError, ConversionRefused
from quantlab.tensors.field_transpose import can_turn, turn
from quantlab.tensors.quantized import PackedCodes, PackLayout

_WORD_DTYPES = {32: torch.int32, 8: torch.uint8}


def words_along(length: int, layout: PackLayout) -> int:
    """Return how many words hold ``length`` codes."""
    if layout.dense:
        return -(-length * layout.bits // layout.word_bits)
    return -(-length // (layout.word_bits // layout.bits))


def packed_shape(shape: tuple[int, ...], layout: PackLayout) -> tuple[int, ...]:
    """Return the shape of the stored words of a logical ``(..., out, in)``."""
    *lead, rows, columns = shape
    if layout.axis == "in":
        columns = words_along(columns, layout)
    else:
        rows = words_along(rows, layout)
    return (*lead, columns, rows) if layout.transposed else (*lead, rows, columns)


def unpack(packed: PackedCodes) -> torch.Tensor:
    """Take words apart.

    Returns:
        Codes of ``packed.shape``, contiguous: ``int8`` signed integers, or ``uint8`` where the layout has neither
        a bias nor a sign (4-bit floats, codebook indices).

    Raises:
        CheckpointError: the words do not have the shape or dtype that the layout demands.
    """
    layout = packed.layout
    _check(packed)
    words = packed.words.mT if layout.transposed != (layout.axis == "out") else packed.words
    length = packed.shape[-1] if layout.axis == "in" else packed.shape[-2]
    fields = _fields(words.contiguous(), layout, length)
    if layout.bias:
        codes = fields.view(torch.int8).sub_(layout.bias) if layout.bits < 8 else _unbias_bytes(fields, layout.bias)
    elif layout.signed:
        shift = 8 - layout.bits
        codes = (fields << shift).view(torch.int8) >> shift
    else:
        codes = fields
    return codes.mT.contiguous() if layout.axis == "out" else codes


def pack(codes: torch.Tensor, layout: PackLayout) -> PackedCodes:
    """Put codes into words.

    Args:
        codes: ``(..., out, in)``, ``int8`` or ``uint8``.
        layout: the arrangement; a rest of the last word is filled with zero bits.

    Raises:
        ConversionRefused: a code does not fit into a field.
    """
    _check_range(codes, layout)
    runs = (codes.mT if layout.axis == "out" else codes).contiguous()
    fields = (runs.view(torch.int8) + layout.bias).view(torch.uint8) if layout.bias % 256 else runs.view(torch.uint8)
    if layout.signed and layout.bits < 8:
        fields = fields & (2**layout.bits - 1)
    words = _words(fields, layout)
    if layout.transposed != (layout.axis == "out"):
        words = words.mT.contiguous()
    return PackedCodes(words, layout, tuple(codes.shape))


def relayout(packed: PackedCodes, layout: PackLayout) -> PackedCodes:
    """Return the same codes in another layout, working on whole words wherever the layouts allow.

    Raises:
        ConversionRefused: the codes do not fit (a wider code into a narrower field).
    """
    source = packed.layout
    if source == layout:
        return packed
    if _words_suffice(packed, layout):
        _check(packed)
        words = packed.words
        if source.order != layout.order:
            words = _reorder(words, source, layout)
        flip = _sign_flip(source, layout)
        if flip:
            words = words ^ flip
        if source.transposed != layout.transposed:
            words = words.mT.contiguous()
        return PackedCodes(words, layout, packed.shape)
    if can_turn(packed, layout) and (flip := _sign_flip(source, layout)) is not None:
        _check(packed)
        turned = turn(packed, layout)
        return PackedCodes(turned ^ flip if flip else turned, layout, packed.shape)
    return pack(unpack(packed), layout)


def _words_suffice(packed: PackedCodes, layout: PackLayout) -> bool:
    """Say whether two layouts differ only in what can be done to whole words."""
    source = packed.layout
    if (source.bits, source.word_bits, source.axis) != (layout.bits, layout.word_bits, layout.axis):
        return False
    whole = source.word_bits % source.bits == 0
    if not whole and source.dense != layout.dense:
        return False
    length = packed.shape[-1] if source.axis == "in" else packed.shape[-2]
    if source.order != layout.order and (not whole or length % (source.word_bits // source.bits)):
        return False
    return (source.bias, source.signed) == (layout.bias, layout.signed) or (
        whole and length % (source.word_bits // source.bits) == 0 and _sign_flip(source, layout) is not None
    )


def _sign_flip(source: PackLayout, layout: PackLayout) -> int | None:
    """Return the word to xor with between two's complement and offset fields; 0 if equal, None if another bias."""
    if (source.bias, source.signed) == (layout.bias, layout.signed):
        return 0
    half = 2 ** (source.bits - 1)
    if {(source.bias, source.signed), (layout.bias, layout.signed)} != {(half, False), (0, True)}:
        return None
    word: int = sum(half << shift for shift in range(0, source.word_bits, source.bits))
    return word - 2**32 if source.word_bits == 32 and word >= 2**31 else word


def _reorder(words: torch.Tensor, source: PackLayout, layout: PackLayout) -> torch.Tensor:
    """Move the fields of each word from one order to another."""
    count = source.word_bits // source.bits
    have = source.order or tuple(range(count))
    want = layout.order or tuple(range(count))
    mask = 2**source.bits - 1
    result = torch.zeros_like(words)
    for place, code in enumerate(want):
        field = (words >> (have.index(code) * source.bits)) & mask
        result |= field << (place * source.bits)
    return result


def _fields(words: torch.Tensor, layout: PackLayout, length: int) -> torch.Tensor:
    """Return ``uint8`` fields ``(..., length)`` of words ``(..., n)`` that run along the last axis."""
    bits = layout.bits
    if layout.dense and layout.word_bits % bits:
        fields = _dense_fields(_octets(words), bits)
    elif 8 % bits == 0:
        octets = _octets(words)
        parts = [(octets >> shift) & (2**bits - 1) for shift in range(0, 8, bits)] if bits < 8 else [octets.clone()]
        fields = torch.stack(parts, dim=-1).flatten(-2)
    else:
        count = layout.word_bits // bits
        parts = [((words >> (place * bits)) & (2**bits - 1)).to(torch.uint8) for place in range(count)]
        fields = torch.stack(parts, dim=-1).flatten(-2)
    if layout.order is not None:
        inverse = [layout.order.index(code) for code in range(len(layout.order))]
        fields = _split(fields, len(inverse))[..., inverse].flatten(-2)
    return fields[..., :length].contiguous()


def _words(fields: torch.Tensor, layout: PackLayout) -> torch.Tensor:
    """Return words ``(..., n)`` of ``uint8`` fields ``(..., length)``."""
    bits, length = layout.bits, fields.shape[-1]
    count = words_along(length, layout)
    if layout.dense and layout.word_bits % bits:
        octets = _dense_octets(_padded(fields, -(-length // 8) * 8), bits)
        return _as_words(_padded(octets, count * layout.word_bits // 8), layout)
    per_word = layout.word_bits // bits
    fields = _padded(fields, count * per_word)
    if layout.order is not None:
        fields = _split(fields, per_word)[..., list(layout.order)].flatten(-2)
    if 8 % bits == 0:
        parts = _split(fields, 8 // bits)
        octets = parts[..., 0].clone()
        for place in range(1, 8 // bits):
            octets |= parts[..., place] << (place * bits)
        return _as_words(octets, layout)
    wide = _split(fields, per_word).to(torch.int32)
    words = wide[..., 0].clone()
    for place in range(1, per_word):
        words |= wide[..., place] << (place * bits)
    return words.to(_WORD_DTYPES[layout.word_bits])


def _dense_fields(octets: torch.Tensor, bits: int) -> torch.Tensor:
    """Read 8 fields of ``bits`` bits from each ``bits`` bytes."""
    wide = _split(_padded(octets, -(-octets.shape[-1] // bits) * bits), bits).to(torch.int16)
    parts = []
    for place in range(8):
        at, shift = divmod(place * bits, 8)
        value = wide[..., at] >> shift
        if shift + bits > 8:
            value = value | (wide[..., at + 1] << (8 - shift))
        parts.append((value & (2**bits - 1)).to(torch.uint8))
    return torch.stack(parts, dim=-1).flatten(-2)


def _dense_octets(fields: torch.Tensor, bits: int) -> torch.Tensor:
    """Write 8 fields of ``bits`` bits into ``bits`` bytes."""
    parts = _split(fields, 8).to(torch.int16)
    octets = torch.zeros((*parts.shape[:-1], bits), dtype=torch.int16, device=fields.device)
    for place in range(8):
        at, shift = divmod(place * bits, 8)
        octets[..., at] |= (parts[..., place] << shift) & 0xFF
        if shift + bits > 8:
            octets[..., at + 1] |= parts[..., place] >> (8 - shift)
    return octets.to(torch.uint8).flatten(-2)


def _octets(words: torch.Tensor) -> torch.Tensor:
    """See words as bytes; a last axis of one word may carry any stride, which such a view refuses."""
    return (words if words.stride(-1) == 1 else words.clone(memory_format=torch.contiguous_format)).view(torch.uint8)


def _as_words(octets: torch.Tensor, layout: PackLayout) -> torch.Tensor:
    return octets.clone(memory_format=torch.contiguous_format).view(_WORD_DTYPES[layout.word_bits])


def _unbias_bytes(fields: torch.Tensor, bias: int) -> torch.Tensor:
    """Subtract the bias modulo 256: an 8-bit field of 255 is the code 127."""
    return (fields - bias % 256).view(torch.int8)


def _split(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """View the last axis as runs of ``size``."""
    return tensor.view(*tensor.shape[:-1], -1, size)


def _padded(tensor: torch.Tensor, length: int) -> torch.Tensor:
    """Cut or fill the last axis with zeros to ``length``."""
    missing = length - tensor.shape[-1]
    if missing > 0:
        return torch.nn.functional.pad(tensor, (0, missing))
    return tensor[..., :length].contiguous() if missing else tensor


def _check(packed: PackedCodes) -> None:
    want, dtype = packed_shape(packed.shape, packed.layout), _WORD_DTYPES[packed.layout.word_bits]
    if tuple(packed.words.shape) != want or packed.words.dtype != dtype:
        raise CheckpointError(
            f"packed words are {packed.words.dtype} {list(packed.words.shape)}, "
            f"but {packed.layout.bits}-bit codes of {list(packed.shape)} need {dtype} {list(want)}"
        )


def _check_range(codes: torch.Tensor, layout: PackLayout) -> None:
    if codes.numel() == 0 or layout.bits == 8:
        return
    span = 2**layout.bits
    low = -(span // 2) if layout.signed else -layout.bias
    smallest, largest = (int(value) for value in torch.aminmax(codes))
    if smallest < low or largest >= low + span:
        raise ConversionRefused(
            f"codes {smallest} to {largest} do not fit into {layout.bits}-bit fields of {low} to {low + span - 1}"
        )


def dense_layout(bits: int, *, axis_out: bool = False) -> PackLayout:
    """Return the layout of compressed-tensors' words: offset codes, a dense stream along ``in`` (or ``out``)."""
    return PackLayout(bits, 32, "out" if axis_out else "in", bias=2 ** (bits - 1), dense=True)


def wasting(layout: PackLayout) -> PackLayout:
    """Return the layout with whole fields in each word, the odd bits lost."""
    return replace(layout, dense=False)
