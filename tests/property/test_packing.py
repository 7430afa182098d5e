"""Packing for all bits, axes and word layouts: nothing is lost, and words agree with the libraries' own packing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantlab.errors import CheckpointError, ConversionRefused
from quantlab.tensors.packing import dense_layout, pack, packed_shape, relayout, unpack, wasting
from quantlab.tensors.quantized import PackedCodes, PackLayout

pytestmark = pytest.mark.torch

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
GPTQ = PackLayout(4, 32, "in", transposed=True, bias=8, dense=True)
AWQ = PackLayout(4, 32, "out", transposed=True, order=AWQ_ORDER, bias=8)


@st.composite
def layouts(draw: st.DrawFn, bits: int) -> PackLayout:
    """Return any layout of codes of some bits."""
    signed = draw(st.booleans())
    whole = 32 % bits == 0
    order = draw(st.sampled_from([None, tuple(draw(st.permutations(range(32 // bits))))])) if whole else None
    return PackLayout(
        bits,
        32,
        draw(st.sampled_from(["in", "out"])),
        draw(st.booleans()),
        order,
        0 if signed else 2 ** (bits - 1),
        draw(st.booleans()) if order is None else False,
        signed,
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[torch.Tensor, PackLayout, PackLayout]:
    """Return codes of any shape and two layouts for them."""
    bits = draw(st.integers(2, 8))
    lead = draw(st.sampled_from([(), (2,)]))
    sizes = st.one_of(st.integers(1, 70), st.sampled_from([8, 16, 32, 64]))
    shape = (*lead, draw(sizes), draw(sizes))
    half = 2 ** (bits - 1)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    codes = torch.randint(-half, half, shape, dtype=torch.int8, generator=generator)
    return codes, draw(layouts(bits)), draw(layouts(bits))


@settings(deadline=None, max_examples=150)
@given(cases())
def test_what_is_packed_comes_out_again(case: tuple[torch.Tensor, PackLayout, PackLayout]) -> None:
    codes, layout, _ = case
    packed = pack(codes, layout)
    assert tuple(packed.words.shape) == packed_shape(tuple(codes.shape), layout)
    assert packed.words.is_contiguous()
    assert torch.equal(unpack(packed), codes)


@settings(deadline=None, max_examples=150)
@given(cases())
def test_relayout_gives_the_words_of_packing_anew(case: tuple[torch.Tensor, PackLayout, PackLayout]) -> None:
    codes, one, other = case
    moved = relayout(pack(codes, one), other)
    assert moved.layout == other
    assert torch.equal(moved.words, pack(codes, other).words)


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 8), st.integers(1, 33), st.integers(1, 99), st.booleans())
def test_the_dense_stream_is_that_of_compressed_tensors(bits: int, rows: int, columns: int, down: bool) -> None:
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32

    half = 2 ** (bits - 1)
    codes = torch.randint(-half, half, (rows, columns), dtype=torch.int8, generator=torch.Generator().manual_seed(bits))
    axis = 0 if down else 1
    packed = pack(codes, dense_layout(bits, axis_out=down))
    assert torch.equal(packed.words, pack_to_int32(codes, bits, packed_dim=axis))
    assert torch.equal(unpack(packed), unpack_from_int32(packed.words, bits, codes.shape, packed_dim=axis))


def _integer_by_integer(codes: torch.Tensor) -> torch.Tensor:
    """Pack GPTQ's 4-bit words with Python integers, straight from the definition."""
    out, columns = codes.shape
    words = [
        [sum((int(codes[o, 8 * w + k]) + 8) << (4 * k) for k in range(8)) for o in range(out)]
        for w in range(columns // 8)
    ]
    return torch.tensor(words, dtype=torch.int64).to(torch.int32)


def test_gptq_words_by_definition_and_their_transpose_is_pack_quantized() -> None:
    codes = torch.randint(-8, 8, (24, 64), dtype=torch.int8, generator=torch.Generator().manual_seed(1))
    packed = pack(codes, GPTQ)
    assert torch.equal(packed.words, _integer_by_integer(codes))
    moved = relayout(packed, dense_layout(4))
    assert torch.equal(moved.words, packed.words.T)


def test_awq_interleaves_its_columns() -> None:
    codes = torch.arange(-8, 0, dtype=torch.int8).view(8, 1)  # stored fields 0..7
    word = int(pack(codes, AWQ).words[0, 0]) & 0xFFFFFFFF
    assert word == 0x75316420
    assert torch.equal(unpack(pack(codes, AWQ)), codes)


def test_two_complement_and_offset_words_differ_by_a_mask() -> None:
    codes = torch.randint(-8, 8, (8, 16), dtype=torch.int8, generator=torch.Generator().manual_seed(2))
    offset = dense_layout(4)
    signed = replace(offset, bias=0, signed=True)
    assert torch.equal(relayout(pack(codes, offset), signed).words, pack(codes, offset).words ^ -0x77777778)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("lead", [(), (3,)])
def test_words_packed_along_the_other_axis_never_see_single_codes(
    bits: int, lead: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    half, count = 2 ** (bits - 1), 32 // bits
    generator = torch.Generator().manual_seed(bits)
    codes = torch.randint(-half, half, (*lead, 3 * count, 5 * count), dtype=torch.int8, generator=generator)
    order = tuple(torch.randperm(count, generator=generator).tolist())
    plain = dense_layout(bits)
    down = PackLayout(bits, 32, "out", transposed=True, order=order, bias=half)
    want = {layout: pack(codes, layout).words for layout in (plain, down, replace(plain, transposed=True))}
    monkeypatch.setattr("quantlab.tensors.packing.unpack", None)
    for one, words in want.items():
        for other, expected in want.items():
            if one.axis != other.axis:
                moved = relayout(PackedCodes(words, one, tuple(codes.shape)), other)
                assert torch.equal(moved.words, expected)
    signed = replace(plain, bias=0, signed=True)
    turned = relayout(PackedCodes(want[down], down, tuple(codes.shape)), signed)
    assert torch.equal(turned.words, pack(codes, signed).words)


def test_three_bits_dense_and_wasting() -> None:
    codes = torch.zeros(2, 576, dtype=torch.int8)
    assert pack(codes, dense_layout(3)).words.shape == (2, 54)
    assert pack(codes, wasting(dense_layout(3))).words.shape == (2, 58)


def test_words_of_a_wrong_shape_or_dtype_are_refused() -> None:
    words = torch.zeros(4, 7, dtype=torch.int32)
    with pytest.raises(CheckpointError, match=r"\[4, 7\].*4-bit codes of \[4, 64\] need torch.int32 \[4, 8\]"):
        unpack(PackedCodes(words, dense_layout(4), (4, 64)))
    with pytest.raises(CheckpointError, match="int64"):
        unpack(PackedCodes(torch.zeros(4, 8, dtype=torch.int64), dense_layout(4), (4, 64)))


def test_codes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConversionRefused, match="-9 to 0 do not fit into 4-bit fields of -8 to 7"):
        pack(torch.tensor([[0, -9]], dtype=torch.int8), dense_layout(4))


def test_unsigned_codes_stay_unsigned() -> None:
    nibbles = PackLayout(4, 8, "in")
    codes = torch.arange(16, dtype=torch.uint8).view(2, 8)
    packed = pack(codes, nibbles)
    assert packed.words.tolist()[0] == [0x10, 0x32, 0x54, 0x76]
    assert torch.equal(unpack(packed), codes)
