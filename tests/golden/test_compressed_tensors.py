"""Codecs of compressed-tensors against the library: both ways, bit for bit, and in transformers."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from quantlab.errors import CheckpointError
from quantlab.formats import FORMATS
from quantlab.tensors.dequantize import dequantize
from quantlab.tensors.number_types import FP4_E2M1, FP8_E4M3FN, signed_int
from quantlab.tensors.packing import dense_layout, pack, wasting
from quantlab.tensors.quantize import quantize
from quantlab.tensors.quantized import PackedCodes, QuantizedTensor, WeightFormat
from tests.awkward import awkward, checkpoint, same_bits
from tests.golden import compressed_tensors_library as library

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

NAME = "model.layers.0.self_attn.q_proj"
TOKEN = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True, "symmetric": True}


def _int(bits: int, *, symmetric: bool = True, group: int | None = 64) -> dict[str, Any]:
    strategy = {"strategy": "channel"} if group is None else {"strategy": "group", "group_size": group}
    return {"num_bits": bits, "type": "int", "symmetric": symmetric, **strategy}


CASES: dict[str, tuple[str, dict[str, Any], WeightFormat]] = {
    "fp8 channel": (
        "float-quantized",
        {**library.FP8, "strategy": "channel"},
        WeightFormat(FP8_E4M3FN, "channel"),
    ),
    "fp8 tensor": ("float-quantized", {**library.FP8, "strategy": "tensor"}, WeightFormat(FP8_E4M3FN, "tensor")),
    "fp8 block": (
        "float-quantized",
        {**library.FP8, "strategy": "block", "block_structure": [128, 128]},
        WeightFormat(FP8_E4M3FN, "block", block=(128, 128)),
    ),
    "int8 channel": ("int-quantized", _int(8, group=None), WeightFormat(signed_int(8), "channel")),
    "naive int8": (
        "naive-quantized",
        _int(8, symmetric=False),
        WeightFormat(signed_int(8), "group", 64, symmetric=False),
    ),
    "mxfp8": ("mxfp8-quantized", {**library.FP8, **library.MX}, WeightFormat(FP8_E4M3FN, "group", 32)),
    "mxfp4": (
        "mxfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "symmetric": True, **library.MX},
        WeightFormat(FP4_E2M1, "group", 32),
    ),
    "nvfp4": ("nvfp4-pack-quantized", library.NVFP4, WeightFormat(FP4_E2M1, "group", 16)),
}
for _bits in range(2, 9):
    for _symmetric in (True, False):
        CASES[f"w{_bits} {'sym' if _symmetric else 'asym'}"] = (
            "pack-quantized",
            _int(_bits, symmetric=_symmetric),
            WeightFormat(signed_int(_bits), "group", 64, symmetric=_symmetric),
        )
CASES["w4 channel asym"] = (
    "pack-quantized",
    _int(4, symmetric=False, group=None),
    WeightFormat(signed_int(4), "channel", symmetric=False),
)


def _library_json(layout: str, scheme: dict[str, Any]) -> dict[str, Any]:
    """Write the config with the library itself."""
    from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme

    group = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**scheme), format=layout)
    config = QuantizationConfig(config_groups={"group_0": group}, format=layout, quantization_status="compressed")
    return json.loads(json.dumps({"quant_method": "compressed-tensors", **config.model_dump(mode="json")}))


def _library_layer(layout: str, scheme: dict[str, Any], weight: torch.Tensor) -> dict[str, torch.Tensor]:
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from llmcompressor.entrypoints.model_free.lifecycle import calibrate_weight, initialize_quantized_linear

    whole = QuantizationScheme(
        targets=["Linear"], weights=QuantizationArgs(**scheme, observer="memoryless_minmax"), format=layout
    )
    module = initialize_quantized_linear(weight, whole, "cpu")
    calibrate_weight(module)
    state = {name: value.detach().clone() for name, value in module.state_dict().items()}
    return BaseCompressor.get_value_from_registry(layout).compress(state, whole)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_decodes_what_the_library_wrote_and_writes_the_same_bytes(case: str, dtype: torch.dtype) -> None:
    layout, scheme, expected = CASES[case]
    codec = FORMATS[f"compressed-tensors/{layout}"]
    stored = _library_layer(layout, scheme, awkward(130, 320, dtype))
    named = {f"{NAME}.{role}": tensor for role, tensor in stored.items()}
    facts = checkpoint(named, codec.id, _library_json(layout, scheme), str(dtype).removeprefix("torch."))

    (layer,) = codec.layers(facts)
    assert (layer.name, layer.weight_name, layer.shape) == (NAME, f"{NAME}.weight", (130, 320))
    assert layer.format == expected
    decoded = codec.decode(layer, {role: named[name] for role, name in layer.tensors.items()})
    reference = library.decompress(dict(stored), layout, **scheme)
    assert same_bits(dequantize(decoded, reference.dtype), reference)
    assert codec.obstacle(decoded) is None
    again = codec.encode(NAME, decoded)
    assert set(again) == set(named)
    for name, tensor in named.items():
        assert same_bits(again[name], tensor), name


@pytest.mark.parametrize("case", CASES)
def test_the_library_reads_our_config_as_its_own(case: str) -> None:
    from compressed_tensors.quantization import QuantizationConfig

    layout, scheme, _ = CASES[case]
    codec = FORMATS[f"compressed-tensors/{layout}"]
    weight = quantize(awkward(64, 320), CASES[case][2])
    config = codec.config({NAME: weight.format}, ("lm_head",), checkpoint({}, "dense", None))
    read = QuantizationConfig.model_validate(copy.deepcopy(config))
    theirs = QuantizationConfig.model_validate(_library_json(layout, scheme))
    mine, other = read.config_groups["group_0"].weights, theirs.config_groups["group_0"].weights
    ignored = {"observer", "observer_kwargs"}
    assert mine.model_dump(exclude=ignored) == other.model_dump(exclude=ignored)
    assert read.format == layout
    assert read.ignore == ["lm_head"]


def test_words_of_older_versions_are_told_by_their_width() -> None:
    codec = FORMATS["compressed-tensors/pack-quantized"]
    weight = quantize(awkward(64, 576), WeightFormat(signed_int(3), "group", 64))
    assert isinstance(weight.codes, torch.Tensor)
    dense = codec.encode(NAME, weight)
    assert dense[f"{NAME}.weight_packed"].shape == (64, 54)
    old = {**dense, f"{NAME}.weight_packed": pack(weight.codes, wasting(dense_layout(3))).words}
    assert old[f"{NAME}.weight_packed"].shape == (64, 58)
    facts = checkpoint(old, codec.id, _library_json("pack-quantized", _int(3)))
    (layer,) = codec.layers(facts)
    decoded = codec.decode(layer, {role: old[name] for role, name in layer.tensors.items()})
    assert same_bits(dequantize(decoded), dequantize(weight))
    assert all(same_bits(tensor, dense[name]) for name, tensor in codec.encode(NAME, decoded).items())


def test_act_order_is_decoded_and_not_written() -> None:
    codec = FORMATS["compressed-tensors/pack-quantized"]
    weight = quantize(awkward(64, 128), WeightFormat(signed_int(4), "group", 64))
    order = torch.arange(128, dtype=torch.int32).flip(0) // 64
    stored = {**codec.encode(NAME, weight), f"{NAME}.weight_g_idx": order}
    (layer,) = codec.layers(checkpoint(stored, codec.id, _library_json("pack-quantized", _int(4))))
    decoded = codec.decode(layer, {role: stored[name] for role, name in layer.tensors.items()})
    assert same_bits(dequantize(decoded)[:, :64], _by_group(weight, 1)[:, :64])
    obstacle = codec.obstacle(decoded)
    assert obstacle is not None
    assert obstacle.rule == "act-order"


def _by_group(weight: QuantizedTensor, group: int) -> torch.Tensor:
    assert isinstance(weight.codes, torch.Tensor)
    return weight.codes.float() * weight.scales[:, group : group + 1].float()


def _broken(case: str, edit: Any) -> CheckpointError:
    layout, scheme, _ = CASES[case]
    codec = FORMATS[f"compressed-tensors/{layout}"]
    stored = {f"{NAME}.{role}": t for role, t in _library_layer(layout, scheme, awkward(64, 320)).items()}
    edit(stored)
    with pytest.raises(CheckpointError) as caught:
        _decode_all(codec, stored, _library_json(layout, scheme))
    return caught.value


def _decode_all(codec: Any, stored: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
    for layer in codec.layers(checkpoint(stored, codec.id, config)):
        codec.decode(layer, {role: stored[name] for role, name in layer.tensors.items()})


def _without(role: str) -> Any:
    return lambda tensors: tensors.pop(f"{NAME}.{role}")


def _cut(role: str) -> Any:
    return lambda tensors: tensors.update({f"{NAME}.{role}": tensors[f"{NAME}.{role}"][:-1]})


def _poison(role: str) -> Any:
    return lambda tensors: tensors[f"{NAME}.{role}"].view(-1)[3:4].fill_(float("nan"))


@pytest.mark.parametrize(
    ("case", "edit", "words"),
    [
        ("w4 sym", _without("weight_scale"), "has no .*weight_scale beside it"),
        ("w4 asym", _without("weight_zero_point"), "has no .*weight_zero_point beside it"),
        ("w4 sym", _cut("weight_packed"), "weight_scale has shape"),
        ("w4 asym", _cut("weight_zero_point"), "weight_zero_point has shape"),
        ("w4 sym", _poison("weight_scale"), r"weight_scale holds NaN or infinity at \[0, 3\]"),
        ("fp8 channel", _without("weight"), "has no .*weight beside it"),
        ("fp8 channel", _cut("weight_scale"), "weight_scale has shape"),
        ("fp8 block", _cut("weight_scale"), "block scales"),
        ("fp8 channel", _poison("weight_scale"), "holds NaN"),
        ("nvfp4", _without("weight_global_scale"), "has no .*weight_global_scale beside it"),
        ("nvfp4", _cut("weight_scale"), "weight_scale has shape"),
        ("mxfp4", _without("weight_scale"), "has no .*weight_scale beside it"),
        ("mxfp8", _cut("weight"), "weight_scale has shape"),
    ],
)
def test_a_broken_layer_is_one_error_that_names_the_tensor(case: str, edit: Any, words: str) -> None:
    error = _broken(case, edit)
    assert NAME in error.message
    assert re.search(words, error.message), error.message


def test_mixed_schemes_are_told_apart_by_target() -> None:
    codec = FORMATS["compressed-tensors/pack-quantized"]
    schemes = {"a.q": WeightFormat(signed_int(4), "group", 32), "a.k": WeightFormat(signed_int(4), "group", 32)}
    schemes["a.v"] = WeightFormat(signed_int(8), "channel")
    stored: dict[str, torch.Tensor] = {}
    for number, (name, scheme) in enumerate(schemes.items()):
        stored |= codec.encode(name, quantize(awkward(32, 64, seed=number), scheme))
    config = codec.config(schemes, (), checkpoint({}, "dense", None))
    assert config["config_groups"]["group_1"]["targets"] == ["a.v"]
    found = {layer.name: layer.format for layer in codec.layers(checkpoint(stored, codec.id, config))}
    assert found == schemes


def _mixed() -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return a checkpoint with a format for each layer, and its config as the library validates it."""
    from compressed_tensors.quantization import QuantizationConfig

    stored: dict[str, torch.Tensor] = {}
    groups: dict[str, Any] = {}
    for number, case in enumerate(("fp8 channel", "w4 asym", "int8 channel", "nvfp4", "mxfp4")):
        layout, scheme, _ = CASES[case]
        module = f"model.layers.{number}.proj"
        group = _library_json(layout, scheme)["config_groups"]["group_0"]
        groups[f"group_{number}"] = {**group, "targets": [f"re:.*layers.{number}.*"]}
        tensors = _library_layer(layout, scheme, awkward(64, 320, seed=number))
        stored |= {f"{module}.{role}": tensor for role, tensor in tensors.items()}
    config = {"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": groups, "ignore": []}
    QuantizationConfig.model_validate(copy.deepcopy(config))
    return stored, config


