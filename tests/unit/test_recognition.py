"""Which format and which numbers, from config blocks as the libraries write them."""

import json

import pytest

from quantlab.checkpoint.facts import WeightScheme
from quantlab.checkpoint.recognition import recognise


def weights(block, **config):
    found = recognise({**config, "quantization_config": block})
    return found.format, found.scheme.weights


def ct(weights, layout="pack-quantized", activations=None, **more):
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {"quant_method": "compressed-tensors", "format": layout, "config_groups": {"group_0": group}, **more}


def ao(name, **data):
    return {"quant_method": "torchao", "quant_type": {"default": {"_type": name, "_version": 1, "_data": data}}}


CASES = [
    # block, format, bits, type, granularity, group size, symmetric
    ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}, "gptq", 4, "int", "group", 128, True),
    ({"quant_method": "gptq", "bits": 8, "group_size": -1, "sym": False}, "gptq", 8, "int", "channel", -1, False),
    (
        {"quant_method": "gptq", "bits": 4, "group_size": 64, "checkpoint_format": "gptq_v2"},
        "gptq",
        4,
        "int",
        "group",
        64,
        True,
    ),
    ({"bits": 4, "group_size": 128, "desc_act": True, "sym": True}, "gptq", 4, "int", "group", 128, True),
    (
        {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"},
        "awq",
        4,
        "int",
        "group",
        128,
        False,
    ),
    ({"w_bit": 4, "q_group_size": 64, "zero_point": False, "version": "GEMV"}, "awq", 4, "int", "group", 64, True),
    (
        {"quant_method": "awq", "bits": 4, "group_size": -1, "sym": True, "format": "gemm"},
        "awq",
        4,
        "int",
        "channel",
        -1,
        True,
    ),
    (
        {"quant_method": "intel/auto-round", "bits": 2, "group_size": 32, "sym": False},
        "auto-round",
        2,
        "int",
        "group",
        32,
        False,
    ),
    (
        {"quant_method": "auto-round", "bits": 4, "group_size": 32, "data_type": "mx_fp", "act_bits": 4},
        "auto-round",
        4,
        "float",
        "group",
        32,
        True,
    ),
    (
        ct({"num_bits": 4, "group_size": 128, "symmetric": True}),
        "compressed-tensors/pack-quantized",
        4,
        "int",
        "group",
        128,
        True,
    ),
    (
        ct({"num_bits": 8, "strategy": "channel", "type": "float"}, "float-quantized"),
        "compressed-tensors/float-quantized",
        8,
        "float",
        "channel",
        None,
        True,
    ),
    (
        ct({"num_bits": 8, "strategy": "block", "type": "float", "block_structure": [128, 128]}, "float-quantized"),
        "compressed-tensors/float-quantized",
        8,
        "float",
        "block",
        (128, 128),
        True,
    ),
    (
        ct({"num_bits": 8, "strategy": "block", "type": "float", "block_structure": "128x64"}, "float-quantized"),
        "compressed-tensors/float-quantized",
        8,
        "float",
        "block",
        (128, 64),
        True,
    ),
    (
        ct({"num_bits": 4, "type": "float", "group_size": 32, "strategy": "group"}, "mxfp4-pack-quantized"),
        "compressed-tensors/mxfp4-pack-quantized",
        4,
        "float",
        "group",
        32,
        True,
    ),
    ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8", 8, "float", "tensor", None, True),
    ({"quant_method": "fp8", "weight_block_size": [64, 128]}, "fp8", 8, "float", "block", (64, 128), True),
    ({"quant_method": "mxfp8", "weight_block_size": [1, 32]}, "mxfp8", 8, "float", "group", 32, True),
    ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, "fbgemm_fp8", 8, "float", "channel", None, True),
    ({"quant_method": "mxfp4"}, "mxfp4", 4, "float", "group", 32, True),
    (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
        "bitsandbytes",
        4,
        "nf4",
        "block",
        64,
        True,
    ),
    ({"load_in_4bit": True}, "bitsandbytes", 4, "fp4", "block", 64, True),
    (
        {"quant_method": "bitsandbytes", "load_in_8bit": True, "load_in_4bit": False},
        "bitsandbytes",
        8,
        "int",
        "channel",
        None,
        True,
    ),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt", 4, "float", "group", 16, True),
    ({"quant_method": "modelopt", "quant_algo": "MXFP8"}, "modelopt", 8, "float", "group", 32, True),
    ({"quant_algo": "FP8_PB_WO"}, "modelopt", 8, "float", "block", (128, 128), True),
    ({"quant_algo": "W4A16_AWQ", "group_size": 64, "has_zero_point": True}, "modelopt", 4, "int", "group", 64, False),
    (
        {
            "quant_method": "quark",
            "global_quant_config": {
                "weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}
            },
        },
        "quark",
        4,
        "float",
        "group",
        32,
        True,
    ),
    (
        {
            "quant_method": "quark",
            "global_quant_config": {
                "weight": {"dtype": "uint4", "qscheme": "per_group", "group_size": 128, "symmetric": False}
            },
        },
        "quark",
        4,
        "int",
        "group",
        128,
        False,
    ),
    (
        {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 3, "group_size": 64, "axis": 1}}},
        "hqq",
        3,
        "int",
        "group",
        64,
        False,
    ),
    ({"quant_method": "quanto", "weights": "float8"}, "quanto", 8, "float", "channel", None, True),
    (
        {"quant_method": "aqlm", "in_group_size": 8, "num_codebooks": 2, "nbits_per_codebook": 8},
        "aqlm",
        2,
        "aqlm",
        "channel",
        None,
        True,
    ),
    ({"quant_method": "higgs", "bits": 3, "p": 2, "group_size": 256}, "higgs", 3, "higgs", "group", 256, True),
    ({"quant_method": "spqr", "bits": 3, "beta1": 16}, "spqr", 3, "int", "group", 16, False),
    ({"quant_method": "eetq", "weights": "int8"}, "eetq", 8, "int", "channel", None, True),
    ({"quant_method": "fp_quant", "forward_dtype": "nvfp4"}, "fp_quant", 4, "float", "group", 16, True),
    ({"quant_method": "fouroversix", "dtype": "nvfp4"}, "fouroversix", 4, "float", "group", 16, True),
    ({"quant_method": "gemma", "num_bits": 4}, "gemma", 4, "int", "channel", None, True),
    ({"quant_method": "metal", "bits": 8, "group_size": 32}, "metal", 8, "int", "group", 32, False),
    (
        {"quant_method": "blockwise_int8", "weight_block_size": [128, 64]},
        "blockwise_int8",
        8,
        "int",
        "block",
        (128, 64),
        True,
    ),
    (ao("Int4WeightOnlyConfig", group_size=64), "torchao", 4, "int", "group", 64, False),
    (
        ao("Int8WeightOnlyConfig", group_size=None, granularity={"_type": "PerRow", "_data": {"dim": -1}}),
        "torchao",
        8,
        "int",
        "channel",
        None,
        True,
    ),
    (
        ao("Float8DynamicActivationFloat8WeightConfig", granularity=[{"_type": "PerRow"}, {"_type": "PerRow"}]),
        "torchao",
        8,
        "float",
        "channel",
        None,
        True,
    ),
    (
        {"quant_method": "torchao", "quant_type": "int4_weight_only", "quant_type_kwargs": {"group_size": 32}},
        "torchao",
        4,
        "int",
        "group",
        32,
        False,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: json.dumps(case[0])[:60])
