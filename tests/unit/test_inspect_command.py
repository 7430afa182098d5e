"""``quantlab inspect``: what it prints, how it exits, how light and quick it is."""

import json
import subprocess
import sys
import time

import pytest

import quantlab
from quantlab.cli import main
from tests.unit.made_checkpoints import LLAMA, fp8_blocks, gptq, ones, write


@pytest.fixture
def sound(tmp_path):
    config, tensors = gptq()
    return write(tmp_path / "sound", config, {"model.safetensors": tensors})


@pytest.fixture
def broken(tmp_path):
    config, tensors = fp8_blocks()
    del tensors["model.layers.0.mlp.down_proj.weight_scale_inv"]
    return write(tmp_path / "broken", config, {"model.safetensors": tensors})


def test_the_json_is_the_python_result(sound, capsys):
    assert main(["inspect", str(sound), "--format", "json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == quantlab.inspect(sound).to_dict()
    assert {"format", "scheme", "parameters", "bytes", "experts", "tied_embeddings", "findings"} <= set(printed)
    assert printed["scheme"]["groups"][0]["bits"] == 4
    assert printed["scheme"]["groups"][0]["targets"] == ["Linear"]


def test_the_text_says_it_all(broken, capsys):
    assert main(["inspect", str(broken)]) == 1, "a finding of severity error is a no"
    text = capsys.readouterr().out
    for words in (
        "fp8",
        "8-bit float",
        "blocks of 32x32",
        "float8_e4m3fn, dynamic",
        "error   missing-scale",
        "fix:",
        "down_proj",
    ):
        assert words in text
    assert max(map(len, text.splitlines())) < 200
    assert "\x1b" not in text


def test_mixed_schemes_are_listed(tmp_path, capsys):
    block = {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"}
    config = {**LLAMA, "num_local_experts": 8, "expert_dtype": "fp4", "quantization_config": block}
    assert main(["inspect", str(write(tmp_path, config, {}))]) == 0
    text = capsys.readouterr().out
    assert "mixed:" in text
    assert "blocks of 128x128" in text
    assert "groups of 32" in text
    assert "experts      8" in text


def test_what_is_not_there_is_an_error_on_stderr(capsys):
    assert main(["inspect", "nowhere"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: there is no checkpoint at nowhere")
    assert "hint:" in captured.err


def test_deep_needs_the_files(sound, capsys):
    assert main(["inspect", str(sound), "--deep"]) == 0
    capsys.readouterr()


def test_the_command_imports_nothing_heavy(sound):
    code = (
        "import sys; from quantlab.cli import main; main(['inspect', sys.argv[1], '--format', 'json']);"
        "heavy = {'torch', 'transformers', 'numpy', 'yaml', 'pydantic', 'rich', 'huggingface_hub', 'gguf'};"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    subprocess.run([sys.executable, "-c", code, sound], capture_output=True, check=True)
    done = subprocess.run([sys.executable, "-c", code, sound], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_two_hundred_shards_are_read_by_their_headers(tmp_path):
    """Sparse files stand for large shards: reading their data would take minutes and gigabytes."""
    import struct

    config = {**LLAMA, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    index = {}
    for shard in range(200):
        name, header, at = f"model-{shard:05d}.safetensors", {}, 0
        for number in range(60):
            base = f"model.layers.{shard}.mlp.experts.{number}.up_proj"
            for suffix, dtype, shape, size in ((".weight", "F8_E4M3", [2048, 7168], 2048 * 7168),
                                               (".weight_scale_inv", "F32", [16, 56], 4 * 16 * 56)):  # fmt: skip
                header[base + suffix] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
                index[base + suffix] = name
                at += size
        text = json.dumps(header).encode()
        with (tmp_path / name).open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + at)
    write(tmp_path, config, {}, index=index)
    started = time.perf_counter()
    facts = quantlab.inspect(tmp_path)
    elapsed = time.perf_counter() - started
    assert facts.parameters["experts"] == 200 * 60 * 2048 * 7168
    assert not facts.findings
    print(f"{elapsed:.2f} s for 200 shards of {facts.bytes['total'] / 2**30:.0f} GiB")


def test_a_checkpoint_of_one_tensor_and_no_config(tmp_path, capsys):
    write(tmp_path, None, {"model.safetensors": {"x": ones((2, 2))}})
    assert main(["inspect", str(tmp_path / "model.safetensors")]) in (0, 1)
    assert "dense" in capsys.readouterr().out
