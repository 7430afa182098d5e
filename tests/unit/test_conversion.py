"""Conversions of a small checkpoint: right numbers, right files, right refusals."""

import json
from types import SimpleNamespace

import pytest
import torch

import quantlab
from quantlab.checkpoint.open import read
from quantlab.cli import main
from quantlab.conversion.api import plan_conversion
from quantlab.errors import CheckpointError, ConversionRefused, EnvironmentProblem, UnknownNameError, UsageError
from quantlab.formats import FORMATS
from quantlab.tensors.dequantize import dequantize
from quantlab.tensors.quantize import quantize
from tests.tiny_checkpoint import all_tensors, file_bytes, tiny_tensors, write_shards, write_tiny

LAYER = "model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("dense") / "tiny")


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("sharded") / "tiny", shards=3)


@pytest.fixture(scope="module")
def packed(tmp_path_factory, dense):
    output = tmp_path_factory.mktemp("packed") / "w4"
    quantlab.convert(dense, output, "w4a16", settings={"group_size": 32})
    return output


def decoded(folder, name=LAYER):
    """Decode one layer of a checkpoint with what safetensors reads."""
    facts = read(folder)
    codec, tensors = FORMATS[facts.format], all_tensors(folder)
    layer = next(layer for layer in codec.layers(facts) if layer.name == name)
    return codec.decode(layer, {role: tensors[full] for role, full in layer.tensors.items()})


@pytest.mark.parametrize(
    ("preset", "settings", "format_id"),
    [
        ("fp8", {}, "compressed-tensors/float-quantized"),
        ("fp8-block", {}, "fp8"),
        ("w8a8", {}, "compressed-tensors/int-quantized"),
        ("w8a16", {}, "compressed-tensors/pack-quantized"),
        ("w4a16", {"group_size": 32}, "compressed-tensors/pack-quantized"),
        ("w4a16-asym", {"group_size": 32}, "compressed-tensors/pack-quantized"),
        ("w4a16", {"group_size": 32, "clip": "mse"}, "compressed-tensors/pack-quantized"),
        ("w3a16", {"group_size": 32}, "compressed-tensors/pack-quantized"),
        ("mxfp8", {}, "compressed-tensors/mxfp8-quantized"),
        ("nvfp4a16", {}, "compressed-tensors/nvfp4-pack-quantized"),
        ("mxfp4", {}, "compressed-tensors/mxfp4-pack-quantized"),
    ],
)
def test_native_presets_write_what_their_name_says(dense, tmp_path, preset, settings, format_id):
    result = quantlab.convert(dense, tmp_path / "out", preset, settings=settings)
    facts = read(tmp_path / "out")
    assert result.case == "quantize"
    assert facts.format == result.target_format == format_id
    assert not [finding for finding in facts.findings if finding.severity == "error"]
    assert result.layers == {"requantize": 14}
    assert result.proof["tensors_copied"] == 6
    assert 0 < result.proof["mean_error"] < 0.4
    before, after = tiny_tensors(), all_tensors(tmp_path / "out")
    for name in ("model.embed_tokens.weight", "model.norm.weight"):
        assert torch.equal(after[name].view(torch.int16), before[name].view(torch.int16))


def test_codes_are_those_of_quantizing_the_tensor_alone(dense, packed):
    weight = tiny_tensors()[f"{LAYER}.weight"]
    found = decoded(packed)
    alone = quantize(weight, found.format)
    assert torch.equal(dequantize(found), dequantize(alone))
    assert torch.equal(found.scales, alone.scales)


def test_fused_layers_share_one_global_scale(dense, tmp_path):
    quantlab.convert(dense, tmp_path / "out", "nvfp4a16")
    scales = {
        name.split(".")[-2]: tensor
        for name, tensor in all_tensors(tmp_path / "out").items()
        if name.startswith("model.layers.0.") and name.endswith("global_scale")
    }
    assert scales["q_proj"] == scales["k_proj"] == scales["v_proj"]
    assert scales["gate_proj"] == scales["up_proj"]
    assert len(scales) == 7


def test_what_belongs_to_a_model_is_carried_and_what_spoke_of_the_old_format_is_not(packed, tmp_path):
    (packed / "quantize_config.json").write_text("{}")
    (packed / "recipe.yaml").write_text("a: 1")
    (packed / "README.md").write_text("a 4-bit model")
    try:
        quantlab.convert(packed, tmp_path / "out", "bf16")
    finally:
        for name in ("quantize_config.json", "recipe.yaml", "README.md"):
            (packed / name).unlink()
    files = file_bytes(tmp_path / "out")
    assert sorted(files) == [
        "LICENSE",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "quantlab.json",
        "tokenizer.json",
    ]
    assert "quantization_config" not in json.loads(files["config.json"])
    assert read(tmp_path / "out").format == "dense"


