"""Quark: layers that Quark 0.13 exported (``scripts/golden/make_quark.py``), decoded as Quark itself decodes them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from quantlab.checkpoint.facts import ActivationScheme, Architecture, Scheme
from quantlab.errors import CheckpointError, ConversionRefused
from quantlab.formats import FORMATS
from quantlab.tensors.dequantize import dense_codes, dequantize
from quantlab.tensors.number_types import FP8_E4M3FN, INT4
from quantlab.tensors.quantize import quantize
from quantlab.tensors.quantized import QuantizedTensor, WeightFormat
from tests.golden.layer_reading import awkward, decode_all, facts_of, same_bits

GOLDEN = Path(__file__).parent / "data" / "quark.safetensors"
SCHEMES = ("fp8", "ptpc_fp8", "int4_wo_32", "uint4_wo_32", "int4_wo_per_channel", "int8", "mxfp4_weight_only")
CODEC = FORMATS["quark"]


def golden(scheme: str) -> tuple[dict[str, torch.Tensor], torch.Tensor, dict[str, Any]]:
    """Return a layer's tensors, Quark's own dense weight and the config."""
    with safe_open(GOLDEN, "pt") as file:
        names = [name for name in file.keys() if name.startswith(f"{scheme}/")]  # noqa: SIM118 - safetensors needs keys()
        tensors = {name.removeprefix(f"{scheme}/"): file.get_tensor(name) for name in names}
        config = json.loads(file.metadata()[scheme])
    return tensors, tensors.pop("reference"), config


def decoded(scheme: str) -> QuantizedTensor:
    tensors, _, config = golden(scheme)
    (weight,) = decode_all(tensors, "quark", config).values()
    return weight


@pytest.mark.parametrize("scheme", SCHEMES)
def test_decode_equals_quark(scheme: str) -> None:
    _, reference, _ = golden(scheme)
    assert same_bits(dequantize(decoded(scheme), reference.dtype), reference)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_encode_gives_the_same_bytes(scheme: str) -> None:
    tensors, _, _ = golden(scheme)
    weight = decoded(scheme)
    for plain in (weight, weight.with_codes(dense_codes(weight))):
        written = CODEC.encode("layer", plain)
        assert written.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert same_bits(written[name], tensor), name


@pytest.mark.parametrize("scheme", SCHEMES)
def test_config_says_the_same_weight_and_export(scheme: str) -> None:
    _, _, config = golden(scheme)
    weight = decoded(scheme)
    written = CODEC.config({"layer": weight.format}, ("lm_head",), facts_of({}, "quark"))
    ours, theirs = (one["global_quant_config"]["weight"] for one in (written, config))
    for key in ("dtype", "qscheme", "group_size", "symmetric", "scale_format", "is_dynamic"):
        assert ours[key] == theirs[key], key
    assert written["export"].keys() == config["export"].keys()
    assert written["exclude"] == config["exclude"]


def test_activations_are_said_as_quark_says_them() -> None:
    for scheme, dynamic in (("fp8", False), ("ptpc_fp8", True)):
        _, _, config = golden(scheme)
        stated = ActivationScheme(bits=8, type="float", dynamic=dynamic)
        facts = facts_of({}, "quark", scheme=Scheme(activations=stated))
        written = CODEC.config({"layer": decoded(scheme).format}, (), facts)["global_quant_config"]["input_tensors"]
        theirs = config["global_quant_config"]["input_tensors"]
        for key in ("dtype", "qscheme", "is_dynamic", "ch_axis"):
            assert written[key] == theirs[key], key


def test_symmetric_int4_goes_to_gptq_and_pack_quantized_and_back() -> None:
    tensors, _, _ = golden("int4_wo_32")
    weight = replace(decoded("int4_wo_32"))
    for target in ("compressed-tensors/pack-quantized", "gptq"):
        half = replace(weight, scales=weight.scales.clamp(min=2.0**-14)) if target == "gptq" else weight
        codec = FORMATS[target]
        assert codec.obstacle(half) is None
        if target == "gptq":
            facts = {"bits": 4, "group_size": 32, "sym": True}
            (back,) = decode_all(codec.encode("layer", half), "gptq", facts).values()
            again = CODEC.encode("layer", replace(back, scales=weight.scales))
            assert all(same_bits(again[name], tensors[name]) for name in tensors)


def test_layers_of_their_own_scheme() -> None:
    int4, fp8 = decoded("int4_wo_32"), decoded("ptpc_fp8")
    config = CODEC.config({"a": int4.format, "b": int4.format, "c": fp8.format}, (), facts_of({}, "quark"))
    tensors = CODEC.encode("a", int4) | CODEC.encode("c", fp8)
    back = decode_all(tensors, "quark", config)
    assert back["a"].format == int4.format
    assert same_bits(dequantize(back["c"]), dequantize(fp8))


BREAKS: dict[str, Any] = {
    "wrong scales": (
        lambda t, c: t.update({"layer.weight_scale": t["layer.weight_scale"][:-1]}),
        r"weight_scale: shape is",
    ),
    "bytes for words": (
        lambda t, c: t.update({"layer.weight": t["layer.weight"].to(torch.int8)}),
        r"dtype is I8, expected I32",
    ),
    "unknown scheme": (lambda t, c: c["global_quant_config"]["weight"].update(dtype="mx6"), r"specification is mx6"),
    "two stages": (
        lambda t, c: c["global_quant_config"].update(weight=[c["global_quant_config"]["weight"]] * 2),
        r"quantized in 2 stages",
    ),
    "NaN scale": (lambda t, c: t["layer.weight_scale"].__setitem__((0, 0), float("nan")), r"a scale is not a finite"),
}


@pytest.mark.parametrize("case", BREAKS)
def test_a_broken_layer_names_tensor_and_rule(case: str) -> None:
    tensors, _, config = golden("int4_wo_32")
    breaks, message = BREAKS[case]
    breaks(tensors, config)
    with pytest.raises(CheckpointError, match=message):
        decode_all(tensors, "quark", config)


def test_what_quark_cannot_hold() -> None:
    block = quantize(awkward(128, 128), WeightFormat(FP8_E4M3FN, "block", block=(128, 128)))
    with pytest.raises(ConversionRefused, match=r"not written with blocks of float8_e4m3fn \(granularity\)"):
        CODEC.encode("layer", block)
    odd = quantize(awkward(12, 64), WeightFormat(INT4, "group", 32))
    with pytest.raises(ConversionRefused, match=r"12 x 64 is no multiple \(padding\)"):
        CODEC.encode("layer", odd)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["int4 group", "uint4 group", "int4 channel", "fp8 channel"])
def test_transformers_and_quark_open_what_is_encoded(name: str, tmp_path: Path) -> None:
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    scheme = {
        "int4 group": WeightFormat(INT4, "group", 32),
        "uint4 group": WeightFormat(INT4, "group", 32, symmetric=False),
        "int4 channel": WeightFormat(INT4, "channel"),
        "fp8 channel": WeightFormat(FP8_E4M3FN, "channel"),
    }[name]
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "vocab_size": 64}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)).bfloat16()
    tensors, schemes, dense = {}, {}, {}
    for key, tensor in model.state_dict().items():
        module = key.removesuffix(".weight")
        if "_proj." not in key:
            tensors[key] = tensor.clone()
            continue
        weight = quantize(tensor, scheme)
        schemes[module], dense[module] = weight.format, dequantize(weight, torch.bfloat16)
        tensors |= CODEC.encode(module, weight)
    save_file(
        {key: tensor.contiguous() for key, tensor in tensors.items()}, tmp_path / "model.safetensors", {"format": "pt"}
    )
    facts = facts_of({}, "quark", architecture=Architecture(torch_dtype="bfloat16"))
    config = model.config.to_dict() | {"quantization_config": CODEC.config(schemes, ("lm_head",), facts)}
    (tmp_path / "config.json").write_text(json.dumps(config, default=str))
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for module, expected in dense.items():
        layer = loaded.get_submodule(module)
        quantizer = getattr(layer, "weight_quantizer", None) or layer._weight_quantizer
        assert torch.equal(quantizer(layer.weight).bfloat16(), expected), module
