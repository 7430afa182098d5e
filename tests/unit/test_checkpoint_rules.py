"""Each rule of inspect: silent on a sound checkpoint, and one clear finding on a broken one."""

import numpy as np
import pytest

from quantlab.checkpoint.inspection import inspect
from quantlab.checkpoint.patterns import compiled, matches
from quantlab.checkpoint.rules import RULES
from tests.unit.made_checkpoints import LLAMA, bf16, dense_tensors, fp8_blocks, gptq, ones, tensor, write

Q = "model.layers.0.self_attn.q_proj"


def found(folder, config, tensors, **more):
    """Return {rule: finding} of a one-shard checkpoint."""
    facts = inspect(write(folder, config, {"model.safetensors": tensors}, **more))
    return {finding.rule: finding for finding in facts.findings}


def experts(count=2, declared=2):
    config, tensors = fp8_blocks()
    for number in range(count):
        base = f"model.layers.0.mlp.experts.{number}.up_proj"
        tensors[f"{base}.weight"] = tensor("F8_E4M3", (32, 64))
        tensors[f"{base}.weight_scale_inv"] = ones((1, 2), "F32")
    return {**config, "num_experts": declared}, tensors


def nf4(absmax=(64,)):
    config = {
        **LLAMA,
        "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    }
    tensors = {**dense_tensors(), f"{Q}.weight": tensor("U8", (2048, 1)), f"{Q}.weight.absmax": ones(absmax, "F32"),
               f"{Q}.weight.quant_map": tensor("F32", (16,)),
               f"{Q}.weight.quant_state.bitsandbytes__nf4": tensor("U8", (80,))}  # fmt: skip
    return config, tensors


@pytest.mark.parametrize("make", [gptq, fp8_blocks, experts, nf4])
def test_a_sound_checkpoint_has_no_findings(tmp_path, make):
    assert found(tmp_path, *make()) == {}


def test_every_rule_is_there():
    assert all(callable(RULES[name]) for name in RULES)


def test_a_missing_shard_and_tensors_that_moved(tmp_path):
    config, tensors = gptq()
    index = {
        **dict.fromkeys(tensors, "model-1.safetensors"),
        "gone": "model-2.safetensors",
        "absent": "model-1.safetensors",
    }
    del index["lm_head.weight"]
    facts = inspect(write(tmp_path, config, {"model-1.safetensors": tensors}, index=index))
    rules = {finding.rule: finding for finding in facts.findings}
    assert set(rules) == {"missing-shard", "missing-tensor", "unlisted-tensor"}
    assert "model-2.safetensors" in rules["missing-shard"].message
    assert "absent" in rules["missing-tensor"].message


def test_tensors_in_another_shard_than_the_index_says(tmp_path):
    config, tensors = gptq()
    shards = {"model-1.safetensors": tensors, "model-2.safetensors": {"extra": ones((2,))}}
    index = {
        **dict.fromkeys(tensors, "model-1.safetensors"),
        "extra": "model-2.safetensors",
        "lm_head.weight": "model-2.safetensors",
    }
    facts = inspect(write(tmp_path, config, shards, index=index))
    assert [finding.rule for finding in facts.findings] == ["misplaced-tensor"]


def test_the_same_tensor_in_two_shards(tmp_path):
    config, tensors = gptq()
    facts = inspect(
        write(tmp_path, config, {"a.safetensors": tensors, "b.safetensors": {"lm_head.weight": ones((96, 64))}})
    )
    assert [finding.rule for finding in facts.findings] == ["duplicate-tensor"]


def test_codes_without_scales_and_scales_without_codes(tmp_path):
    config, tensors = gptq()
    del tensors[f"{Q}.scales"]
    rules = found(tmp_path / "a", config, tensors)
    assert rules["missing-scale"].severity == "error"
    assert Q in rules["missing-scale"].message
    config, tensors = gptq()
    del tensors[f"{Q}.qweight"]
    assert "scale-without-codes" in found(tmp_path / "b", config, tensors)
    config, tensors = gptq()
    del tensors[f"{Q}.qzeros"]
    assert "missing-zero-point" in found(tmp_path / "c", config, tensors)


def test_quantized_weights_that_no_config_declares(tmp_path):
    _, tensors = fp8_blocks()
    finding = found(tmp_path, LLAMA, tensors)["undeclared-quantization"]
    assert finding.severity == "error"
    assert "F8_E4M3" in finding.message


def test_a_config_of_quantization_whose_weights_are_dense(tmp_path):
    config, _ = gptq()
    assert "nothing-quantized" in found(tmp_path, config, {**dense_tensors(), f"{Q}.weight": ones((64, 64))})


@pytest.mark.parametrize(
    ("make", "suffix", "wrong"),
    [
        (gptq, ".scales", ones((4, 64), "F16")),
        (gptq, ".qzeros", tensor("I32", (2, 4))),
        (gptq, ".g_idx", tensor("I32", (65,))),
        (fp8_blocks, ".weight_scale_inv", ones((1, 2), "F32")),
    ],
)
def test_shapes_that_the_config_does_not_describe(tmp_path, make, suffix, wrong):
    config, tensors = make()
    tensors[Q + suffix] = wrong
    finding = found(tmp_path, config, tensors)["packed-shape"]
    assert finding.severity == "error"
    assert str(wrong[1]) in finding.message or str(wrong[1][0]) in finding.message


def test_a_group_size_that_does_not_divide(tmp_path):
    config = {
        **LLAMA,
        "hidden_size": 576,
        "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    }
    finding = {f.rule: f for f in inspect(write(tmp_path, config, {})).findings}["group-size"]
    assert "576" in finding.message
    assert finding.fix == "groups of 64 divide it"


def test_dimensions_of_another_model(tmp_path):
    config, tensors = gptq()
    assert found(tmp_path / "a", {**config, "hidden_size": 128}, tensors)["config-dimension"].severity == "error"
    assert "layers" in found(tmp_path / "b", {**config, "num_hidden_layers": 2}, tensors)["config-dimension"].message
    assert "config-missing" in found(tmp_path / "c", None, tensors)


def test_ignore_entries_that_match_nothing(tmp_path):
    config, tensors = fp8_blocks()
    entries = [
        "lm_head",
        "model.layers.0",
        "re:.*self_attn.*",
        "*.mlp.*",
        "norm",
        "modle.norm",
        "re:.*router.*",
        "visual.*",
    ]
    config["quantization_config"]["modules_to_not_convert"] = entries
    facts = inspect(write(tmp_path, config, {"model.safetensors": tensors}))
    idle = [finding.message for finding in facts.findings if finding.rule == "ignore-matches-nothing"]
    assert [entry for entry in entries if any(repr(entry) in message for message in idle)] == entries[-3:]


def test_patterns_that_could_stall_are_not_run(tmp_path):
    assert compiled(r"(a+)+$") is None
    assert compiled(r"((?:x|xy)*)*") is None
    assert compiled(r".*.*.*.*.*b") is None
    assert compiled("(") is None
    assert matches(r"re:.*mlp\.(gate|up|down)_proj.*", "model.layers.0.mlp.up_proj")
    assert not matches("re:self_attn", "model.self_attn"), "a pattern counts from the first character"
    assert matches("mlp.gate", "model.layers.1.mlp.gate")
    assert not matches("mlp.gate", "model.layers.1.mlp.gate_proj")
    assert not matches("model.layers.1.*", "model.layers.10.mlp")
    config, tensors = fp8_blocks()
    config["quantization_config"]["modules_to_not_convert"] = ["re:(a+)+$"]
    assert found(tmp_path, config, tensors)["ignore-pattern"].severity == "error"


def test_experts_left_in_sixteen_bits(tmp_path):
    config, tensors = fp8_blocks()
    tensors["model.layers.0.mlp.experts.gate_up_proj"] = ones((4, 64, 256))
    finding = found(tmp_path, {**config, "num_experts": 4}, tensors)["unquantized-bulk"]
    assert "experts" in finding.message
    assert "%" in finding.message


def test_declared_kv_scales_that_are_absent_and_the_reverse(tmp_path):
    config, tensors = fp8_blocks()
    config["quantization_config"]["kv_cache_scheme"] = "static"
    assert "kv-scale-missing" in found(tmp_path / "a", config, tensors)
    tensors["model.layers.0.self_attn.k_proj.k_scale"] = ones((1,), "F32")
    assert found(tmp_path / "b", config, tensors) == {}
    del config["quantization_config"]["kv_cache_scheme"]
    assert "kv-scale-undeclared" in found(tmp_path / "c", config, tensors)


def test_an_expert_without_a_scale_and_too_few_experts(tmp_path):
    config, tensors = experts()
    del tensors["model.layers.0.mlp.experts.1.up_proj.weight_scale_inv"]
    finding = found(tmp_path / "a", config, tensors)["expert-incomplete"]
    assert "expert 1" in finding.message
    assert "calibrate" in finding.fix
    assert "expert-count" in found(tmp_path / "b", *experts(count=2, declared=4))


def test_labels_that_loaders_pass_over(tmp_path):
    config, tensors = gptq()
    block = config["quantization_config"]
    block["group_sizes"] = block.pop("group_size")
    finding = found(tmp_path / "a", config, tensors)["ignored-label"]
    assert finding.fix == "did you mean group_size?"
    config, tensors = fp8_blocks()
    config["quantization_config"]["modules_to_not_convert"] = ["lm_head", "...your list..."]
    assert "placeholder" in found(tmp_path / "b", config, tensors)


def test_absmax_saved_after_a_forward_pass(tmp_path):
    finding = found(tmp_path, *nf4(absmax=(1, 64)))["absmax-shape"]
    assert finding.severity == "error"
    assert "[1, 64]" in finding.message


def test_the_dialects_of_fp8(tmp_path):
    config, tensors = fp8_blocks()
    plain = {**config, "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}}
    vllm = {name: content for name, content in tensors.items() if not name.endswith("_scale_inv")}
    theirs = {f"{name}_scale": ones((), "F32") for name in vllm if name.endswith("_proj.weight")}
    finding = found(tmp_path / "vllm", plain, {**vllm, **theirs})["fp8-dialect"]
    assert "2 layers" in finding.message
    assert "transformers" in finding.fix
    inverse = {f"{name}_scale_inv": ones((), "F32") for name in vllm if name.endswith("_proj.weight")}
    assert found(tmp_path / "transformers", plain, {**vllm, **inverse}) == {}


def test_blocks_that_do_not_divide(tmp_path):
    config, tensors = fp8_blocks()
    tensors["model.layers.0.mlp.up_proj.weight"] = tensor("F8_E4M3", (48, 64))
    tensors["model.layers.0.mlp.up_proj.weight_scale_inv"] = ones((2, 2), "F32")
    rules = found(tmp_path, config, tensors)
    assert set(rules) == {"ragged-blocks"}
    assert "[48, 64]" in rules["ragged-blocks"].message


def test_a_projection_that_is_dense_in_one_layer_only(tmp_path):
    config, tensors = gptq()
    tensors["model.layers.1.self_attn.q_proj.weight"] = ones((64, 64))
    config = {**config, "num_hidden_layers": 2}
    rules = found(tmp_path / "a", config, tensors)
    assert set(rules) == {"uneven-layers", "unquantized-bulk"}
    assert "model.layers.1.self_attn.q_proj" in rules["uneven-layers"].message
    for entry in ("model.layers.1", "layers.1.self_attn", "model.layers.1.self_attn.q_proj"):
        config["quantization_config"]["modules_to_not_convert"] = [entry]
        rules = found(tmp_path / entry, config, tensors)
        assert {rule: finding.severity for rule, finding in rules.items()} == {"unquantized-bulk": "info"}


def test_tied_embeddings(tmp_path):
    config, tensors = gptq()
    tied = {**config, "tie_word_embeddings": True}
    assert found(tmp_path / "stored", tied, tensors)["tied-head-stored"].severity == "info"
    other = {**tensors, "lm_head.weight": ones((96, 32))}
    assert found(tmp_path / "differs", tied, other)["tied-head-differs"].severity == "error"
    bare = {name: content for name, content in tensors.items() if name != "lm_head.weight"}
    assert found(tmp_path / "tied", tied, bare) == {}
    assert found(tmp_path / "headless", config, bare)["head-missing"].severity == "error"
    packed = {**bare, "lm_head.qweight": tensor("I32", (8, 96)), "lm_head.qzeros": tensor("I32", (2, 12)),
              "lm_head.scales": ones((2, 96), "F16")}  # fmt: skip
    assert found(tmp_path / "packed", tied, packed)["tied-head-quantized"].severity == "error"


def test_code_and_pickles(tmp_path):
    config, tensors = gptq()
    rules = found(tmp_path / "a", {**config, "auto_map": {"AutoModel": "owner/repo--modeling.Model"}}, tensors)
    assert "owner/repo" in rules["remote-code"].message
    write(tmp_path / "b", config, {})
    (tmp_path / "b" / "pytorch_model.bin").write_bytes(b"\x80\x02.")
    assert {finding.rule for finding in inspect(tmp_path / "b").findings} == {"pickles-only"}


def test_an_adapter(tmp_path):
    facts = inspect(write(tmp_path, None, {}, adapter_config={"base_model_name_or_path": "owner/base"}))
    assert [(finding.rule, "owner/base" in finding.message) for finding in facts.findings] == [("adapter", True)]


DEEP = [
    # values of one scale tensor, dtype, rule, severity
    (np.array([1.0, np.nan, np.inf, 1.0], np.float32), "F32", "scale-not-finite", "error"),
    (np.zeros(4, np.float32), "F32", "scale-zero", "error"),
    (np.array([0.0, 1, 1, 1], np.float32), "F32", "scale-zero", "warning"),
    (np.array([-1.0, 1, 1, 1], np.float32), "F32", "scale-negative", "warning"),
    (bf16([1.0, 1.0, 100.0, 1.0]), "BF16", "scale-absurd", "error"),
    (np.array([1.0, 1.0, np.nan, 1.0], np.float16), "F16", "scale-not-finite", "error"),
]


@pytest.mark.parametrize(("values", "dtype", "rule", "severity"), DEEP)
def test_deep_reads_the_values_of_scales(tmp_path, values, dtype, rule, severity):
    config, tensors = fp8_blocks()
    tensors[f"{Q}.weight_scale_inv"] = tensor(dtype, (2, 2), values)
    folder = write(tmp_path, config, {"model.safetensors": tensors})
    assert inspect(folder).findings == (), "headers alone do not show it"
    findings = inspect(folder, deep=True).findings
    assert [(finding.rule, finding.severity) for finding in findings] == [(rule, severity)]
    assert f"{Q}.weight_scale_inv" in findings[0].message


def test_deep_agrees_with_torch_on_small_floats():
    torch = pytest.importorskip("torch")
    from quantlab.checkpoint.facts import WeightScheme
    from quantlab.checkpoint.scale_values import _widener

    codes = np.arange(256, dtype=np.uint8)
    for word, dtype in (
        ("F8_E4M3", torch.float8_e4m3fn),
        ("F8_E5M2", torch.float8_e5m2),
        ("F8_E8M0", torch.float8_e8m0fnu),
    ):
        _, widen = _widener(word, WeightScheme())
        theirs = torch.from_numpy(codes.copy()).view(dtype).float().numpy()
        np.testing.assert_array_equal(widen(codes), theirs, err_msg=word)


def test_deep_keeps_its_memory_bounded(tmp_path, monkeypatch):
    from quantlab.checkpoint import scale_values

    monkeypatch.setattr(scale_values, "PIECE", 64)
    config, tensors = fp8_blocks()
    tensors[f"{Q}.weight_scale_inv"] = ones((2, 2), "F32")
    tensors["model.layers.0.mlp.up_proj.weight"] = tensor("F8_E4M3", (3200, 64))
    values = np.ones((100, 2), np.float32)
    values[99, 1] = np.nan
    tensors["model.layers.0.mlp.up_proj.weight_scale_inv"] = tensor("F32", (100, 2), values)
    folder = write(tmp_path, config, {"model.safetensors": tensors})
    sizes = []
    real = np.frombuffer
    monkeypatch.setattr(
        scale_values.np, "frombuffer", lambda content, dtype: sizes.append(len(content)) or real(content, dtype)
    )
    assert "1 NaN" in inspect(folder, deep=True).findings[0].message
    assert max(sizes) <= 64