def test_mixed_precision_is_decoded_and_written_layer_by_layer() -> None:
    codec = FORMATS["compressed-tensors/mixed-precision"]
    stored, config = _mixed()
    facts = checkpoint(stored, codec.id, config)
    layers = codec.layers(facts)
    assert [layer.options["member"] for layer in layers] == [
        "float-quantized",
        "pack-quantized",
        "int-quantized",
        "nvfp4-pack-quantized",
        "mxfp4-pack-quantized",
    ]
    again: dict[str, torch.Tensor] = {}
    for layer in layers:
        weight = codec.decode(layer, {role: stored[name] for role, name in layer.tensors.items()})
        assert codec.obstacle(weight) is None
        again |= codec.encode(layer.name, weight)
    assert again.keys() == stored.keys()
    assert all(same_bits(again[name], tensor) for name, tensor in stored.items())
    written = codec.config({layer.name: layer.format for layer in layers}, (), facts)
    assert written["format"] == "mixed-precision"
    reread = codec.layers(checkpoint(again, codec.id, written))
    assert [(layer.name, layer.format, layer.options) for layer in reread] == [
        (layer.name, layer.format, layer.options) for layer in layers
    ]


def test_an_unknown_format_of_a_group_is_named() -> None:
    stored, config = _mixed()
    config["config_groups"]["group_1"]["format"] = "marlin-24"
    with pytest.raises(CheckpointError, match=r"group_1\.format is 'marlin-24'"):
        FORMATS["compressed-tensors/mixed-precision"].layers(checkpoint(stored, "compressed-tensors", config))


