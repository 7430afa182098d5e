"""What a format cannot hold, it says before anything is written, with the rule and both values."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from quantlab.formats import FORMATS
from quantlab.formats.obstacles import has_act_order
from quantlab.tensors.dequantize import dequantize
from quantlab.tensors.number_types import FP4_E2M1, FP8_E4M3FN, NF4, signed_int
from quantlab.tensors.quantize import quantize
from quantlab.tensors.quantized import QuantizedTensor, WeightFormat
from tests.awkward import awkward, checkpoint

pytestmark = pytest.mark.torch

W4 = quantize(awkward(32, 128), WeightFormat(signed_int(4), "group", 32))
W4_ASYM = quantize(awkward(32, 128), WeightFormat(signed_int(4), "group", 32, symmetric=False))
FP8 = quantize(awkward(32, 128), WeightFormat(FP8_E4M3FN, "channel"))
BLOCK = quantize(awkward(32, 128), WeightFormat(FP8_E4M3FN, "block", block=(128, 128)))
NVFP4 = quantize(awkward(32, 128), WeightFormat(FP4_E2M1, "group", 16))
MXFP4 = quantize(awkward(32, 128), WeightFormat(FP4_E2M1, "group", 32))
MXFP8 = quantize(awkward(32, 128), WeightFormat(FP8_E4M3FN, "group", 32))
CT = "compressed-tensors/"


def _with_zero(value: int) -> QuantizedTensor:
    assert W4_ASYM.zeros is not None
    zeros = W4_ASYM.zeros.clone()
    zeros[3, 1] = value
    return replace(W4_ASYM, zeros=zeros)


@pytest.mark.parametrize(
    ("form", "weight", "rule"),
    [
        (f"{CT}pack-quantized", FP8, "number-type"),
        (f"{CT}pack-quantized", replace(W4, group_map=torch.arange(128).flip(0) // 32), "act-order"),
        (f"{CT}pack-quantized", replace(W4, offsets=torch.ones_like(W4.scales)), "offset"),
        (f"{CT}pack-quantized", replace(W4, scale_rule="inverse"), "inverse-scale"),
        (f"{CT}pack-quantized", replace(W4, format=replace(W4.format, group_size=100)), "group-size"),
        (f"{CT}pack-quantized", replace(W4, format=replace(W4.format, granularity="block")), "granularity"),
        (f"{CT}pack-quantized", replace(W4, scales=W4.scales.to(torch.float8_e4m3fn)), "scale-type"),
        (f"{CT}pack-quantized", replace(W4, global_scale=torch.ones(1)), "global-scale"),
        (f"{CT}pack-quantized", _with_zero(8), "zero-point"),
        (f"{CT}pack-quantized", _with_zero(-9), "zero-point"),
        (f"{CT}float-quantized", W4, "number-type"),
        (f"{CT}float-quantized", NVFP4, "number-type"),
        (f"{CT}float-quantized", MXFP8, "scale-type"),
        (f"{CT}mxfp8-quantized", FP8, "scale-type"),
        (f"{CT}int-quantized", FP8, "number-type"),
        (f"{CT}nvfp4-pack-quantized", MXFP4, "group-size"),
        (f"{CT}nvfp4-pack-quantized", W4, "number-type"),
        (f"{CT}mxfp4-pack-quantized", NVFP4, "group-size"),
        (f"{CT}mxfp4-pack-quantized", replace(W4, format=WeightFormat(NF4, "group", 32)), "number-type"),
        ("fp8", MXFP8, "granularity"),
        ("fp8", W4, "number-type"),
        ("fbgemm_fp8", BLOCK, "granularity"),
        ("modelopt", BLOCK, "granularity"),
        ("modelopt", W4, "number-type"),
    ],
)
def test_a_format_names_what_it_cannot_hold(form: str, weight: QuantizedTensor, rule: str) -> None:
    obstacle = FORMATS[form].obstacle(weight)
    assert obstacle is not None
    assert obstacle.rule == rule
    assert obstacle.reason


@pytest.mark.parametrize(
    ("form", "weight"),
    [
        (f"{CT}pack-quantized", W4),
        (f"{CT}pack-quantized", W4_ASYM),
        (f"{CT}pack-quantized", _with_zero(7)),
        (f"{CT}pack-quantized", replace(W4, group_map=torch.arange(128, dtype=torch.int32) // 32)),
        (f"{CT}float-quantized", FP8),
        (f"{CT}float-quantized", BLOCK),
        (f"{CT}mxfp8-quantized", MXFP8),
        (f"{CT}nvfp4-pack-quantized", NVFP4),
        (f"{CT}mxfp4-pack-quantized", MXFP4),
        ("fp8", BLOCK),
        ("fp8-fnuz", FP8),
        ("fbgemm_fp8", FP8),
        ("modelopt", FP8),
        ("modelopt", NVFP4),
        ("dense", W4_ASYM),
    ],
)
def test_a_format_takes_what_it_can_hold(form: str, weight: QuantizedTensor) -> None:
    assert FORMATS[form].obstacle(weight) is None


def test_a_group_map_in_sequence_is_no_act_order() -> None:
    assert not has_act_order(W4)
    assert not has_act_order(replace(W4, group_map=torch.arange(128) // 32))
    assert has_act_order(replace(W4, group_map=torch.zeros(128, dtype=torch.int32)))


def test_whole_row_groups_become_channels() -> None:
    codec = FORMATS[f"{CT}pack-quantized"]
    rows = quantize(awkward(32, 128), WeightFormat(signed_int(4), "channel"))
    gptq = replace(rows, format=WeightFormat(signed_int(4), "group", -1))
    assert codec.obstacle(gptq) is None
    config = codec.config({"a": gptq.format}, (), checkpoint({}, "dense", None))
    stored = codec.encode("a", gptq)
    (layer,) = codec.layers(checkpoint(stored, codec.id, config))
    decoded = codec.decode(layer, {role: stored[name] for role, name in layer.tensors.items()})
    assert decoded.format.granularity == "channel"
    assert torch.equal(dequantize(decoded), dequantize(rows))


def test_dense_has_nothing_to_decode_and_writes_the_model_s_dtype() -> None:
    codec = FORMATS["dense"]
    assert codec.layers(checkpoint({"a.weight": torch.ones(2, 2)}, "dense", None)) == []
    dense = codec.encode("a", replace(W4, dtype="float16"))
    assert torch.equal(dense["a.weight"], dequantize(W4).half())
    assert codec.config({}, (), checkpoint({}, "dense", None)) == {}