def test_dequantizing_rounds_the_decode_once(packed, tmp_path):
    result = quantlab.convert(packed, tmp_path / "out", "bf16")
    assert result.case == "dequantize"
    assert result.layers == {"rounded": 14}
    expected = dequantize(decoded(packed), torch.bfloat16)
    assert torch.equal(all_tensors(tmp_path / "out")[f"{LAYER}.weight"], expected)


def test_a_dense_source_can_change_its_dtype(dense, tmp_path):
    quantlab.convert(dense, tmp_path / "out", "fp16")
    found = all_tensors(tmp_path / "out")
    assert {tensor.dtype for tensor in found.values()} == {torch.float16}
    assert torch.equal(found[f"{LAYER}.weight"], tiny_tensors()[f"{LAYER}.weight"].half())
    assert json.loads((tmp_path / "out" / "config.json").read_text())["torch_dtype"] == "float16"


def test_a_dense_value_that_fp16_cannot_hold_is_refused(tmp_path):
    source = write_tiny(tmp_path / "in")
    tensors = tiny_tensors()
    tensors[f"{LAYER}.weight"][5, 5] = 1e6
    write_shards(source, tensors, 1)
    with pytest.raises(ConversionRefused, match=f"{LAYER} has values that torch.float16 cannot hold"):
        quantlab.convert(source, tmp_path / "out", "fp16")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_a_repack_and_back_gives_the_same_numbers(packed, tmp_path):
    there = quantlab.convert(packed, tmp_path / "gptq", to_format="gptq")
    back = quantlab.convert(tmp_path / "gptq", tmp_path / "back", "compressed-tensors")
    assert there.case == back.case == "repack"
    assert there.layers == back.layers == {"identical": 14}
    assert back.target_format == "compressed-tensors/pack-quantized"
    assert read(tmp_path / "gptq").format == "gptq"
    one, two = all_tensors(packed), all_tensors(tmp_path / "back")
    packed_names = [name for name in one if name.endswith("weight_packed")]
    assert len(packed_names) == 14
    assert all(torch.equal(one[name], two[name]) for name in packed_names)
    assert torch.equal(dequantize(decoded(packed)), dequantize(decoded(tmp_path / "back")))


def test_the_same_scheme_is_a_repack_and_another_is_refused(packed, tmp_path):
    plan, _ = plan_conversion(packed, tmp_path / "a", "w4a16", settings={"group_size": 32}, to_format="gptq")
    assert (plan.case, plan.target_format) == ("repack", "gptq")
    with pytest.raises(ConversionRefused, match=r"int4 in groups of 32.*fp8 is float8") as refusal:
        quantlab.convert(packed, tmp_path / "a", "fp8")
    assert "--requantize" in str(refusal.value.hint)
    assert list(tmp_path.iterdir()) == []


def test_requantizing_measures_its_error(packed, tmp_path):
    result = quantlab.convert(packed, tmp_path / "a", "fp8", requantize=True)
    assert result.case == "requantize"
    assert result.layers == {"requantize": 14}
    dense = dequantize(decoded(packed))
    error = torch.linalg.vector_norm(dequantize(decoded(tmp_path / "a")) - dense) / torch.linalg.vector_norm(dense)
    assert float(error) <= result.proof["worst"]["error"] < 0.05


def test_an_obstacle_names_layer_and_rule_and_requantizing_goes_around_it(dense, tmp_path):
    """Scales that float16 cannot hold stop an exact way to GPTQ."""
    source = write_tiny(tmp_path / "in")
    tensors = tiny_tensors()
    tensors[f"{LAYER}.weight"] *= 2.0**-20
    write_shards(source, tensors, 1)
    quantlab.convert(source, tmp_path / "w4", "w4a16", settings={"group_size": 32})
    with pytest.raises(ConversionRefused, match=rf"{LAYER} \(") as refusal:
        quantlab.convert(tmp_path / "w4", tmp_path / "gptq", to_format="gptq")
    assert "--requantize" in str(refusal.value.hint)
    assert not (tmp_path / "gptq").exists()


def test_shards_keep_their_number_and_the_index_its_metadata(sharded, tmp_path):
    result = quantlab.convert(sharded, tmp_path / "out", "fp8")
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    found = all_tensors(tmp_path / "out")
    assert index["metadata"]["note"] == "kept"
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in found.values())
    assert set(index["weight_map"]) == set(found)
    assert sorted(set(index["weight_map"].values())) == [f"model-{n:05d}-of-00003.safetensors" for n in (1, 2, 3)]
    assert result.bytes["written"] == sum(path.stat().st_size for path in (tmp_path / "out").glob("*.safetensors"))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_output_does_not_depend_on_the_number_of_threads(sharded, tmp_path, threads):
    quantlab.convert(sharded, tmp_path / "one", "nvfp4a16", threads=1)
    quantlab.convert(sharded, tmp_path / "many", "nvfp4a16", threads=threads)
    assert file_bytes(tmp_path / "one") == file_bytes(tmp_path / "many")


