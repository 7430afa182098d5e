"""Recommendations fit, run by the matrix's word, and come with commands."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import quantlab
from quantlab.checkpoint.facts import Scheme, WeightScheme
from quantlab.checkpoint.open import read
from quantlab.cli import main
from quantlab.conversion.presets import find_preset
from quantlab.hardware.memory import footprint
from quantlab.matrix.recommendation import bits_per_weight, recommend, stored_bits

SHAPES = Path(__file__).resolve().parents[2] / "scripts" / "shapes"
LLAMA = SHAPES / "llama-3.1-8b.json"


def test_nothing_that_fails_or_is_unknown_is_recommended():
    found = recommend(LLAMA, gpu="MI250")
    assert {candidate.outcome for candidate in found.candidates} <= {"works", "works-with-fallback"}
    assert {(item.preset, item.engine) for item in found.refused} >= {("fp8", "vllm")}
    assert all(candidate.sources for candidate in found.candidates)


def test_fp8_comes_first_where_it_is_native_and_never_where_it_fails():
    assert recommend(LLAMA, gpu="H200", engine="vllm").best.preset == "fp8"
    assert recommend(LLAMA, gpu="MI300X", engine="vllm").best.preset == "fp8"
    assert recommend(LLAMA, gpu="MI250", engine="vllm").best.preset != "fp8"


def test_memory_decides_what_fits():
    small = recommend(LLAMA, gpu="RTX 3070", engine="vllm")
    assert small.memory_bytes == 8 * 2**30
    assert small.best.weights_bytes < 6.5 * 2**30
    by_preset = {candidate.preset: candidate for candidate in small.candidates}
    assert not by_preset["as it is"].fits
    assert by_preset["as it is"].devices_needed > 1
    assert recommend(LLAMA, gpu="RTX 3070", engine="vllm", context=131072, batch=8).best is None


def test_the_decode_limit_is_bandwidth_over_bytes():
    dense = next(item for item in recommend(LLAMA, gpu="H200", engine="vllm").candidates if item.preset == "as it is")
    assert dense.decode_limit == pytest.approx(4.8e12 / (16.06e9 - 2 * 525e6 + 4096 * 131072), rel=0.02)


def test_weights_that_the_engine_multiplies_out_take_the_dense_model_s_memory():
    by_preset = {item.preset: item for item in recommend(LLAMA, gpu="RTX 3090", engine="transformers").candidates}
    dense, fp8, gptq = by_preset["as it is"], by_preset["fp8"], by_preset["gptq"]
    assert fp8.mode == "dequantized"
    assert (fp8.weights_bytes, fp8.decode_limit) == (dense.weights_bytes, dense.decode_limit)
    assert gptq.weights_bytes < dense.weights_bytes / 2
    assert recommend(LLAMA, gpu="RTX 3070", engine="transformers").best.mode != "dequantized"
    order = list(by_preset)
    assert order.index("gptq") < order.index("fp8")


def test_group_sizes_fit_the_model_and_stand_in_the_command(sample_model):
    found = recommend(sample_model, gpu="RTX 3090", engine="vllm")
    gptq = next(item for item in found.candidates if item.preset == "gptq")
    assert "--set group_size=64" in gptq.commands[0]
    assert "--gpu sm_86 --engine vllm" in gptq.commands[0]
    words = gptq.commands[0].split()
    find_preset(words[words.index("--to") + 1], {"group_size": 64})


def test_a_quantized_checkpoint_is_offered_as_it_is_and_multiplied_out(tmp_path):
    config = json.loads(LLAMA.read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3",
                                     "activation_scheme": "dynamic"}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    on_hopper = recommend(tmp_path, gpu="H100", engine="vllm")
    assert on_hopper.best.preset == "as it is"
    assert {item.preset for item in on_hopper.candidates} == {"as it is", "bf16"}
    on_cdna2 = recommend(tmp_path, gpu="MI250", engine="vllm")
    assert on_cdna2.best.preset == "bf16"


def test_stored_bytes_of_dense_layers_and_packed_experts_are_counted_as_they_are():
    facts = read(str(SHAPES / "qwen3-30b-a3b.json"))
    experts, attention = 10_000_000, 1_000_000
    stored = replace(
        facts,
        scheme=Scheme(weights=WeightScheme(4, "float", "group", 32, True, "float4_e2m1", "e8m0")),
        parameters={"experts": experts, "attention": attention, "total": experts + attention},
        bytes={"experts": experts * 17 // 32, "attention": attention * 2},
    )
    assert stored_bits(stored) == (16.0, 4.25)
    size = footprint(stored, bits_per_weight=16.0, bits_per_expert=4.25, context=1, batch=1)
    assert size.weights == sum(stored.bytes.values())
    assert stored_bits(replace(stored, parameters={}, bytes={})) == (4.25, 4.25)


def test_bits_of_a_weight_include_its_scales():
    assert bits_per_weight(WeightScheme(4, "int", "group", 128, True)) == 4.125
    assert bits_per_weight(WeightScheme(4, "int", "group", 128, False)) == pytest.approx(4.15625)
    assert bits_per_weight(WeightScheme(4, "float", "group", 32, True, "float4_e2m1", "e8m0")) == 4.25
    assert bits_per_weight(WeightScheme(8, "float", "channel")) == 8


def test_the_command_prints_the_api_s_answer_and_its_exit_code(capsys):
    assert main(["recommend", str(LLAMA), "--gpu", "H200", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(
        json.dumps(quantlab.recommend(LLAMA, gpu="H200").to_dict())
    )
    assert main(["recommend", str(LLAMA), "--gpu", "H200", "--all"]) == 0
    assert "not recommended:" in capsys.readouterr().out
    assert main(["recommend", str(LLAMA), "--gpu", "RTX 3070", "--context", "131072", "--batch", "64"]) == 1
    assert main(["recommend", str(LLAMA), "--gpu", "H200", "--context", "0"]) == 2
    assert main(["recommend", str(LLAMA), "--gpu", "H201"]) == 2
    assert "H200" in capsys.readouterr().err


def test_every_conversion_that_a_verdict_offers_is_a_preset():
    from quantlab.conversion.presets import preset_names
    from quantlab.matrix.data import section

    assert set(section("words")["ways_out"]) <= set(preset_names())
