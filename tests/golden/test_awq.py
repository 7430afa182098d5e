"""AWQ and AutoRound against the packing of GPTQModel, AutoRound and compressed-tensors' AutoAWQ converter."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from quantlab.errors import CheckpointError, ConversionRefused
from quantlab.formats import FORMATS
from quantlab.tensors.dequantize import dense_codes, dequantize
from quantlab.tensors.number_types import INT4
from quantlab.tensors.quantized import QuantizedTensor, WeightFormat
from tests.golden.layer_reading import awkward, decode_all, facts_of, same_bits

OUT, IN, GROUP = 64, 128, 32
NAME = "model.layers.0.mlp.up_proj"


def parts(bits: int = 4, *, symmetric: bool = False, group: int = GROUP):
    """Return weight, float scales and zeros ``[out, groups]``, and the unsigned codes that packing gives."""
    weight = awkward(OUT, IN, seed=bits)
    size = IN if group == -1 else group
    groups = IN // size
    top = 2**bits - 1
    scales = (weight.view(OUT, groups, size).abs().amax(-1) / (top / 2)).clamp(min=2.0**-20).half().float()
    zeros = torch.full((OUT, groups), float(2 ** (bits - 1)))
    if not symmetric:
        zeros = torch.randint(0, top + 1, (OUT, groups), generator=torch.Generator().manual_seed(1)).float()
    wide_scales, wide_zeros = scales.repeat_interleave(size, 1), zeros.repeat_interleave(size, 1)
    codes = torch.round(weight / wide_scales + wide_zeros).clamp(0, top).abs()
    return (codes - wide_zeros) * wide_scales, scales, zeros, codes


def packed(cls: Any) -> dict[str, torch.Tensor]:
    """Pack with one of GPTQModel's AWQ modules, made without its constructor, which asks for a CUDA kernel."""
    weight, scales, zeros, _ = parts()
    linear = torch.nn.Linear(IN, OUT, bias=False)
    linear.weight.data = weight
    module = cls.__new__(cls)
    torch.nn.Module.__init__(module)
    vars(module).update(bits=4, group_size=GROUP, in_features=IN, out_features=OUT, zeros_name="qzeros")
    module.pack(linear, scales, zeros)
    return {f"{NAME}.{part}": getattr(module, part).clone() for part in ("qweight", "qzeros", "scales")}


