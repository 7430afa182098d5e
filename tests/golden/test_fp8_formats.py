"""fp8 (DeepSeek, Qwen, AutoFP8), fnuz, fbgemm and modelopt: decode against the libraries, encode to the same bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from quantlab.checkpoint.facts import ActivationScheme, CheckpointFacts, Scheme
from quantlab.errors import CheckpointError, ConversionRefused
from quantlab.formats import FORMATS
from quantlab.formats.interface import FormatCodec
from quantlab.tensors.dequantize import dequantize
from quantlab.tensors.number_types import FP4_E2M1, FP8_E4M3FN
from quantlab.tensors.quantize import quantize
from quantlab.tensors.quantized import QuantizedTensor, WeightFormat
from tests.awkward import awkward, checkpoint, same_bits

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

NAME = "model.layers.0.mlp.down_proj"
DEEPSEEK = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
BLOCK = WeightFormat(FP8_E4M3FN, "block", block=(128, 128), scale_type="float32")
GOLDEN = Path(__file__).parent / "data" / "modelopt-0.37.0.safetensors"


def decode(codec: FormatCodec, tensors: dict[str, torch.Tensor], config: dict[str, Any] | None) -> QuantizedTensor:
    (layer,) = codec.layers(checkpoint(tensors, codec.id, config))
    return codec.decode(layer, {role: tensors[name] for role, name in layer.tensors.items()})


def _transformers_dense(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    return Fp8Dequantize(None)._dequantize_one(codes, scale)


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16, torch.float8_e8m0fnu], ids=str)
def test_blocks_decode_as_transformers_does(scale_dtype: torch.dtype) -> None:
    codec = FORMATS["fp8"]
    codes = awkward(256, 384, torch.float32).clamp(-440, 440).to(torch.float8_e4m3fn)
    scale = (torch.rand(2, 3, generator=torch.Generator().manual_seed(0)) + 0.01).to(scale_dtype)
    stored = {f"{NAME}.weight": codes, f"{NAME}.weight_scale_inv": scale}
    weight = decode(codec, stored, DEEPSEEK)
    assert weight.format == BLOCK
    assert same_bits(dequantize(weight, torch.bfloat16), _transformers_dense(codes, scale).to(torch.bfloat16))
    again = codec.encode(NAME, weight)
    assert again.keys() == stored.keys()
    assert all(same_bits(again[name], stored[name]) for name in stored)


def test_blocks_that_reach_beyond_the_edge_are_cut() -> None:
    codec = FORMATS["fp8"]
    weight = quantize(awkward(192, 576), BLOCK)
    assert weight.scales.shape == (2, 5)
    stored = codec.encode(NAME, weight)
    dense = dequantize(decode(codec, stored, DEEPSEEK))
    codes, scales = stored[f"{NAME}.weight"].float(), stored[f"{NAME}.weight_scale_inv"]
    assert torch.equal(dense[130, 570], codes[130, 570] * scales[1, 4])
    assert torch.equal(dense[127, 127], codes[127, 127] * scales[0, 0])


def test_transformers_opens_our_blocks(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=64,
        torch_dtype="bfloat16",
    )
    model = LlamaForCausalLM(shape).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    codec, tensors, schemes, dense = FORMATS["fp8"], {}, {}, {}
    for name, tensor in model.state_dict().items():
        if not name.endswith("_proj.weight"):
            tensors[name] = tensor
            continue
        weight = quantize(tensor, BLOCK)
        module = name.removesuffix(".weight")
        schemes[module] = weight.format
        dense[name] = dequantize(weight, torch.bfloat16)
        tensors |= codec.encode(module, weight)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = codec.config(schemes, ("lm_head",), checkpoint({}, "dense", None))
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    for name, tensor in loaded.state_dict().items():
        if name in dense:
            assert same_bits(tensor, dense[name]), name


def test_one_scale_a_tensor_with_static_inputs_goes_round() -> None:
    codec = FORMATS["fp8"]
    for shape in ((), (1,)):
        stored = {
            f"{NAME}.weight": awkward(64, 96, torch.float32).clamp(-440, 440).to(torch.float8_e4m3fn),
            f"{NAME}.weight_scale": torch.full(shape, 0.0123),
            f"{NAME}.input_scale": torch.full(shape, 0.5),
        }
        weight = decode(codec, stored, {"quant_method": "fp8", "activation_scheme": "static"})
        assert weight.format.granularity == "tensor"
        dense = stored[f"{NAME}.weight"].float() * 0.0123
        assert same_bits(dequantize(weight), dense)
        again = codec.encode(NAME, weight)
        assert all(same_bits(again[name].reshape(tensor.shape), tensor) for name, tensor in stored.items())
    static = CheckpointFacts(
        "memory", "fp8", Scheme(activations=ActivationScheme(8, "float", "tensor", None, False)), _architecture()
    )
    config = codec.config({NAME: weight.format}, ("lm_head",), static)
    assert (config["activation_scheme"], config["weight_block_size"]) == ("static", None)
    assert config["modules_to_not_convert"] == ["lm_head"]


def _architecture() -> Any:
    return checkpoint({}, "dense", None).architecture


def test_the_scale_of_a_norm_or_cache_is_no_layer() -> None:
    codec = FORMATS["fp8"]
    stored = codec.encode(NAME, quantize(awkward(128, 128), BLOCK))
    extra = {"model.norm.scale": torch.ones(4), "model.layers.0.self_attn.k_scale": torch.ones(1)}
    assert len(codec.layers(checkpoint(stored | extra, "fp8", DEEPSEEK))) == 1


@pytest.mark.parametrize(
    ("role", "tensor", "words"),
    [
        ("weight_scale_inv", torch.ones(3, 3), "has shape"),
        ("weight_scale_inv", torch.ones(2, 3, dtype=torch.int32), "is I32"),
        ("weight", torch.ones(256, 384, dtype=torch.bfloat16), "is BF16"),
        ("weight_scale_inv", torch.tensor([[1, 1, float("inf")]] * 2), "holds NaN or infinity at"),
        ("weight", None, "has no .*beside it"),
    ],
)
def test_broken_blocks_name_the_tensor(role: str, tensor: torch.Tensor | None, words: str) -> None:
    codec = FORMATS["fp8"]
    stored = codec.encode(NAME, quantize(awkward(256, 384), BLOCK))
    if tensor is None:
        del stored[f"{NAME}.{role}"]
    else:
        stored[f"{NAME}.{role}"] = tensor
    with pytest.raises(CheckpointError, match=f"{NAME}.*{words}"):
        decode(codec, stored, DEEPSEEK)


def test_different_blocks_do_not_fit_one_config() -> None:
    with pytest.raises(ConversionRefused, match="one weight_block_size"):
        FORMATS["fp8"].config({"a": BLOCK, "b": WeightFormat(FP8_E4M3FN, "tensor")}, (), checkpoint({}, "dense", None))


# ---- fnuz ----


def _all_bytes(scale: float = 0.03125) -> QuantizedTensor:
    """Return every e4m3fn byte but NaN."""
    octets = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    octets[[0x7F, 0xFF]] = 0x7E
    scheme = WeightFormat(FP8_E4M3FN, "block", block=(128, 128))
    return QuantizedTensor(scheme, (1, 256), octets.view(1, 256).view(torch.float8_e4m3fn), torch.full((1, 2), scale))


def test_every_number_survives_the_way_to_fnuz_and_back() -> None:
    source = _all_bytes()
    stored = FORMATS["fp8-fnuz"].encode(NAME, source)
    assert stored[f"{NAME}.weight"].dtype == torch.float8_e4m3fnuz
    assert torch.equal(stored[f"{NAME}.weight_scale_inv"], source.scales * 2)
    there = decode(FORMATS["fp8-fnuz"], stored, DEEPSEEK)
    assert torch.equal(dequantize(there), dequantize(source))
    assert FORMATS["fp8"].obstacle(there) is None
    back = decode(FORMATS["fp8"], FORMATS["fp8"].encode(NAME, there), DEEPSEEK)
    assert torch.equal(dequantize(back), dequantize(source))
    octets, original = back.codes.view(torch.uint8), source.codes.view(torch.uint8)
    assert torch.equal(octets[original != 0x80], original[original != 0x80])
    assert (octets[original == 0x80] == 0).all()


@pytest.mark.parametrize("octet", [0x7F, 0xFF])
@pytest.mark.parametrize("target", ["fp8", "fp8-fnuz", "compressed-tensors/float-quantized"])
def test_bytes_that_change_their_meaning_are_an_obstacle(octet: int, target: str) -> None:
    weight = _all_bytes()
    if target != "fp8-fnuz":
        weight = decode(FORMATS["fp8-fnuz"], FORMATS["fp8-fnuz"].encode(NAME, weight), DEEPSEEK)
    weight.codes.view(torch.uint8)[0, 7] = octet
    obstacle = FORMATS[target].obstacle(weight)
    assert obstacle is not None
    assert obstacle.rule == "fnuz"


def test_nan_of_fnuz_is_an_obstacle_and_a_tiny_scale_too() -> None:
    weight = decode(FORMATS["fp8-fnuz"], FORMATS["fp8-fnuz"].encode(NAME, _all_bytes()), DEEPSEEK)
    weight.codes.view(torch.uint8)[0, 7] = 0x80
    assert FORMATS["fp8"].obstacle(weight) is not None
    largest = _all_bytes(3e38)
    obstacle = FORMATS["fp8-fnuz"].obstacle(largest)
    assert obstacle is not None
    assert "doubled" in obstacle.reason


def test_vllm_and_we_mean_the_same_by_fnuz() -> None:
    """torch's own cast of fnuz bytes is the reference for what hardware reads."""
    stored = FORMATS["fp8-fnuz"].encode(NAME, _all_bytes(1.0))
    by_torch = stored[f"{NAME}.weight"].float() * 2.0
    assert torch.equal(by_torch, dequantize(_all_bytes(1.0)))