def test_fused_experts_keep_their_axis_and_name() -> None:
    experts = torch.stack([awkward(64, 128, seed=seed) for seed in range(3)])
    fused = "model.layers.0.mlp.experts.gate_up_proj"
    for case in ("fp8 channel", "fp8 block", "w4 sym", "w4 asym", "nvfp4", "mxfp4"):
        layout, _, scheme = CASES[case]
        codec = FORMATS[f"compressed-tensors/{layout}"]
        weight = quantize(experts, scheme)
        stored = codec.encode(fused, weight)
        assert all(name.startswith(fused) for name in stored)
        config = codec.config({fused: weight.format}, (), checkpoint({}, "dense", None))
        (layer,) = codec.layers(checkpoint(stored, codec.id, config))
        assert (layer.name, layer.weight_name, layer.shape) == (fused, fused, (3, 64, 128))
        decoded = codec.decode(layer, {role: stored[name] for role, name in layer.tensors.items()})
        assert same_bits(dequantize(decoded), dequantize(weight))


def test_experts_of_gpt_oss_come_out_as_its_dense_checkpoint_has_them() -> None:
    """The model type says that dense experts lie as (experts, in, out); in the quantized file they do not."""
    experts = quantize(torch.stack([awkward(64, 128, seed=seed) for seed in range(2)]), CASES["mxfp4"][2])
    codec, fused = FORMATS["compressed-tensors/mxfp4-pack-quantized"], "model.layers.0.mlp.experts.gate_up_proj"
    stored = codec.encode(fused, experts)
    facts = checkpoint(stored, codec.id, codec.config({fused: experts.format}, (), checkpoint({}, "dense", None)))
    facts = replace(facts, architecture=replace(facts.architecture, model_type="gpt_oss"))
    (layer,) = codec.layers(facts)
    decoded = codec.decode(layer, {role: stored[name] for role, name in layer.tensors.items()})
    dense = FORMATS["dense"].encode(fused, decoded)[fused]
    assert same_bits(dense, dequantize(experts, torch.bfloat16).mT.contiguous())
    assert FORMATS["mxfp4"].obstacle(decoded) is None