def config(version: str, **more: Any) -> dict[str, Any]:
    return {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": version, **more}


@pytest.fixture(scope="module")
def gemm() -> dict[str, torch.Tensor]:
    from gptqmodel.nn_modules.qlinear.gemm_awq import AwqGEMMLinear

    return packed(AwqGEMMLinear)


def test_gemm_equals_gptqmodels_dequantizing(gemm: dict[str, torch.Tensor]) -> None:
    from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm

    reference = dequantize_gemm(
        gemm[f"{NAME}.qweight"], gemm[f"{NAME}.qzeros"], gemm[f"{NAME}.scales"], 4, GROUP
    ).T.contiguous()
    (weight,) = decode_all(gemm, "awq", config("gemm")).values()
    assert weight.zeros is not None
    assert int(weight.zeros.min()) == -8
    assert same_bits(dequantize(weight, torch.float16), reference)


def test_gemm_equals_compressed_tensors_autoawq_converter(gemm: dict[str, torch.Tensor]) -> None:
    """The converter's own unpacking and dequantizing of what it makes, against our decode of the source."""
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
    from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter

    made = AutoAWQConverter(group_size=GROUP, targets=[r"re:.*up_proj$"]).process(dict(gemm))
    codes = unpack_from_int32(made[f"{NAME}.weight_packed"], 4, torch.Size((OUT, IN)))
    zeros = unpack_from_int32(made[f"{NAME}.weight_zero_point"], 4, torch.Size((OUT, IN // GROUP)), packed_dim=0)
    (weight,) = decode_all(gemm, "awq", config("gemm")).values()
    assert torch.equal(dense_codes(weight), codes)
    assert torch.equal(weight.zeros, zeros.to(torch.int16))
    assert same_bits(weight.scales, made[f"{NAME}.weight_scale"])


def test_gemm_round_trip_gives_the_same_bytes(gemm: dict[str, torch.Tensor]) -> None:
    (weight,) = decode_all(gemm, "awq", config("gemm")).values()
    for plain in (weight, weight.with_codes(dense_codes(weight))):
        written = FORMATS["awq"].encode(NAME, plain)
        assert all(same_bits(written[key], gemm[key]) for key in gemm)


def test_gemv_holds_the_same_numbers_as_gemm(gemm: dict[str, torch.Tensor]) -> None:
    from gptqmodel.nn_modules.qlinear.gemv_awq import AwqGEMVLinear

    (one,) = decode_all(gemm, "awq", config("gemm")).values()
    (other,) = decode_all(packed(AwqGEMVLinear), "awq", config("gemv")).values()
    assert torch.equal(dense_codes(one), dense_codes(other))
    assert torch.equal(one.zeros, other.zeros)
    assert same_bits(one.scales, other.scales)


def test_gemv_fast_codes_and_scaled_zeros(gemm: dict[str, torch.Tensor]) -> None:
    from gptqmodel.nn_modules.qlinear.gemv_fast_awq import AwqGEMVFastLinear

    tensors = packed(AwqGEMVFastLinear)
    _, scales, zeros, codes = parts()
    (weight,) = decode_all(tensors, "awq", config("gemv_fast")).values()
    assert torch.equal(dense_codes(weight), (codes - 8).to(torch.int8))
    wide = scales.repeat_interleave(GROUP, 1)
    offset = (-(scales * zeros)).half().float().repeat_interleave(GROUP, 1)
    assert same_bits(dequantize(weight), codes * wide + offset)
    obstacle = FORMATS["awq"].obstacle(weight)
    assert obstacle is not None
    assert obstacle.rule == "granularity"


@pytest.mark.parametrize("bits", [2, 3, 8])
def test_other_widths_of_gptqmodel(bits: int) -> None:
    from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm, pack_awq

    _, scales, zeros, codes = parts(bits)
    words, zero_words = pack_awq(codes.T.contiguous().int(), zeros.T.contiguous().int(), bits)
    tensors = {f"{NAME}.qweight": words, f"{NAME}.qzeros": zero_words, f"{NAME}.scales": scales.T.half().contiguous()}
    (weight,) = decode_all(tensors, "awq", {**config("gemm"), "bits": bits}).values()
    reference = dequantize_gemm(words, zero_words, tensors[f"{NAME}.scales"], bits, GROUP).T.contiguous()
    assert same_bits(dequantize(weight, torch.float16), reference)


AUTO_ROUND = {
    "auto_round:auto_gptq": ("auto_round_extension.torch.qlinear_torch_zp", "QuantLinear"),
    "auto_round": ("auto_round_extension.torch.qlinear_torch", "QuantLinear"),
    "auto_round:auto_awq": ("auto_round.export.export_to_awq.utils", "WQLinear_GEMM"),
}


@pytest.mark.parametrize("packing", AUTO_ROUND)
@pytest.mark.parametrize("symmetric", [True, False])
def test_auto_round_packings(packing: str, symmetric: bool) -> None:
    import importlib

    module, name = AUTO_ROUND[packing]
    cls = getattr(importlib.import_module(module), name)
    weight, scales, zeros, codes = parts(symmetric=symmetric)
    if not symmetric and "gptq" in packing:  # version 1 cannot hold 0
        zeros = zeros.clamp(min=1)
        weight = (codes - zeros.repeat_interleave(GROUP, 1)) * scales.repeat_interleave(GROUP, 1)
    linear = torch.nn.Linear(IN, OUT, bias=False)
    linear.weight.data = weight
    linear.to(torch.float16)
    if "awq" in packing:
        layer = cls.from_linear(linear, 4, GROUP, False, scales.T.contiguous(), zeros.T.contiguous().int(), "cpu")
    else:
        layer = cls(4, GROUP, IN, OUT, False, weight_dtype=torch.float16)
        layer.device = "cpu"
        layer.pack(linear, scales, zeros, None, device="cpu")
    tensors = {f"{NAME}.{part}": getattr(layer, part).clone() for part in ("qweight", "qzeros", "scales")}
    settings = {"quant_method": "auto-round", "packing_format": packing, "bits": 4, "group_size": GROUP}
    (decoded,) = decode_all(tensors, "auto-round", {**settings, "sym": symmetric}).values()
    assert (decoded.zeros is None) == symmetric
    assert torch.equal(dense_codes(decoded), (codes - 8).to(torch.int8))
    assert torch.equal(dequantize(decoded), weight)
    if packing == "auto_round:auto_gptq":
        written = FORMATS["auto-round"].encode(NAME, decoded)
        assert written.keys() == tensors.keys()
        assert all(same_bits(written[key], tensors[key].to(written[key].dtype)) for key in tensors)


def weight_of(**changes: Any) -> QuantizedTensor:
    fields: dict[str, Any] = {
        "format": WeightFormat(INT4, "group", GROUP),
        "shape": (OUT, IN),
        "codes": torch.zeros(OUT, IN, dtype=torch.int8),
        "scales": torch.ones(OUT, IN // GROUP, dtype=torch.float16),
    }
    return QuantizedTensor(**{**fields, **changes})


OBSTACLES = {
    "act-order": {"group_map": torch.zeros(IN, dtype=torch.int32)},
    "scale-dtype": {"scales": torch.full((OUT, IN // GROUP), 2.0**-26, dtype=torch.bfloat16)},
    "granularity": {"offsets": torch.ones(OUT, IN // GROUP)},
    "scale-rule": {"scale_rule": "inverse"},
    "rank": {"shape": (2, OUT, IN)},
    "padding": {"shape": (OUT - 4, IN)},
}


@pytest.mark.parametrize("rule", OBSTACLES)
def test_what_awq_cannot_hold_is_refused_by_rule_and_layer(rule: str) -> None:
    weight = weight_of(**OBSTACLES[rule])
    obstacle = FORMATS["awq"].obstacle(weight)
    assert obstacle is not None
    assert obstacle.rule == rule
    with pytest.raises(ConversionRefused, match=rf"{NAME}.*\({rule}\)"):
        FORMATS["awq"].encode(NAME, weight)


def test_a_bfloat16_scale_that_float16_holds_is_no_obstacle() -> None:
    weight = weight_of(scales=torch.full((OUT, IN // GROUP), 0.5, dtype=torch.bfloat16))
    assert FORMATS["awq"].obstacle(weight) is None
    assert FORMATS["awq"].encode(NAME, weight)[f"{NAME}.scales"].dtype == torch.float16


def test_unknown_layouts_are_refused() -> None:
    with pytest.raises(CheckpointError, match="version is 'marlin'"):
        FORMATS["awq"].layers(facts_of({}, "awq", config("marlin")))
    with pytest.raises(CheckpointError, match="packing_format is 'auto_round:fp8'"):
        FORMATS["auto-round"].layers(facts_of({}, "auto-round", {"packing_format": "auto_round:fp8"}))


def test_one_config_cannot_say_two_group_sizes() -> None:
    facts = facts_of({}, "gptq")
    groups = {
        "a": WeightFormat(INT4, "group", 32),
        "b": WeightFormat(INT4, "group", 32),
        "c": WeightFormat(INT4, "channel"),
    }
    with pytest.raises(ConversionRefused, match="c has groups of -1, others of 32"):
        FORMATS["awq"].config(groups, ("lm_head",), facts)
    written = FORMATS["gptq"].config(groups, ("lm_head", "model.layers.0.mlp.gate"), facts)
    assert written["dynamic"]["+:^c$"] == {"bits": 4, "group_size": -1, "sym": True}
    assert r"-:^model\.layers\.0\.mlp\.gate$" in written["dynamic"]
