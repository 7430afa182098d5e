"""Folders: which files make a checkpoint, sizes by kind, links, paths that leave, adapters."""

import json

import pytest

from quantlab.checkpoint.open import open_checkpoint, read
from quantlab.errors import CheckpointError
from tests.unit.made_checkpoints import LLAMA, dense_tensors, fp8_blocks, gptq, ones, tensor, write


def test_packed_codes_count_as_the_weights_they_stand_for(tmp_path):
    config, tensors = gptq()
    facts = read(write(tmp_path, config, {"model.safetensors": tensors}))
    assert facts.format == "gptq"
    assert facts.parameters == {
        "total": 2 * 96 * 64 + 64 + 64 * 64 + 64 * 128, "embeddings": 96 * 64, "head": 96 * 64, "norms": 64,
        "attention": 64 * 64, "mlp": 64 * 128,
    }  # fmt: skip
    assert facts.bytes["codes"] == (64 * 64 + 64 * 128) // 2
    assert facts.bytes["codes"] + facts.bytes["scales"] + facts.bytes["dense"] == facts.bytes["total"]


def test_config_files_alone_are_enough(tmp_path):
    facts = read(write(tmp_path, gptq()[0], {}))
    assert (facts.format, facts.tensors, facts.parameters) == ("gptq", {}, {})


def test_a_config_file_is_read_with_its_companions(tmp_path):
    write(tmp_path, {"model_type": "llama"}, {}, quantize_config={"bits": 4, "group_size": 128, "desc_act": False})
    assert read(tmp_path / "config.json").format == read(tmp_path).format == "gptq"
    assert read(tmp_path / "quantize_config.json").format == "gptq"


def test_shards_of_the_index_are_read_and_others_are_not(tmp_path):
    config, tensors = fp8_blocks()
    names = sorted(tensors)
    shards = {"model-1.safetensors": {n: tensors[n] for n in names[:4]},
              "model-2.safetensors": {n: tensors[n] for n in names[4:]}}  # fmt: skip
    write(tmp_path, config, shards, index=True)
    write(tmp_path, None, {"consolidated.safetensors": {"other": ones((2,))}})
    facts = read(tmp_path)
    assert set(facts.tensors) == set(names)
    assert {found.file for found in facts.tensors.values()} == set(shards)
    assert facts.scheme.weights.group_size == (32, 32)


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "a/../../b.safetensors", "..\\b.safetensors"])
def test_an_index_that_leaves_the_folder_is_refused(tmp_path, name):
    write(tmp_path / "model", LLAMA, {}, index={"x": name})
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json") as caught:
        read(tmp_path / "model")
    assert "outside of the folder" in caught.value.message


def test_links_that_leave_the_folder_are_refused(tmp_path):
    write(tmp_path / "elsewhere", None, {"w.safetensors": dense_tensors()})
    write(tmp_path / "model", LLAMA, {})
    (tmp_path / "model" / "model.safetensors").symlink_to(tmp_path / "elsewhere" / "w.safetensors")
    with pytest.raises(CheckpointError, match="outside of the folder"):
        read(tmp_path / "model")


def test_links_of_a_hub_cache_are_followed(tmp_path):
    repository = tmp_path / "models--someone--model"
    write(repository / "blobs", LLAMA, {"abc": dense_tensors()})
    snapshot = repository / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").symlink_to("../../blobs/config.json")
    (snapshot / "model.safetensors").symlink_to("../../blobs/abc")
    assert read(snapshot).parameters["total"] == 2 * 96 * 64 + 64


def test_a_folder_of_an_adapter_is_named_as_such(tmp_path):
    write(tmp_path, None, {"adapter_model.safetensors": {"lora_A": ones((2, 2))}},
          adapter_config={"peft_type": "LORA", "base_model_name_or_path": "owner/base"})  # fmt: skip
    facts = read(tmp_path)
    assert (facts.format, facts.tensors) == ("adapter", {})