# ---- fbgemm ----


def test_fbgemm_rows_go_round_and_come_from_compressed_tensors() -> None:
    codec, scheme = FORMATS["fbgemm_fp8"], WeightFormat(FP8_E4M3FN, "channel")
    weight = quantize(awkward(64, 96), scheme)
    stored = codec.encode(NAME, weight)
    assert stored[f"{NAME}.weight_scale"].dtype == torch.float32
    assert stored[f"{NAME}.weight_scale"].shape == (64, 1)
    config = codec.config({NAME: weight.format}, ("lm_head",), checkpoint({}, "dense", None))
    assert config == {
        "quant_method": "fbgemm_fp8",
        "activation_scale_ub": 1200.0,
        "modules_to_not_convert": ["lm_head"],
    }
    decoded = decode(codec, stored, config)
    assert same_bits(dequantize(decoded), dequantize(weight))
    assert codec.obstacle(quantize(awkward(128, 128), BLOCK)) is not None
    stored[f"{NAME}.weight_scale"] = torch.ones(64, 2)
    with pytest.raises(CheckpointError, match="one scale a row"):
        decode(codec, stored, config)


# ---- modelopt ----


@pytest.mark.parametrize("kind", ["nvfp4", "fp8", "fp8_pc_pt"])
def test_modelopt_decodes_to_the_numbers_of_modelopt(kind: str) -> None:
    golden, codec = load_file(GOLDEN), FORMATS["modelopt"]
    stored = {f"{NAME}.{role}": golden[f"{kind}.{role}"] for role in ("weight", "weight_scale")}
    if kind == "nvfp4":
        stored[f"{NAME}.weight_scale_2"] = golden["nvfp4.weight_scale_2"]
    if kind != "fp8_pc_pt":
        stored[f"{NAME}.input_scale"] = torch.tensor(0.01)
    weight = decode(codec, stored, {"quant_method": "modelopt"})
    # equal as numbers: modelopt's table has +0 for the code of minus zero
    assert torch.equal(dequantize(weight), golden[f"{kind}.dense"])
    assert codec.obstacle(weight) is None
    again = codec.encode(NAME, weight)
    assert again.keys() == stored.keys()
    assert all(same_bits(again[name], stored[name]) for name in stored)