def test_provenance_has_the_hashes_of_source_and_output(dense, packed):
    import hashlib

    content = json.loads((packed / "quantlab.json").read_text())
    for folder, hashes in ((dense, content["source"]["sha256"]), (packed, content["sha256"])):
        assert hashes == {
            name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in ("model.safetensors",)
        }
    assert content["recipe"]["to"] == "w4a16"
    assert content["quantlab"] == quantlab.__version__


def test_routers_heads_embeddings_and_named_layers_stay_dense(tmp_path):
    source = write_tiny(tmp_path / "in")
    tensors = tiny_tensors() | {
        "lm_head.weight": torch.randn(96, 64).bfloat16(),
        "model.layers.0.mlp.gate.weight": torch.randn(8, 64).bfloat16(),
    }
    write_shards(source, tensors, 1)
    quantlab.convert(source, tmp_path / "out", "fp8", settings={"keep_dense": r"layers\.1\.mlp\.down_proj$"})
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert sorted(config["ignore"]) == ["lm_head", "model.layers.0.mlp.gate", "model.layers.1.mlp.down_proj"]
    found = all_tensors(tmp_path / "out")
    for name in ("lm_head", "model.layers.0.mlp.gate", "model.layers.1.mlp.down_proj", "model.embed_tokens"):
        assert torch.equal(found[f"{name}.weight"], tensors[f"{name}.weight"])
        assert f"{name}.weight_scale" not in found


def test_tied_embeddings_ignore_the_head_that_is_not_there(packed):
    config = json.loads((packed / "config.json").read_text())
    assert config["quantization_config"]["ignore"] == ["lm_head"]
    assert config["tie_word_embeddings"] is True


def test_fused_experts_are_named_as_staying_dense(tmp_path):
    source = write_tiny(tmp_path / "in")
    fused = {"model.layers.0.mlp.experts.gate_up_proj": torch.randn(4, 64, 256).bfloat16()}
    write_shards(source, tiny_tensors() | fused, 1)
    plan, _ = plan_conversion(source, tmp_path / "out", "fp8")
    assert "fused experts" in plan.notes[0]


def test_a_group_size_that_does_not_divide_is_refused_with_ones_that_do(tmp_path):
    source = write_tiny(tmp_path / "in")
    tensors = tiny_tensors() | {f"{LAYER}.weight": torch.randn(64, 576).bfloat16()}
    write_shards(source, tensors, 1)
    with pytest.raises(ConversionRefused, match=r"group size 128 does not divide the \d+ columns of model\.") as error:
        quantlab.convert(source, tmp_path / "out", "w4a16")
    assert error.value.hint == "--set group_size=64 or 32"


def test_the_proof_finds_a_single_wrong_byte(dense, tmp_path, monkeypatch):
    from quantlab.conversion import native

    real = native.prove

    def spoil(plan, source, folder, *rest, **more):
        info = read(folder).tensors[f"{LAYER}.weight"]
        path = folder / info.file
        content = bytearray(path.read_bytes())
        content[info.start + 700] ^= 0x40
        path.write_bytes(content)
        return real(plan, source, folder, *rest, **more)

    monkeypatch.setattr(native, "prove", spoil)
    with pytest.raises(ConversionRefused, match=f"the proof failed: {LAYER} differs at"):
        quantlab.convert(dense, tmp_path / "out", "fp8")
    assert list(tmp_path.iterdir()) == []


def test_the_proof_finds_a_wrong_copy(dense, tmp_path, monkeypatch):
    from quantlab.conversion import native

    real = native.prove

    def spoil(plan, source, folder, *rest, **more):
        info = read(folder).tensors["model.norm.weight"]
        path = folder / info.file
        content = bytearray(path.read_bytes())
        content[info.start] ^= 1
        path.write_bytes(content)
        return real(plan, source, folder, *rest, **more)

    monkeypatch.setattr(native, "prove", spoil)
    with pytest.raises(ConversionRefused, match=r"model\.norm\.weight was copied and is not the same"):
        quantlab.convert(dense, tmp_path / "out", "w8a16")