def test_one_scheme(case):
    block, form, bits, kind, granularity, group, symmetric = case
    found, scheme = weights(block)
    assert found == form
    assert (scheme.bits, scheme.type, scheme.granularity, scheme.group_size, scheme.symmetric) == (
        bits,
        kind,
        granularity,
        group,
        symmetric,
    )


def test_a_config_without_quantization_is_dense():
    assert recognise({"model_type": "llama"}).format == "dense"
    nothing = {"quant_method": None, "weight_block_size": None, "ignored_layers": []}
    assert recognise({"quantization_config": nothing}).format == "dense"


@pytest.mark.parametrize(
    "config",
    [
        {"quantization_config": {"quant_method": "hadamard_rco", "bits": 4}},
        {"architectures": ["Model4bitForCausalLM"]},
        {"quantization_bit": 4},
        {"quantization_config": [1, 2]},
    ],
)
def test_what_nobody_knows_is_unknown_and_said(config):
    found = recognise(config)
    assert found.format == "unknown"
    assert found.scheme.weights is None
    assert found.findings


def test_a_config_inside_text_config_is_found():
    block = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True}
    found = recognise({"model_type": "vl", "text_config": {"hidden_size": 512, "quantization_config": block}})
    assert (found.format, found.where) == ("gptq", "config.json: text_config.quantization_config")
    assert found.architecture.hidden_size == 512
    assert [finding.rule for finding in found.findings] == ["nested-config"]


