"""Multiplying out: each part of a QuantizedTensor does what its docstring says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from quantlab.tensors.dequantize import dequantize, effective_scales
from quantlab.tensors.floats import E2M1_VALUES, e2m1_codes, from_e8m0
from quantlab.tensors.number_types import BNB_FP4, FP4_E2M1, NF4, signed_int
from quantlab.tensors.packing import dense_layout, pack
from quantlab.tensors.quantized import QuantizedTensor, WeightFormat

pytestmark = pytest.mark.torch

INT4 = signed_int(4)


def _weight(rows: int = 4, columns: int = 8, group: int = 4) -> QuantizedTensor:
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(-8, 8, (rows, columns), dtype=torch.int8, generator=generator)
    scales = torch.rand(rows, -(-columns // group), generator=generator) + 0.5
    return QuantizedTensor(WeightFormat(INT4, "group", group), (rows, columns), codes, scales)


def _by_hand(weight: QuantizedTensor) -> torch.Tensor:
    """Multiply out number by number, in float32 as numpy would."""
    assert isinstance(weight.codes, torch.Tensor)
    dense = torch.empty(weight.shape)
    for row in range(weight.shape[0]):
        for column in range(weight.shape[1]):
            group = column // (weight.format.group_size or 1)
            if weight.group_map is not None:
                group = int(weight.group_map[column])
            value = weight.codes[row, column].float()
            if weight.zeros is not None:
                value = value - weight.zeros[row, group]
            value = value * weight.scales[row, group]
            if weight.offsets is not None:
                value = value + weight.offsets[row, group]
            dense[row, column] = value
    return dense


@pytest.mark.parametrize("columns", [8, 10, 3])
def test_groups_zeros_and_offsets(columns: int) -> None:
    weight = _weight(columns=columns)
    grid = weight.scales.shape
    zeros = torch.arange(grid[0] * grid[1]).view(grid).to(torch.int16) - 4
    for variant in (
        weight,
        replace(weight, zeros=zeros),
        replace(weight, zeros=zeros, offsets=torch.randn(grid)),
    ):
        assert torch.equal(dequantize(variant), _by_hand(variant))


def test_act_order_takes_each_columns_own_group() -> None:
    order = torch.tensor([1, 0, 1, 0, 0, 1, 0, 1], dtype=torch.int32)
    weight = replace(_weight(), group_map=order, zeros=torch.ones(4, 2, dtype=torch.int16))
    assert torch.equal(dequantize(weight), _by_hand(weight))


def test_packed_codes_and_large_matrices_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = _weight(rows=64, columns=32, group=8)
    assert isinstance(weight.codes, torch.Tensor)
    whole = dequantize(weight)
    assert torch.equal(dequantize(weight.with_codes(pack(weight.codes, dense_layout(4)))), whole)
    monkeypatch.setattr("quantlab.tensors.dequantize._CHUNK", 100)
    assert torch.equal(dequantize(weight), whole)


def test_blocks_repeat_along_both_axes_in_every_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantlab.tensors.dequantize._CHUNK", 14)
    scales = torch.tensor([[1.0, 10.0, 100.0], [2.0, 20.0, 200.0]])
    weight = QuantizedTensor(
        WeightFormat(INT4, "block", block=(3, 3)), (5, 7), torch.ones(5, 7, dtype=torch.int8), scales
    )
    dense = dequantize(weight)
    assert dense[2].tolist() == [1, 1, 1, 10, 10, 10, 100]
    assert dense[3].tolist() == [2, 2, 2, 20, 20, 20, 200]


def test_rounding_happens_once_at_the_end() -> None:
    weight = replace(_weight(), scales=torch.full((4, 2), 1.0 + 2**-9))
    assert torch.equal(dequantize(weight, torch.bfloat16), dequantize(weight).to(torch.bfloat16))


def test_global_scales_multiply_or_divide_as_the_file_says() -> None:
    weight = replace(_weight(), global_scale=torch.tensor([3.0]))
    assert torch.equal(effective_scales(weight), weight.scales * 3.0)
    stored = torch.tensor([3.0])
    inverse = replace(weight, global_scale=1 / stored, global_scale_stored=stored, global_scale_inverse=True)
    assert torch.equal(effective_scales(inverse), weight.scales / 3.0)


def test_experts_have_scales_and_global_scales_of_their_own() -> None:
    parts = [replace(_weight(), global_scale=torch.tensor([factor])) for factor in (1.0, 2.0)]
    stacked = replace(
        parts[0],
        shape=(2, 4, 8),
        codes=torch.stack([part.codes for part in parts if isinstance(part.codes, torch.Tensor)]),
        scales=torch.stack([part.scales for part in parts]),
        global_scale=torch.tensor([1.0, 2.0]),
    )
    assert torch.equal(dequantize(stacked), torch.stack([dequantize(part) for part in parts]))


def test_exponents_are_exact_down_to_the_smallest() -> None:
    exponents = torch.tensor([0, 1, 126, 127, 128, 254], dtype=torch.uint8)
    assert from_e8m0(exponents).tolist() == [2.0 ** (int(e) - 127) for e in exponents]
    assert from_e8m0(torch.tensor([255], dtype=torch.uint8)).item() == float("inf")


def test_inverse_scales_divide() -> None:
    weight = replace(_weight(), scales=torch.full((4, 2), 4.0), scale_rule="inverse")
    assert isinstance(weight.codes, torch.Tensor)
    assert torch.equal(dequantize(weight), weight.codes.float() / 4)


@pytest.mark.parametrize(("number", "name"), [(NF4, "nf4"), (BNB_FP4, "fp4")])
def test_flat_blocks_run_across_rows_as_in_bitsandbytes(number: object, name: str) -> None:
    from bitsandbytes.functional import get_4bit_type

    codes = torch.arange(5 * 8, dtype=torch.int32).remainder(16).to(torch.uint8).view(5, 8)
    scales = torch.tensor([1.0, 2.0, 3.0])
    assert number in (NF4, BNB_FP4)
    weight = QuantizedTensor(WeightFormat(NF4 if name == "nf4" else BNB_FP4, "group", 16), (5, 8), codes, scales)
    table = get_4bit_type(name, "cpu")
    expected = table[codes.flatten().long()] * scales.repeat_interleave(16)[:40]
    assert torch.equal(dequantize(weight), expected.view(5, 8))


def test_e2m1_rounds_to_even_and_keeps_the_sign_of_small_negatives() -> None:
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 9.0, -0.1, -0.0, -5.1])
    assert e2m1_codes(ties).tolist() == [0, 2, 2, 4, 4, 6, 6, 7, 8, 0, 15]
    exact = torch.tensor(E2M1_VALUES)
    assert e2m1_codes(exact).tolist() == [*range(8), 0, *range(9, 16)]
    codes = torch.arange(16, dtype=torch.uint8).view(1, 16)
    weight = QuantizedTensor(WeightFormat(FP4_E2M1, "group", 16), (1, 16), codes, torch.ones(1, 1))
    assert dequantize(weight).tolist() == [list(E2M1_VALUES)]