def test_pickles_are_listed_and_never_opened(tmp_path):
    write(tmp_path, LLAMA, {})
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02cos\nsystem\n(S'touch pwned'\ntR.")
    opened = open_checkpoint(tmp_path)
    assert opened.listing.pickles == ("pytorch_model.bin",)
    assert opened.facts.tensors == {}


@pytest.mark.parametrize("target", ["nowhere", "no/where/at/all", "x" * 5000, "a\0b"])
def test_nothing_there_is_one_error_with_a_hint(target):
    with pytest.raises(CheckpointError) as caught:
        read(target)
    assert len(caught.value.message) < 400


def test_an_empty_folder_and_other_files_are_no_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        read(tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        read(tmp_path / "notes.txt")


@pytest.mark.parametrize("index", [{}, {"weight_map": []}, {"weight_map": {"x": 3}}, {"weight_map": {"x": ""}}])
def test_a_malformed_index_names_the_field(tmp_path, index):
    write(tmp_path, LLAMA, {})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="weight_map"):
        read(tmp_path)


def test_headers_settle_who_shares_a_scale(tmp_path):
    """``fp8`` without blocks: a scalar, a column or a grid of scales."""
    base = {**LLAMA, "quantization_config": {"quant_method": "fp8"}}
    for shape, expected in (((), ("tensor", None)), ((64, 1), ("channel", None)), ((2, 2), ("block", (32, 32)))):
        tensors = {"m.q_proj.weight": tensor("F8_E4M3", (64, 64)), "m.q_proj.weight_scale": ones(shape, "F32")}
        weights = read(
            write(tmp_path / str(len(shape)) / str(expected[0]), base, {"model.safetensors": tensors})
        ).scheme.weights
        assert (weights.granularity, weights.group_size) == expected


def test_headers_settle_the_bits_that_two_configs_dispute(tmp_path):
    config = {"quantization": {"bits": 4, "group_size": 64}, "quantization_config": {"bits": 2, "group_size": 64}}
    tensors = {"m.weight": tensor("U32", (64, 128 * 2 // 32)), "m.scales": ones((64, 2)), "m.biases": ones((64, 2))}
    facts = read(write(tmp_path, config, {"model.safetensors": tensors}))
    assert facts.scheme.weights.bits == 2
    assert facts.parameters["total"] == 64 * 128


@pytest.mark.parametrize(("bits", "method"), [(4, "torchao"), (4, "w4afp8")])
def test_narrow_integers_in_bytes_are_packed_only_where_the_format_packs_them(tmp_path, bits, method):
    kind = {"default": {"_type": "IntxWeightOnlyConfig", "_data": {"weight_dtype": {"_data": f"int{bits}"}}}}
    config = {**LLAMA, "quantization_config": {"quant_method": method, "quant_type": kind}}
    suffix = {"torchao": ("._weight_qdata", "._weight_scale"), "w4afp8": (".weight", ".weight_scale_inv")}[method]
    columns = {"torchao": 64, "w4afp8": 32}[method]
    tensors = {f"m.q_proj{suffix[0]}": tensor("I8", (64, columns)), f"m.q_proj{suffix[1]}": ones((64, 2))}
    facts = read(write(tmp_path, config, {"model.safetensors": tensors}))
    assert facts.format == method
    assert facts.scheme.weights.bits == bits
    assert facts.parameters["total"] == 64 * 64


def test_experts_fused_or_not(tmp_path):
    config = {**LLAMA, "num_experts": 2, "num_experts_per_tok": 1, "quantization_config": {"quant_method": "mxfp4"}}
    fused = {"model.layers.0.mlp.experts.gate_up_proj_blocks": tensor("U8", (2, 64, 2, 16)),
             "model.layers.0.mlp.experts.gate_up_proj_scales": tensor("U8", (2, 64, 2))}  # fmt: skip
    facts = read(write(tmp_path / "fused", config, {"model.safetensors": fused}))
    assert facts.experts == {"count": 2, "per_token": 1, "fused": True, "quantized": True}
    assert facts.parameters["experts"] == 2 * 64 * 64
    apart = {f"model.layers.0.mlp.experts.{n}.up_proj.weight": ones((64, 64)) for n in range(2)}
    facts = read(write(tmp_path / "apart", config, {"model.safetensors": apart}))
    assert facts.experts == {"count": 2, "per_token": 1, "fused": False, "quantized": False}
    assert read(write(tmp_path / "none", config, {})).experts["quantized"] is None


def test_the_sample_model(sample_model):
    facts = read(sample_model)
    assert (facts.format, facts.parameters["total"], facts.tied_embeddings) == ("dense", 134_515_008, True)