def test_a_companion_alone_tells_the_format():
    found = recognise(
        {"model_type": "llama"}, {"quantize_config.json": {"bits": 4, "group_size": 128, "desc_act": False}}
    )
    assert (found.format, found.scheme.weights.group_size) == ("gptq", 128)
    found = recognise(
        {}, {"hf_quant_config.json": {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}}
    )
    assert (found.format, found.scheme.kv_cache.dtype) == ("modelopt", "float8_e4m3fn")
    found = recognise(
        {}, {"params.json": {"dim": 5120, "quantization": {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"}}}
    )
    assert (found.format, found.scheme.weights.granularity) == ("mistral", "tensor")


def test_a_companion_that_contradicts_is_a_finding():
    block = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
    same = recognise({"quantization_config": block}, {"quantize_config.json": {**block}})
    assert same.findings == ()
    other = recognise({"quantization_config": block}, {"quantize_config.json": {**block, "bits": 8, "desc_act": True}})
    assert [(finding.rule, finding.severity) for finding in other.findings] == [("companion-contradicts", "error")] * 2
    assert "8-bit" in other.findings[0].message
    assert "4-bit" in other.findings[0].message


def test_a_companion_of_another_format_is_a_finding():
    found = recognise(
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
        {"hf_quant_config.json": {"quantization": {"quant_algo": "NVFP4"}}},
    )
    assert [finding.rule for finding in found.findings] == ["companion-contradicts"]


def test_a_missing_quant_method_is_an_error_where_transformers_loads_the_format():
    block = ct({"num_bits": 4, "group_size": 32})
    del block["quant_method"]
    finding = recognise({"quantization_config": block}).findings[0]
    assert (finding.rule, finding.severity) == ("missing-quant-method", "error")
    assert "compressed-tensors" in finding.fix


def test_experts_in_other_numbers_make_a_mixed_scheme_whose_main_part_they_are():
    found = recognise(
        {"expert_dtype": "fp4", "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    )
    assert found.scheme.mixed
    assert {group.weights.bits for group in found.scheme.groups} == {4, 8}
    assert found.scheme.weights.bits == 4


def test_module_overrides_make_groups_and_sixteen_bits_means_ignored():
    block = {
        "quant_method": "auto-round",
        "bits": 4,
        "group_size": 128,
        "sym": True,
        "extra_config": {"lm_head": {"bits": 16}, "model.layers.0.mlp.up_proj": {"bits": 8}},
    }
    found = recognise({"quantization_config": block})
    assert found.ignore == ("lm_head",)
    assert [group.weights.bits for group in found.scheme.groups] == [4, 8]
    block = {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 128,
        "dynamic": {"-:.*gate$": {}, "+:.*down$": {"bits": 8}},
    }
    found = recognise({"quantization_config": block})
    assert found.ignore == (".*gate$",)
    assert found.scheme.mixed


def test_groups_of_the_same_numbers_are_one_and_not_mixed():
    weight = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "symmetric": True}
    layer = {"weight": weight, "output_tensors": {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False}}
    block = {
        "quant_method": "quark",
        "global_quant_config": {"weight": weight},
        "layer_quant_config": {"*k_proj": layer},
    }
    found = recognise({"quantization_config": block})
    assert not found.scheme.mixed
    assert len(found.scheme.groups) == 1
    assert found.scheme.kv_cache.dtype == "float8_e4m3fn"


def test_modelopt_mixed_precision_names_its_layers():
    layers = {"model.layers.0.attn.q": {"quant_algo": "FP8"}, "model.layers.0.mlp.experts": {"quant_algo": "NVFP4"}}
    block = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    scheme = recognise({"quantization_config": block}).scheme
    assert scheme.mixed
    assert scheme.weights.bits == 4, "experts hold most parameters"
    assert {group.targets for group in scheme.groups} == {("model.layers.0.attn.q",), ("model.layers.0.mlp.experts",)}


def test_mlx_copies_that_contradict_settle_nothing_they_dispute():
    config = {"quantization": {"bits": 4, "group_size": 64}, "quantization_config": {"bits": 2, "group_size": 64}}
    found = recognise(config)
    assert found.format == "mlx"
    assert found.scheme.weights == WeightScheme(None, "int", "group", 64, symmetric=False)
    assert [(finding.rule, finding.severity) for finding in found.findings] == [("contradiction", "error")]


def test_torchao_maps_of_modules():
    inner = {"_type": "IntxWeightOnlyConfig", "_data": {"weight_dtype": {"_data": "int8", "_type": "torch.dtype"}}}
    default = {
        "_type": "Int8DynamicActivationIntxWeightConfig",
        "_data": {
            "weight_dtype": {"_data": "int4"},
            "weight_granularity": {"_type": "PerGroup", "_data": {"group_size": 32}},
        },
    }
    scheme = recognise(
        {
            "quantization_config": ao(
                "ModuleFqnToConfig",
                module_fqn_to_config={"model.embed_tokens": inner, "_default": default, "lm_head": None},
            )
        }
    )
    assert [group.weights.bits for group in scheme.scheme.groups] == [4, 8]
    assert scheme.scheme.weights.group_size == 32
    assert scheme.ignore == ("lm_head",)


def test_sizes_by_their_many_names():
    shape = recognise({"n_embd": 768, "n_layer": 12, "n_head": 12, "model_type": "gpt2"}).architecture
    assert (shape.hidden_size, shape.num_hidden_layers, shape.num_attention_heads) == (768, 12, 12)
    assert shape.tied_embeddings is True, "gpt2 ties by default"
    shape = recognise({"moe_num_experts": 48, "moe_topk": 3, "vision_config": {"hidden_size": 1}}).architecture
    assert (shape.num_experts, shape.experts_per_token, shape.multimodal, shape.hidden_size) == (48, 3, True, None)
    assert recognise({"hidden_size": "many", "num_hidden_layers": True}).architecture.hidden_size is None