def _model(folder: Path) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=64,
        torch_dtype="bfloat16",
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case not in ("w2 sym", "w2 asym", "w5 sym", "w6 sym", "w7 sym")],
)
def test_transformers_loads_it_and_computes_with_our_numbers(case: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    layout, _, scheme = CASES[case]
    codec = FORMATS[f"compressed-tensors/{layout}"]
    model = _model(tmp_path)
    schemes: dict[str, WeightFormat] = {}
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        if name.endswith("_proj.weight"):
            weight = quantize(tensor, scheme)
            module = name.removesuffix(".weight")
            schemes[module] = weight.format
            tensors |= codec.encode(module, weight)
            tensor.copy_(dequantize(weight, torch.bfloat16))
        else:
            tensors[name] = tensor
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = codec.config(schemes, ("lm_head",), checkpoint({}, "dense", None))
    (tmp_path / "config.json").write_text(json.dumps(config))

    loaded, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        for module in loaded.modules():
            if getattr(module, "quantization_scheme", None) is not None:
                module.quantization_enabled = False  # rounding of inputs is the engine's, not the file's
        logits = loaded(torch.arange(16).view(1, -1)).logits  # the first pass decompresses the weights
        for name, tensor in loaded.state_dict().items():
            if name.endswith("_proj.weight"):
                assert same_bits(tensor.to(torch.bfloat16), expected[name]), name
        loaded.load_state_dict(expected, strict=False)
        assert torch.equal(loaded(torch.arange(16).view(1, -1)).logits, logits)


def test_packed_words_travel_without_being_unpacked() -> None:
    codec = FORMATS["compressed-tensors/pack-quantized"]
    weight = quantize(awkward(64, 128), WeightFormat(signed_int(4), "group", 64))
    stored = codec.encode(NAME, weight)
    (layer,) = codec.layers(checkpoint(stored, codec.id, _library_json("pack-quantized", _int(4))))
    decoded = codec.decode(layer, {role: stored[name] for role, name in layer.tensors.items()})
    assert isinstance(decoded.codes, PackedCodes)
    words = codec.encode(NAME, decoded)[f"{NAME}.weight_packed"]
    assert words.data_ptr() == stored[f"{NAME}.weight_packed"].data_ptr()
