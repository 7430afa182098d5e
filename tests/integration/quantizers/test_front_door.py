"""The front door on real libraries: a whole, checked, described checkpoint, or none."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quantlab.checkpoint.open import read
from quantlab.errors import QuantizerFailed, UsageError
from quantlab.quantizers import verification
from quantlab.quantizers.run import QuantizeRequest, quantize

GPTQ = {"group_size": 64}


def run(source, output, quantizer, options, **more):
    events = []
    request = QuantizeRequest(quantizer, source, output, options, **{"samples": 8, "sequence_length": 64, **more})
    return quantize(request, read(str(source)), events.append), events


@pytest.fixture(scope="module")
def gptq(tiny_llama, tmp_path_factory):
    output = tmp_path_factory.mktemp("gptq") / "tiny-gptq"
    result, events = run(tiny_llama, output, "gptqmodel", GPTQ, target="gptq", command="quantlab convert a b --to gptq")
    return result, events, output


def test_the_result_is_whole_and_checked_against_its_source(gptq):
    result, _, output = gptq
    assert result.check.ok
    assert result.check.perplexity == pytest.approx(result.check.source_perplexity, rel=0.1)
    assert result.dense.share == 0.0
    assert read(str(output)).format == "gptq"
    assert [p.name for p in output.parent.iterdir()] == ["tiny-gptq"]
    json.dumps(result.to_dict())


def test_progress_counts_layers_then_models(gptq):
    _, events, _ = gptq
    layers = [(e.done, e.total) for e in events if e.task == "quantize" and e.unit == "layers"]
    assert layers == [(1, 2), (2, 2)]
    assert "s left" in next(e.detail for e in events if e.unit == "layers")
    assert any(e.task == "verify" for e in events)


def test_neither_texts_nor_paths_of_this_machine_are_in_the_output(gptq, tiny_llama):
    _, _, output = gptq
    for path in output.glob("*.json"):
        words = path.read_text()
        assert str(output.parent) not in words, path.name
        assert "offload_to_disk_path" not in words, path.name
        assert str(tiny_llama.parent) not in words, path.name


def test_companions_are_the_sources_own_bytes(gptq, tiny_llama):
    _, _, output = gptq
    for name in ("tokenizer.json", "tokenizer_config.json", "LICENSE"):
        assert (output / name).read_bytes() == (tiny_llama / name).read_bytes()


def test_provenance_names_command_source_libraries_calibration_and_hashes(gptq, tiny_llama):
    import hashlib

    _, _, output = gptq
    content = json.loads((output / "quantlab.json").read_text())
    weights = hashlib.sha256((tiny_llama / "model.safetensors").read_bytes()).hexdigest()
    assert content["source"]["files"]["model.safetensors"] == weights
    written = hashlib.sha256((output / "model.safetensors").read_bytes()).hexdigest()
    assert content["output"]["files"]["model.safetensors"] == written
    assert content["command"] == "quantlab convert a b --to gptq"
    assert {"gptqmodel", "transformers", "torch"} <= set(content["quantizer"]["library"])
    assert content["calibration"]["samples"] == 8
    assert re.fullmatch("[0-9a-f]{64}", content["calibration"]["token_ids_sha256"])
    assert content["quantizer"]["seed"] == 0
    assert content["check"]["ok"]


def test_the_model_cards_how_to_load_runs(gptq):
    _, _, output = gptq
    code = re.search(r"```python\n(.*?)```", (output / "README.md").read_text(), re.DOTALL).group(1)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "GPTQMODEL_CPU_WORKERS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, cwd=output.parent, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "The capital of France is" in done.stdout


def test_a_library_that_stops_leaves_nothing_but_its_log(tiny_llama, tmp_path):
    with pytest.raises(QuantizerFailed, match="torchao stopped") as caught:
        run(tiny_llama, tmp_path / "out", "torchao", {"type": "float8_dynamic"}, force=True)
    log = re.search(r"log: (\S+)", caught.value.hint).group(1)
    assert "Float8 dynamic quantization requires" in Path(log).read_text()
    assert "its last lines" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("quant_stage:\n  quant_modifiers:\n    NoSuchModifier: {}\n", "NoSuchModifier"),
        ("stage:\n  modifiers:\n    NoSuchModifier: {}\n", "quantized nothing"),
    ],
)
def test_a_recipe_that_does_not_quantize_is_no_result(tiny_llama, tmp_path, recipe, words):
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe)
    with pytest.raises(QuantizerFailed, match=words):
        run(tiny_llama, tmp_path / "out", "llm-compressor", {}, recipe=path)
    assert [p.name for p in tmp_path.iterdir()] == ["recipe.yaml"]


def test_too_short_a_text_is_refused_with_the_number_needed(tiny_llama, tmp_path):
    (tmp_path / "short.txt").write_text("hello " * 100)
    with pytest.raises(UsageError, match="8 samples of 64 tokens need 512"):
        run(tiny_llama, tmp_path / "out", "gptqmodel", GPTQ, calibration=str(tmp_path / "short.txt"))
    assert not (tmp_path / "out").exists()


def test_an_interrupt_stops_the_library_and_leaves_nothing(tiny_llama, tmp_path):
    code = (
        "import sys; from pathlib import Path\n"
        "from quantlab.checkpoint.open import read\n"
        "from quantlab.quantizers.run import QuantizeRequest, quantize\n"
        f"request = QuantizeRequest('gptqmodel', Path({str(tiny_llama)!r}), Path({str(tmp_path / 'out')!r}), "
        "{'group_size': 64}, samples=8, sequence_length=64)\n"
        f"quantize(request, read({str(tiny_llama)!r}), lambda e: print(e.task, flush=True))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    process.stdout.readline()
    children = subprocess.check_output(["ps", "-o", "pid=", "--ppid", str(process.pid)], text=True).split()
    process.send_signal(signal.SIGINT)
    process.wait(timeout=30)
    process.stdout.close()
    deadline = time.monotonic() + 10
    while any(_running(int(pid)) for pid in children) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert children
    assert not any(_running(int(pid)) for pid in children)
    assert list(tmp_path.iterdir()) == []


def _running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def damaged(source, output, change):
    """Copy a dense checkpoint with some of its tensors changed."""
    import shutil

    from safetensors.torch import load_file, save_file

    shutil.copytree(source, output)
    tensors = load_file(output / "model.safetensors")
    change(tensors)
    save_file(tensors, output / "model.safetensors", {"format": "pt"})
    return output


def test_the_check_finds_missing_weights_and_numbers_that_are_none(tiny_llama, tmp_path):
    def lose(tensors):
        del tensors["model.layers.1.mlp.down_proj.weight"]

    def spoil(tensors):
        tensors["model.layers.0.mlp.up_proj.weight"][:] = float("nan")

    lost = verification.measure_folder(damaged(tiny_llama, tmp_path / "a", lose), "cpu")
    assert "1 missing keys" in verification._judged(lost, None, 0).problems[0]
    nan = verification.measure_folder(damaged(tiny_llama, tmp_path / "b", spoil), "cpu")
    assert verification._judged(nan, 500.0, 0).problems == ("the logits are not finite",)
    fine = verification.measure_folder(tiny_llama, "cpu")
    assert verification._judged(fine, fine["perplexity"], 0).ok
    assert not verification._judged(fine, fine["perplexity"] / 11, 0).ok
    assert verification._judged(fine, fine["perplexity"] / 3, 0).warnings


@pytest.mark.slow
def test_experts_that_come_back_random_are_rejected_even_when_forced(tiny_mixtral, tmp_path):
    with pytest.raises(QuantizerFailed, match="missing keys") as caught:
        run(tiny_mixtral, tmp_path / "out", "gptqmodel", GPTQ, force=True)
    assert "out.rejected" in caught.value.hint
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "out.rejected" / "config.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("model", ["tiny_mixtral", "tiny_qwen3_moe", "tiny_gpt_oss"])
@pytest.mark.parametrize(("quantizer", "options"), [("bitsandbytes", {}), ("amd-quark", {"scheme": "fp8"})])
def test_experts_left_in_16_bit_are_said(request, tmp_path, model, quantizer, options):
    result, _ = run(request.getfixturevalue(model), tmp_path / "out", quantizer, options)
    assert any("experts of" in note for note in result.notes)
    assert "the bulk of the model is not quantized" in result.notes
    assert any("16 bit" in warning for warning in result.plan.warnings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("tiny_mixtral", {"algorithm": "rtn", "scheme": "FP8_DYNAMIC", "model_free": True}),
        ("tiny_qwen3_moe", {"algorithm": "rtn", "scheme": "FP8_DYNAMIC", "model_free": True}),
        ("tiny_qwen3_moe", {"algorithm": "gptq", "group_size": 64}),
    ],
)
def test_experts_are_quantized_where_the_data_allows_it(request, tmp_path, model, options):
    result, _ = run(request.getfixturevalue(model), tmp_path / "out", "llm-compressor", options, verify="quality")
    assert result.check.ok
    assert result.dense.dense_experts == 0
    assert result.dense.share < 0.05


SLOW = [
    ("gptqmodel", {"group_size": 64, "bits": 8}),
    ("gptqmodel", {"group_size": 64, "bits": 3}),
    ("gptqmodel", {"group_size": 64, "symmetric": False}),
    ("gptqmodel", {"group_size": 64, "desc_act": True}),
    ("gptqmodel", {"group_size": 64, "method": "awq", "symmetric": False}),
    ("llm-compressor", {"group_size": 64, "algorithm": "awq"}),
    ("llm-compressor", {"algorithm": "smoothquant", "scheme": "W8A8"}),
    ("llm-compressor", {"algorithm": "rtn", "scheme": "FP8"}),
    ("llm-compressor", {"algorithm": "rtn", "scheme": "FP8_DYNAMIC", "kv_cache": "fp8"}),
    ("llm-compressor", {"algorithm": "rtn", "scheme": "NVFP4"}),
    ("llm-compressor", {"algorithm": "rtn", "scheme": "NVFP4A16", "model_free": True}),
    ("llm-compressor", {"algorithm": "rtn", "scheme": "FP8_BLOCK", "model_free": True}),
    ("llm-compressor", {"scheme": "W4A16", "group_size": 32, "symmetric": False}),
    ("amd-quark", {"scheme": "ptpc_fp8"}),
    ("amd-quark", {"scheme": "int4_wo_64"}),
    ("amd-quark", {"scheme": "int4_wo_64", "algorithm": "gptq"}),
    ("amd-quark", {"scheme": "int8"}),
    ("amd-quark", {"scheme": "mxfp4_weight_only"}),
    ("bitsandbytes", {"type": "nf4", "double_quant": True}),
    ("bitsandbytes", {"type": "fp4"}),
    ("bitsandbytes", {"type": "int8"}),
    ("optimum", {"group_size": 64}),
    ("torchao", {"type": "float8_weight_only"}),
    ("torchao", {"type": "int8_dynamic"}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("quantizer", "options"), SLOW, ids=lambda value: str(value).replace(" ", ""))
def test_every_target_is_published_after_its_check(tiny_llama, tmp_path, quantizer, options):
    result, _ = run(tiny_llama, tmp_path / "out", quantizer, options, verify="quality")
    assert result.check.ok
    assert result.dense.share < 0.05
    assert "dataset" not in json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]


@pytest.mark.slow
def test_a_recipe_is_handed_over_as_it_is(tiny_llama, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "quant_stage:\n  quant_modifiers:\n    QuantizationModifier:\n"
        "      scheme: FP8_DYNAMIC\n      targets: [Linear]\n      ignore: [lm_head]\n"
    )
    result, _ = run(tiny_llama, tmp_path / "out", "llm-compressor", {}, recipe=recipe)
    assert result.check.ok
    assert read(str(tmp_path / "out")).format == "compressed-tensors/float-quantized"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("quantizer", "options", "ceiling"),
    [
        ("bitsandbytes", {"type": "nf4"}, 1.45),
        ("torchao", {"type": "int8_weight_only"}, 1.05),
        ("llm-compressor", {"algorithm": "rtn", "scheme": "FP8_DYNAMIC"}, 1.06),
        ("gptqmodel", {"group_size": 64}, 1.35),
    ],
)
def test_the_sample_model_keeps_its_language(sample_model, tmp_path, quantizer, options, ceiling):
    result, _ = run(sample_model, tmp_path / "out", quantizer, options, sequence_length=512, verify="quality")
    assert result.check.perplexity < ceiling * result.check.source_perplexity