def test_modelopt_and_compressed_tensors_differ_by_one_rounding_of_the_global_scale() -> None:
    weight = quantize(awkward(24, 64), WeightFormat(FP4_E2M1, "group", 16))
    theirs, mine = FORMATS["compressed-tensors/nvfp4-pack-quantized"], FORMATS["modelopt"]
    stored = mine.encode(NAME, weight)
    there = decode(mine, stored, {"quant_method": "modelopt"})
    back = theirs.encode(NAME, there)
    factor = back[f"{NAME}.weight_global_scale"]
    torch.testing.assert_close(factor, weight.global_scale_stored, rtol=2**-23, atol=0)
    torch.testing.assert_close(dequantize(there), dequantize(weight), rtol=2**-22, atol=0)
    first = theirs.encode(NAME, weight)
    for role in ("weight_packed", "weight_scale"):
        assert same_bits(back[f"{NAME}.{role}"], first[f"{NAME}.{role}"])


def test_modelopt_configs_name_the_algorithm_of_each_layer() -> None:
    codec, dense = FORMATS["modelopt"], checkpoint({}, "dense", None)
    nvfp4, fp8 = WeightFormat(FP4_E2M1, "group", 16), WeightFormat(FP8_E4M3FN, "tensor")
    assert codec.config({"a": nvfp4}, (), dense)["quant_algo"] == "W4A16_NVFP4"
    assert codec.config({"a": fp8}, ("lm_head",), dense)["ignore"] == ["lm_head"]
    mixed = codec.config({"a": nvfp4, "b": fp8}, (), dense)
    assert mixed["quant_algo"] == "MIXED_PRECISION"
    assert mixed["quantized_layers"]["a"] == {"quant_algo": "W4A16_NVFP4", "group_size": 16}


def test_modelopt_refuses_what_it_cannot_say() -> None:
    codec = FORMATS["modelopt"]
    dynamic = quantize(awkward(64, 96), WeightFormat(FP8_E4M3FN, "tensor"))
    obstacle = codec.obstacle(dynamic)
    assert obstacle is not None
    assert obstacle.rule == "input-scale"
    golden = load_file(GOLDEN)
    stored = {f"{NAME}.{role}": golden[f"nvfp4.{role}"] for role in ("weight", "weight_scale", "weight_scale_2")}
    stored[f"{NAME}.pre_quant_scale"] = torch.ones(64)
    with pytest.raises(ConversionRefused, match="scales the inputs"):
        decode(codec, stored, {"quant_method": "modelopt"})
    del stored[f"{NAME}.pre_quant_scale"], stored[f"{NAME}.weight_scale_2"]
    with pytest.raises(CheckpointError, match="weight_scale_2 beside it"):
        decode(codec, stored, {"quant_method": "modelopt"})
