"""Questions get the answer of the narrowest statement, with the rule, the clash and a way out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import quantlab
from quantlab.errors import UnknownNameError, UsageError
from quantlab.matrix.api import check, check_lines, judge
from quantlab.matrix.evidence import Evidence, read_evidence, weigh
from quantlab.matrix.model import Test as Condition
from quantlab.matrix.query import Query, answer
from quantlab.matrix.question import read_question
from quantlab.matrix.subject import complete, from_words


def ask(**words: Any) -> quantlab.matrix.model.Verdict:  # type: ignore[name-defined]
    return judge(read_question(words))


def vllm(version: str, arch: str, **words: Any) -> Any:
    return ask(engine="vllm", device={"arch": [arch]}, software={"vllm": version}, **words)


BLOCK_FP8 = {"method": "fp8", "quantization_config": {"bits": 8, "block_size": [128, 128]}}


@pytest.mark.parametrize(
    ("version", "arch", "outcome", "mode"),
    [
        ("0.8.5", "sm_80", "fails", None),
        ("0.9.1", "sm_80", "works-with-fallback", "weight-only"),
        ("0.8.5", "sm_90", "works", "native"),
        ("0.11.0", "sm_75", "fails", None),
        ("0.33.0", "sm_75", "works-with-fallback", "weight-only"),
        ("0.33.0", "gfx942", "works", "native"),
        ("0.33.0", "gfx90a", "fails", None),
        ("0.33.0", "gfx1100", "fails", None),
        ("0.33.0", "gfx1201", "works", "native"),
    ],
)
def test_block_fp8_by_gpu_and_version(version: str, arch: str, outcome: str, mode: str | None) -> None:
    verdict = vllm(version, arch, **BLOCK_FP8)
    assert (verdict.outcome, verdict.mode) == (outcome, mode)
    assert verdict.sources
    assert verdict.gpu == arch


def test_a_no_names_both_values_and_a_checked_way_out() -> None:
    verdict = vllm("0.8.5", "sm_86", **BLOCK_FP8)
    assert "0.8.5 is <0.9" in verdict.reason
    assert "checked: works with a fallback on sm_86, weight-only" in verdict.fix
    assert "vLLM 0.33.0" in verdict.fix


def test_a_broken_limit_names_fact_and_value() -> None:
    verdict = vllm("0.33.0", "sm_90", method="gptq", quantization_config={"bits": 4, "group_size": 100})
    assert verdict.outcome == "fails"
    assert "group_size" in verdict.reason
    assert "100" in verdict.reason


@pytest.mark.parametrize(("tp", "outcome"), [(1, "works"), (2, "fails")])
def test_groups_may_not_straddle_gpus(tp: int, outcome: str) -> None:
    verdict = vllm(
        "0.30.0",
        "sm_80",
        method="compressed-tensors",
        format="pack-quantized",
        quantization_config={"bits": 4, "group_size": 128, "scheme": "W4A16"},
        architecture={"moe": True, "moe_intermediate_size": 640, "tp": tp},
    )
    assert verdict.outcome == outcome
    assert tp == 1 or "640 / 2 gpus to be a multiple of group_size 128" in verdict.reason


def test_a_package_below_its_minimum_fails() -> None:
    verdict = ask(
        method="bitsandbytes",
        engine="transformers",
        device={"arch": ["sm_90"]},
        software={"bitsandbytes": "0.41.0", "transformers": "5.17.0"},
    )
    assert verdict.outcome == "fails"
    assert "bitsandbytes >=0.46.1, and it is 0.41.0" in verdict.reason


def test_several_gpus_get_the_worst_answer() -> None:
    both = ask(engine="vllm", method="awq", device={"arch": ["sm_90", "sm_70"]})
    assert (both.outcome, both.gpu) == ("fails", "sm_70")


def test_unknown_says_what_is_missing() -> None:
    verdict = ask(method="awq", engine="somethingelse", device={"arch": ["sm_999"]})
    assert verdict.outcome == "unknown"
    assert "somethingelse" in verdict.reason
    assert verdict.sources == ()


def test_no_engine_takes_the_best_of_the_main_ones() -> None:
    assert ask(method="gguf", device={"arch": ["sm_61"]}).ok


def test_a_fork_follows_its_parent() -> None:
    assert ask(method="gguf", engine="ollama").outcome == "works"


def test_conditions() -> None:
    assert Condition(values=frozenset({4, 8})).holds(4)
    assert not Condition(values=frozenset({4, 8})).holds(None)
    assert Condition(present=False).holds(None)
    assert not Condition(present=False).holds(1)
    assert Condition(excluded=frozenset({True})).holds(None)
    assert Condition(minimum=2, maximum=8).holds(3)
    assert not Condition(minimum=2).holds("many")
    assert not Condition(multiple_of=32).holds(100)


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        ({"method": "fp8", "format": "hf-fp8-block"}, {"format": "fp8", "scheme": "fp8-block"}),
        ({"method": "awq", "format": "awq-gemm"}, {"format": "awq", "scheme": "w4a16", "symmetric": False}),
        ({"method": "nvfp4", "format": "modelopt nvfp4"}, {"format": "modelopt", "scheme": "nvfp4"}),
        (
            {"method": "nvfp4", "format": "modelopt", "quantization_config": {"scheme": "W4A16_NVFP4"}},
            {"scheme": "nvfp4-w4a16"},
        ),
        (
            {
                "method": "compressed-tensors",
                "format": "float-quantized",
                "quantization_config": {"scheme": "FP8_DYNAMIC"},
            },
            {"variant": "float-quantized", "scheme": "fp8", "activation_dynamic": True},
        ),
        (
            {"method": "bitsandbytes", "quantization_config": {"block_size": 128}},
            {"group_size": 128, "scheme": "bnb-4bit"},
        ),
        ({"method": "gguf", "quantization_config": {"type": "Q8_0"}}, {"gguf_type": "q8_0", "scheme": "gguf"}),
        ({"method": "gptq", "architecture": {"model": "Qwen3-30B-A3B"}}, {"moe": True, "moe_intermediate_size": 768}),
        ({"method": "mxfp4", "format": "hf-mxfp4"}, {"format": "mxfp4", "scheme": "mxfp4"}),
    ],
)
def test_words_become_facts(words: dict[str, Any], facts: dict[str, Any]) -> None:
    found = from_words(words)
    assert {key: found.get(key) for key in facts} == facts


def evidence(ok: bool, version: str = "0.33.0") -> Evidence:
    return Evidence("abc", "vllm", "gptq", "w4a16", "sm_90", {"vllm": version}, ok, "2026-11-01")


@pytest.mark.parametrize(
    ("measured", "confidence"),
    [
        (evidence(ok=True), "verified"),
        (evidence(ok=False), "disputed"),
        (evidence(ok=True, version="0.20.0"), "declared"),
    ],
)
def test_evidence_verifies_or_disputes(measured: Evidence, confidence: str) -> None:
    query = read_question(
        {"method": "gptq", "engine": "vllm", "device": {"arch": ["sm_90"]}, "software": {"vllm": "0.33.0"}}
    )
    weighed = weigh(answer(query), query, (measured,))
    assert weighed.confidence == confidence
    assert ("evidence:abc" in weighed.sources) == (confidence != "declared")


def test_evidence_files_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "evidence"
    folder.mkdir()
    keys = {"engine": "vllm", "format": "gptq", "gpu": "sm_90", "versions": {"vllm": "0.33.0"}, "date": "2026-11-01"}
    content = {"statement": keys, "result": {"verdict": {"ok": True, "damaged": False}}}
    (folder / "abc.json").write_text(json.dumps(content), encoding="utf-8")
    (folder / "broken.json").write_text("{", encoding="utf-8")
    assert [(item.id, item.ok) for item in read_evidence(tmp_path)] == [("abc", True)]


def test_python_api_equals_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    from quantlab.cli import main

    code = main(["check", "awq", "--gpu", "sm_80", "--engine", "vllm", "--with", "vllm=0.20.0", "--format", "json"])
    printed = json.loads(capsys.readouterr().out)
    assert printed == quantlab.check("awq", gpu="sm_80", engine="vllm", versions={"vllm": "0.20.0"}).to_dict()
    assert code == 0


def test_exit_codes_and_text(capsys: pytest.CaptureFixture[str]) -> None:
    from quantlab.cli import main

    assert main(["check", "awq", "--gpu", "sm_70", "--engine", "vllm"]) == 1
    text = capsys.readouterr().out
    assert "vllm on sm_70: fails" in text
    assert "way out" in text
    assert main(["check", "awq", "--gpu", "no such gpu"]) == 2
    assert main(["check", "awq", "--with", "nonsense"]) == 2
    assert main(["check"]) == 2
    assert main(["check", "--queries", "/no/such/file"]) == 2
    assert "error:" in capsys.readouterr().err


def test_unknown_names_offer_near_ones() -> None:
    with pytest.raises(UnknownNameError) as error:
        check("awq", engine="vlm")
    assert "vllm" in str(error.value.hint)
    with pytest.raises(UnknownNameError):
        check("no-such-method")
    with pytest.raises(UsageError):
        check("awq", tensor_parallel=0)


def test_unknown_engine_version_is_answered() -> None:
    assert check("gptq", gpu="sm_90", engine="vllm", versions={"vllm": "0.99"}).verdict.outcome == "works"


def test_lines_that_cannot_be_read_are_answered() -> None:
    deep = "[" * 100_000
    answers = list(check_lines(["", "{}", "[]", "not json", deep, '{"id": 7, "method": "awq"}']))
    assert len(answers) == 5
    assert [item["outcome"] for item in answers[1:4]] == ["unknown"] * 3
    assert answers[-1]["id"] == 7


def test_check_imports_nothing_heavy() -> None:
    code = (
        "import sys; from quantlab.cli import main; main(['check', 'gptq', '--gpu', 'sm_90', '--engine', 'vllm']);"
        "heavy = {'torch', 'pydantic', 'yaml', 'rich', 'huggingface_hub', 'numpy', 'transformers'} & set(sys.modules);"
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    for _ in range(2):  # the first run may have to compile the data
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_defaults_of_a_bare_method() -> None:
    assert complete({"method": "nvfp4"})["scheme"] == "nvfp4"
    assert answer(Query(complete({"method": "gptq"}), "vllm", ("sm_90",))).outcome == "works"


def test_matrix_object() -> None:
    matrix = quantlab.Matrix()
    assert len(matrix.statements) > 300
    assert matrix.source("vllm-0.33.0")["title"]
    assert matrix.ask({"method": "awq", "engine": "vllm", "device": {"arch": ["sm_90"]}}).ok
    with pytest.raises(UnknownNameError):
        matrix.source("no such source")


def test_a_folder_adds_what_its_tensors_say(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 256,
        "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
    }
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert check(tmp_path, gpu="sm_90", engine="vllm").ok
    names = {
        "model.norm.weight": "model-00001-of-00002.safetensors",
        "lm_head.weight": "model-00002-of-00002.safetensors",
    }
    index = json.dumps({"metadata": {}, "weight_map": names})
    (tmp_path / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    header = json.dumps({"model.norm.weight": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}).encode()
    shard = len(header).to_bytes(8, "little") + header + b"\0\0"
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(shard)
    verdict = check(tmp_path, gpu="sm_90", engine="vllm").verdict
    assert verdict.outcome == "fails"
    assert verdict.statement == "files-incomplete"


@pytest.mark.parametrize(
    ("attention", "gpu", "outcome"),
    [
        ("flash_attention_4", "gfx942", "fails"),
        ("flash_attention_3", "gfx942", "works"),
        ("sdpa", "gfx1151", "works-with-fallback"),
    ],
)
def test_attention_on_rocm(attention: str, gpu: str, outcome: str) -> None:
    words = {"method": "dense", "architecture": {"attention": attention}, "engine": "transformers"}
    assert ask(**words, device={"arch": [gpu]}).outcome == outcome


@pytest.mark.parametrize(
    ("product", "instructions"),
    [("Core i7 (AVX2)", "avx2"), ("Xeon with AMX", "amx"), ("EPYC, AVX-512", "avx512"), ("Ryzen", None)],
)
def test_words_of_a_cpu_say_its_vector_instructions(product: str, instructions: str | None) -> None:
    query = read_question({"engine": "vllm", "device": {"vendor": "cpu", "arch": ["x86_64"], "product": [product]}})
    assert query.facts.get("instructions") == instructions


def test_container_named_by_a_config_takes_its_numbers_from_the_words() -> None:
    spoken = {"format": "compressed-tensors pack-quantized", "quantization_config": {"bits": 4, "group_size": 128}}
    named = {
        **spoken,
        "quantization_config": {"quant_method": "compressed-tensors", "bits": 4, "group_size": 128},
    }
    facts = from_words(named)
    assert facts["scheme"] == from_words(spoken)["scheme"] == "w4a16"
    assert facts["group_size"] == 128
