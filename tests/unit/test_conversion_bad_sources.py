"""A source that is damaged, incomplete or something else gives one clear error and no output."""

import json

import pytest
import torch
from safetensors.torch import save_file

from quantlab.cli import main
from tests.tiny_checkpoint import tiny_tensors, write_shards, write_tiny


def missing(folder):
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def broken_config(folder):
    (folder / "config.json").write_text("{not json")


def no_config(folder):
    (folder / "config.json").unlink()


def truncated_header(folder):
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:100])


def truncated_data(folder):
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-1000])


def huge_header(folder):
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes((1 << 30).to_bytes(8, "little") + content[8:])


def missing_shard(folder):
    (folder / "model.safetensors").unlink()
    write_shards(folder, tiny_tensors(), 3)
    (folder / "model-00002-of-00003.safetensors").unlink()


def tensor_not_in_its_shard(folder):
    (folder / "model.safetensors").unlink()
    write_shards(folder, tiny_tensors(), 2)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["model.ghost.weight"] = "model-00001-of-00002.safetensors"
    path.write_text(json.dumps(index))


def path_that_leaves(folder):
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"model.norm.weight": "../../etc/passwd"}})
    )


def duplicate_tensor(folder):
    (folder / "model.safetensors").unlink()
    write_shards(folder, tiny_tensors(), 2)
    save_file(
        {"model.norm.weight": torch.ones(64).bfloat16(), **tiny_tensors(1)},
        folder / "model-00001-of-00002.safetensors",
    )


def lora(folder):
    (folder / "config.json").unlink()
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "x"}')


def pickles(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def no_weights(folder):
    (folder / "model.safetensors").unlink()


def not_a_number(folder):
    tensors = tiny_tensors()
    tensors["model.layers.0.self_attn.q_proj.weight"][3, 3] = float("nan")
    write_shards(folder, tensors, 1)


def unknown_format(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "zipped"}}))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (missing, "there is no checkpoint at"),
        (broken_config, "config.json"),
        (no_config, "has no config.json"),
        (truncated_header, "model.safetensors"),
        (truncated_data, "model.safetensors"),
        (huge_header, "model.safetensors"),
        (missing_shard, "model-00002-of-00003.safetensors, which is not there"),
        (tensor_not_in_its_shard, "model.ghost.weight is in model-00001-of-00002.safetensors"),
        (path_that_leaves, "outside of the folder"),
        (duplicate_tensor, "is in model-0000"),
        (lora, "is a LoRA adapter, not a model"),
        (pickles, "pickle"),
        (no_weights, "no weights"),
        (not_a_number, "model.layers.0.self_attn.q_proj holds NaN"),
        (unknown_format, "zipped"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_one_clear_error_and_nothing_written(tmp_path, capsys, damage, words):
    source = write_tiny(tmp_path / "in")
    damage(source)
    assert main(["convert", str(source), str(tmp_path / "out"), "--to", "fp8"]) == 2
    output = capsys.readouterr()
    assert words in output.err
    assert output.err.startswith("error: ")
    assert output.out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) in (["in"], [])


def test_a_file_that_shrinks_while_it_is_read_is_named(tmp_path, capsys, monkeypatch):
    source = write_tiny(tmp_path / "in")
    from quantlab.conversion import native

    real = native.Driver.run

    def shrink(self, *rest):
        path = source / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-5000])
        return real(self, *rest)

    monkeypatch.setattr(native.Driver, "run", shrink)
    assert main(["convert", str(source), str(tmp_path / "out"), "--to", "fp8"]) == 2
    assert "model.safetensors: tensor" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_file_as_source_and_a_gone_hub_are_told_apart(tmp_path, capsys):
    source = write_tiny(tmp_path / "in")
    assert main(["convert", str(source / "model.safetensors"), str(tmp_path / "out"), "--to", "fp8"]) == 2
    assert "give the folder that holds config.json" in capsys.readouterr().err
