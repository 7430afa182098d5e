"""What must hold for any codes, zero points and shapes, whatever a library happens to write."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantlab.formats import FORMATS
from quantlab.formats.gguf_blocks import BLOCKS, decode_blocks, encode_blocks
from quantlab.formats.gguf_names import rows_to_folder, rows_to_gguf
from quantlab.formats.gptq_zeros import read_zeros, write_zeros
from quantlab.tensors.dequantize import dense_codes, dequantize
from quantlab.tensors.number_types import signed_int
from quantlab.tensors.quantized import QuantizedTensor, WeightFormat
from tests.golden.layer_reading import decode_all, same_bits

SEEDS = st.integers(0, 2**32 - 1)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(SEEDS, st.sampled_from([2, 3, 4, 8]), st.integers(1, 3), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_gptq_zero_points_come_back(seed: int, bits: int, blocks: int, groups: int) -> None:
    half = 2 ** (bits - 1)
    zeros = torch.randint(-half, half, (32 * blocks, groups), generator=generator(seed), dtype=torch.int16)
    words = write_zeros(zeros, bits, version=2)
    assert torch.equal(read_zeros(words, bits, tuple(zeros.shape), version=2, by_word=False), zeros)
    above = zeros.clamp(min=1 - half)  # version 1 cannot hold 0
    words = write_zeros(above, bits, version=1)
    for by_word in (False, True):
        assert torch.equal(read_zeros(words, bits, tuple(zeros.shape), version=1, by_word=by_word), above)


@given(SEEDS, st.sampled_from(["gptq", "gptq_v2", "awq", "auto-round", "quark"]), st.booleans(), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_four_bit_formats_agree_on_any_codes(seed: int, form: str, symmetric: bool, groups: int) -> None:
    """Codes, scales, zero points and the float32 decode survive every format that says it can hold them."""
    random = generator(seed)
    out, columns = 32, 32 * groups
    zeros = torch.randint(-8, 8, (out, groups), generator=random, dtype=torch.int16)
    weight = QuantizedTensor(
        WeightFormat(signed_int(4), "group", 32, symmetric=symmetric),
        (out, columns),
        torch.randint(-8, 8, (out, columns), generator=random, dtype=torch.int8),
        torch.randn(out, groups, generator=random).half(),
        zeros=None if symmetric else zeros,
    )
    codec = FORMATS[form]
    obstacle = codec.obstacle(weight)
    if obstacle is not None:
        assert obstacle.rule == "v1-zero"
        assert bool((zeros == -8).any())
        return
    from tests.golden.layer_reading import facts_of

    config = codec.config({"layer": weight.format}, (), facts_of({}, "dense"))
    (back,) = decode_all(codec.encode("layer", weight), form, config).values()
    assert back.format == weight.format
    assert torch.equal(dense_codes(back), weight.codes)
    assert same_bits(back.scales, weight.scales)
    assert (back.zeros is None) == symmetric
    assert symmetric or torch.equal(back.zeros, zeros)
    assert same_bits(dequantize(back), dequantize(weight))


@given(SEEDS, st.sampled_from(sorted(BLOCKS)), st.integers(1, 5), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_any_bytes_are_blocks_and_come_back(seed: int, kind: str, rows: int, count: int) -> None:
    raw = torch.randint(0, 256, (rows, count * BLOCKS[kind].bytes), generator=generator(seed), dtype=torch.uint8)
    assert same_bits(encode_blocks(decode_blocks(raw, kind), kind), raw)


@given(SEEDS, st.integers(1, 4), st.integers(1, 8))
@settings(max_examples=30, deadline=None)
def test_rotary_order_is_a_permutation_of_rows(seed: int, heads: int, half: int) -> None:
    rows = torch.randn(heads * half * 2, 3, generator=generator(seed))
    turned = rows_to_gguf(rows, heads)
    assert torch.equal(rows_to_folder(turned, heads), rows)
    assert torch.equal(turned[0], rows[0])
    assert torch.equal(turned[1], rows[half])
