"""Data-free quantizing gives the bytes of compressed-tensors, bit for bit, and decodes to the same weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from quantlab.errors import ConversionRefused, UsageError
from quantlab.tensors.clipping import Clip
from quantlab.tensors.dequantize import dequantize
from quantlab.tensors.floats import e2m1_codes
from quantlab.tensors.number_types import FP4_E2M1, FP8_E4M3FN, NF4, NumberType, signed_int
from quantlab.tensors.packing import dense_layout, pack
from quantlab.tensors.quantize import largest, quantize
from quantlab.tensors.quantized import QuantizedTensor, WeightFormat
from quantlab.tensors.scales import global_scale_divisor, mx_exponents
from tests.awkward import awkward, same_bits
from tests.golden import compressed_tensors_library as library

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

_FLOATS: dict[str, tuple[WeightFormat, dict[str, Any]]] = {
    "fp8 tensor": (WeightFormat(FP8_E4M3FN, "tensor"), {**library.FP8, "strategy": "tensor"}),
    "fp8 channel": (WeightFormat(FP8_E4M3FN, "channel"), {**library.FP8, "strategy": "channel"}),
    "fp8 group": (WeightFormat(FP8_E4M3FN, "group", 64), {**library.FP8, "strategy": "group", "group_size": 64}),
    "fp8 block": (
        WeightFormat(FP8_E4M3FN, "block", block=(128, 128)),
        {**library.FP8, "strategy": "block", "block_structure": [128, 128]},
    ),
    "mxfp8": (WeightFormat(FP8_E4M3FN, "group", 32), {**library.FP8, **library.MX}),
    "mxfp4": (
        WeightFormat(FP4_E2M1, "group", 32),
        {"num_bits": 4, "type": "float", "symmetric": True, **library.MX},
    ),
    "nvfp4": (WeightFormat(FP4_E2M1, "group", 16), library.NVFP4),
}


def _integers() -> dict[str, tuple[WeightFormat, dict[str, Any]]]:
    cases: dict[str, tuple[WeightFormat, dict[str, Any]]] = {}
    for bits in range(2, 9):
        number = signed_int(bits)
        for symmetric in (True, False):
            common = {"num_bits": bits, "type": "int", "symmetric": symmetric}
            word = "symmetric" if symmetric else "asymmetric"
            cases[f"int{bits} group {word}"] = (
                WeightFormat(number, "group", 64, symmetric=symmetric),
                {**common, "strategy": "group", "group_size": 64},
            )
            cases[f"int{bits} channel {word}"] = (
                WeightFormat(number, "channel", symmetric=symmetric),
                {**common, "strategy": "channel"},
            )
    return cases


CASES = {**_FLOATS, **_integers()}
SHAPES = [(64, 192), (130, 320)]


def _stored_codes(weight: QuantizedTensor) -> torch.Tensor:
    assert isinstance(weight.codes, torch.Tensor)
    if weight.format.number is FP4_E2M1:
        return weight.codes[:, 0::2] | (weight.codes[:, 1::2] << 4)
    if weight.format.number.kind == "int":
        return pack(weight.codes, dense_layout(weight.format.number.bits)).words
    return weight.codes


def _same_as_library(mine: QuantizedTensor, reference: dict[str, torch.Tensor]) -> None:
    scales = mine.scales.flatten() if mine.format.granularity == "tensor" else mine.scales
    assert same_bits(scales, reference["weight_scale"])
    assert same_bits(_stored_codes(mine), reference.get("weight_packed", reference.get("weight")))
    if mine.zeros is not None:
        words = pack(mine.zeros.to(torch.int8), dense_layout(mine.format.number.bits, axis_out=True)).words
        assert same_bits(words, reference["weight_zero_point"])
    if mine.global_scale_stored is not None:
        assert same_bits(mine.global_scale_stored, reference["weight_global_scale"])
    assert same_bits(dequantize(mine, reference["dense"].dtype), reference["dense"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_same_bytes_as_the_library(case: str, dtype: torch.dtype) -> None:
    scheme, arguments = CASES[case]
    for shape in SHAPES:
        weight = awkward(*shape, dtype)
        _same_as_library(quantize(weight, scheme), library.compress(weight, **arguments))


@pytest.mark.parametrize("case", [*_FLOATS, "int4 group symmetric", "int4 group asymmetric", "int8 channel symmetric"])
def test_clipped_ranges_are_those_of_the_mse_observer(case: str) -> None:
    scheme, arguments = CASES[case]
    weight = awkward(64, 192, torch.bfloat16, seed=3)
    _same_as_library(quantize(weight, scheme, clip=Clip()), library.compress(weight, clip=True, **arguments))


def test_clipping_lowers_the_error_of_outliers() -> None:
    weight = torch.randn(32, 128, generator=torch.Generator().manual_seed(1))
    weight[:, 0] *= 4
    scheme = WeightFormat(signed_int(4), "group", 128)
    plain, clipped = (dequantize(quantize(weight, scheme, clip=clip)) for clip in (None, Clip()))
    assert (clipped - weight).square().mean() < 0.98 * (plain - weight).square().mean()


def test_fused_layers_share_the_global_scale_of_the_largest() -> None:
    scheme = WeightFormat(FP4_E2M1, "group", 16)
    small, large = awkward(32, 64, seed=1) * 0.1, awkward(32, 64, seed=2)
    divisor = global_scale_divisor(torch.maximum(largest(small, scheme), largest(large, scheme)))
    shared = quantize(small, scheme, global_divisor=divisor)
    assert same_bits(divisor, library.compress(large, **library.NVFP4)["weight_global_scale"])
    assert shared.global_scale_stored is not None
    assert same_bits(shared.global_scale_stored, divisor)
    assert not same_bits(shared.scales, quantize(small, scheme).scales)


def test_fused_experts_are_quantized_one_by_one() -> None:
    experts = torch.stack([awkward(64, 192, seed=seed) for seed in range(3)])
    for case in ("fp8 tensor", "fp8 block", "nvfp4", "int4 group asymmetric"):
        scheme = CASES[case][0]
        whole = quantize(experts, scheme)
        assert whole.shape == (3, 64, 192)
        dense = dequantize(whole)
        for number, expert in enumerate(experts):
            assert same_bits(dense[number], dequantize(quantize(expert, scheme)))


@pytest.mark.parametrize(("size", "columns", "offers"), [(128, 576, "64 or 32"), (64, 100, "channel scales")])
def test_groups_that_do_not_divide_are_refused_with_sizes_that_do(size: int, columns: int, offers: str) -> None:
    with pytest.raises(ConversionRefused, match=f"q_proj has {columns} columns.*{size}") as refused:
        quantize(torch.zeros(16, columns), WeightFormat(signed_int(4), "group", size), name="q_proj")
    assert refused.value.hint is not None
    assert offers in refused.value.hint


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("case", ["fp8 channel", "int4 group symmetric", "int4 group asymmetric", "nvfp4", "mxfp4"])
def test_weights_that_are_no_numbers_are_refused(case: str, bad: float) -> None:
    weight = awkward(64, 192)
    weight[20, 3] = bad
    with pytest.raises(ConversionRefused, match="NaN, infinity"):
        quantize(weight, CASES[case][0])


def test_schemes_without_a_rule_are_refused() -> None:
    for scheme in (
        WeightFormat(NF4, "group", 64),
        WeightFormat(FP4_E2M1, "group", 64),
        WeightFormat(FP8_E4M3FN, "channel", symmetric=False),
        WeightFormat(signed_int(8), "tensor", symmetric=False),
    ):
        with pytest.raises(UsageError):
            quantize(awkward(16, 64), scheme)


def test_deepseek_blocks_are_computed_in_float32() -> None:
    weight = awkward(130, 320)
    scheme = WeightFormat(FP8_E4M3FN, "block", block=(128, 128), scale_type="float32")
    mine = quantize(weight, scheme)
    reference = library.compress(weight.float(), **library.FP8, strategy="block", block_structure=[128, 128])
    assert same_bits(mine.scales, reference["weight_scale"])
    assert same_bits(_stored_codes(mine), reference["weight"])
    assert mine.dtype == "bfloat16"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("number", [FP4_E2M1, FP8_E4M3FN], ids=lambda number: number.name)
def test_every_16_bit_magnitude_gets_the_exponent_of_the_library(dtype: torch.dtype, number: NumberType) -> None:
    """Except at the very top, where the library's carry overflows to a scale of 1: those weights are refused."""
    from compressed_tensors.compressors.mx_utils import compress_mx_scale
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.utils import calculate_qparams

    top = torch.arange(2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    top = top[torch.isfinite(top)]
    scales, _ = calculate_qparams(
        -top, top, QuantizationArgs(**{**library.MX, "num_bits": number.bits, "type": "float"})
    )
    theirs, mine = compress_mx_scale(scales, torch.uint8), mx_exponents(top, number)
    held = top.float() < 1.75 * 2.0 ** (127 if dtype is torch.bfloat16 else 15)
    assert torch.equal(mine[held], theirs[held])
    assert (mine[~held] == 255).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_16_bit_value_gets_the_e2m1_code_of_the_library(dtype: torch.dtype) -> None:
    from compressed_tensors.compressors.nvfp4.helpers import pack_fp4_to_uint8
    from compressed_tensors.quantization.utils.fp4_utils import cast_to_fp4

    values = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)
    values = values[~torch.isnan(values)].view(1, -1)
    codes = e2m1_codes(values)
    theirs = pack_fp4_to_uint8(cast_to_fp4(values.clone()))
    assert torch.equal(codes[:, 0::2] | (codes[:, 1::2] << 4), theirs)