def test_the_command_prints_what_the_function_returns(dense, tmp_path, capsys):
    assert main(["convert", str(dense), str(tmp_path / "a"), "--to", "fp8", "--format", "json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    returned = quantlab.convert(dense, tmp_path / "b", "fp8").to_dict()
    for content in (printed, returned):
        del content["seconds"], content["proof"]["seconds"], content["output"]
    assert printed == returned
    assert main(["convert", str(dense), str(tmp_path / "c"), "--to", "w8a16"]) == 0
    assert "proved: every layer decoded again" in capsys.readouterr().out


def test_a_dry_run_says_the_case_the_classes_and_the_memory_and_writes_nothing(packed, tmp_path, capsys):
    arguments = ["convert", str(packed), str(tmp_path / "out"), "--to-format", "gptq", "--dry-run"]
    assert main([*arguments, "--format", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["case"] == "repack"
    assert {(entry["kind"], entry["class"], entry["count"]) for entry in plan["exactness"]} >= {
        ("q_proj", "identical", 2)
    }
    assert plan["peak_memory_bytes"] > 0
    assert plan["shards"][0]["file"] == "model.safetensors"
    assert main(arguments) == 0
    assert "repack: compressed-tensors/pack-quantized -> gptq, 14 layers" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"to": "fp9"}, UnknownNameError, "did you mean fp8"),
        ({"to": "w4a16", "settings": {"groupsize": 64}}, UnknownNameError, "did you mean group_size"),
        ({"to": "w4a16", "settings": {"group_size": "big"}}, UsageError, "a positive number"),
        ({"to": "fp8", "settings": {"group_size": 64}}, UsageError, "its scales are per channel"),
        ({"to": "w4a16", "settings": {"symmetric": "yes"}}, UsageError, "symmetric is 'yes'"),
        ({"to": "w4a16", "settings": {"keep_dense": "("}}, UsageError, "not a regular expression"),
        ({"to": "w4a16", "settings": {"clip": "best"}}, UsageError, "clip=mse"),
        ({"to_format": "gptq"}, UsageError, "never quantizes"),
        ({"to": "compressed-tensors"}, UsageError, "only repacks"),
        ({"to": "fp8", "to_format": "gtpq"}, UnknownNameError, "did you mean gptq"),
        ({}, UsageError, "neither --to nor --to-format"),
    ],
)
def test_options_that_cannot_be_meant(dense, tmp_path, options, kind, words):
    with pytest.raises(kind) as error:
        quantlab.convert(dense, tmp_path / "out", **options)
    assert words in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_holds_something_is_left_alone(dense, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("precious")
    assert main(["convert", str(dense), str(tmp_path / "out"), "--to", "fp8"]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert file_bytes(tmp_path / "out") == {"mine": b"precious"}
    (tmp_path / "empty").mkdir()
    assert main(["convert", str(dense), str(tmp_path / "empty"), "--to", "fp8"]) == 0


def test_space_is_checked_before_a_byte_is_written(dense, tmp_path, monkeypatch):
    import shutil

    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(EnvironmentProblem, match=r"the output needs .* has 1\.0 kB free"):
        quantlab.convert(dense, tmp_path / "out", "fp8")


def test_a_symlinked_hub_snapshot_is_read_and_an_escaping_link_is_not(dense, tmp_path):
    root = tmp_path / "models--a--b"
    (root / "blobs").mkdir(parents=True)
    snapshot = root / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(dense.iterdir())):
        (root / "blobs" / str(number)).write_bytes(path.read_bytes())
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    quantlab.convert(snapshot, tmp_path / "out", "fp8")
    assert not any(path.is_symlink() for path in (tmp_path / "out").iterdir())
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "config.json").write_bytes((dense / "config.json").read_bytes())
    (bad / "model.safetensors").symlink_to(dense / "model.safetensors")
    with pytest.raises(CheckpointError, match="outside of the folder"):
        quantlab.convert(bad, tmp_path / "out2", "fp8")


def test_a_gguf_file_goes_through_the_same_door_both_ways(sample_model, tmp_path, capsys):
    import shutil

    small = tmp_path / "in"
    small.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(sample_model / name, small / name)
    config = {**json.loads((sample_model / "config.json").read_text()), "num_hidden_layers": 1}
    (small / "config.json").write_text(json.dumps(config))
    tensors = {name: value for name, value in all_tensors(sample_model).items() if "layers." not in name}
    tensors |= {name: value for name, value in all_tensors(sample_model).items() if "layers.0." in name}
    write_shards(small, tensors, 1)
    file = tmp_path / "out.gguf"
    result = quantlab.convert(small, file, "gguf-bf16")
    assert (result.target_format, file.stat().st_size) == ("gguf", result.bytes["written"])
    assert quantlab.convert(file, tmp_path / "back", "bf16").source_format == "gguf"
    back = all_tensors(tmp_path / "back")
    assert set(back) == set(tensors)
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)
    for arguments, words in (
        ([small, tmp_path / "folder", "--to", "gguf-q8_0"], "writes one file"),
        ([small, file, "--to", "gguf-q8_0"], "exists"),
        ([file, tmp_path / "w4", "--to", "w4a16"], "--to bf16, then convert that"),
    ):
        assert main(["convert", *map(str, arguments)]) == 2
        assert words in capsys.readouterr().err
