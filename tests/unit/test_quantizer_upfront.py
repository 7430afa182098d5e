"""What is known up front stops a run before any heavy library is imported."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from quantlab.checkpoint.facts import Architecture, CheckpointFacts, Scheme, TensorInfo
from quantlab.errors import ConversionRefused, EnvironmentProblem, MissingExtraError, UnknownNameError
from quantlab.matrix.versions import parse_range
from quantlab.quantizers import QUANTIZERS, libraries, upfront
from quantlab.quantizers.dense_share import dense_share
from quantlab.quantizers.libraries import library
from quantlab.quantizers.run import QuantizeRequest, plan, quantize

WIDTHS = {"self_attn.q_proj": (576, 576), "mlp.down_proj": (576, 1536)}


def facts(folder="", *, kind="llama", form="dense", widths=WIDTHS, experts=None, extra=()):
    names = {f"model.layers.0.{name}.weight": shape for name, shape in widths.items()}
    names |= {"model.embed_tokens.weight": (1000, 577), "model.layers.0.mlp.gate.weight": (3, 576)} | dict(extra)
    tensors = {n: TensorInfo(n, "BF16", s, "model.safetensors", 0, 2) for n, s in names.items()}
    return CheckpointFacts(
        str(folder), form, Scheme(), Architecture(model_type=kind), tensors=tensors, experts=experts,
        bytes={"total": 1000}, parameters={"total": 500},
    )  # fmt: skip


def ahead(tmp_path, quantizer, options=None, known=None, **more):
    (tmp_path / "tokenizer.json").write_text("{}")
    request = QuantizeRequest(quantizer, tmp_path, tmp_path / "out", options or {}, **more)
    return plan(request, known or facts(tmp_path))


def rules(found):
    return [obstacle.rule for obstacle in found.obstacles]


@pytest.mark.parametrize("quantizer", ["gptqmodel", "optimum", "llm-compressor"])
def test_a_group_that_does_not_divide_is_refused_and_sizes_that_do_are_offered(tmp_path, quantizer):
    found = ahead(tmp_path, quantizer)
    assert rules(found) == ["group-size"]
    assert "576" in found.obstacles[0].reason
    assert found.obstacles[0].fix == "group_size=64 or 32"
    assert rules(ahead(tmp_path, quantizer, {"group_size": 64})) == []
    with pytest.raises(ConversionRefused, match="groups of 128"):
        upfront.refuse(found, tmp_path)


def test_quark_offers_its_own_scheme_names(tmp_path):
    found = ahead(tmp_path, "amd-quark", {"scheme": "int4_wo_128"})
    assert found.obstacles[0].fix == "scheme=int4_wo_64 or scheme=int4_wo_32"


def test_block_fp8_needs_both_directions_divided(tmp_path):
    options = {"algorithm": "rtn", "scheme": "FP8_BLOCK", "model_free": True}
    assert rules(ahead(tmp_path, "llm-compressor", options)) == ["block-size"]
    even = facts(tmp_path, widths={"self_attn.q_proj": (256, 384)})
    assert rules(ahead(tmp_path, "llm-compressor", options, even)) == []


def test_bitsandbytes_rows_matter_on_a_cpu_and_for_4_bit_only(tmp_path):
    odd = facts(tmp_path, widths={"self_attn.q_proj": (100, 128)})
    assert rules(ahead(tmp_path, "bitsandbytes", {}, odd)) == ["rows"]
    assert rules(ahead(tmp_path, "bitsandbytes", {"type": "int8"}, odd)) == []
    assert rules(ahead(tmp_path, "bitsandbytes", {}, odd, device="cuda:0")) == []


def test_devices_are_told_by_data(tmp_path):
    options = {"type": "int4_weight_only", "group_size": 64}
    cpu = ahead(tmp_path, "torchao", options)
    assert rules(cpu) == ["known-failure"]
    assert "mslk" in cpu.obstacles[0].reason
    assert rules(ahead(tmp_path, "torchao", options, device="cuda")) == []


@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe", "gpt_oss"])
def test_experts_that_would_come_back_random_are_refused(tmp_path, kind):
    moe = facts(tmp_path, kind=kind, widths={"self_attn.q_proj": (128, 128)}, experts={"count": 4})
    assert "known-failure" in rules(ahead(tmp_path, "gptqmodel", {}, moe))
    assert rules(ahead(tmp_path, "bitsandbytes", {}, moe)) == []
    assert any("16 bit" in warning for warning in ahead(tmp_path, "bitsandbytes", {}, moe).warnings)
    expected = [] if kind == "qwen3_moe" else ["known-failure"]
    assert rules(ahead(tmp_path, "llm-compressor", {}, moe)) == expected
    free = {"algorithm": "rtn", "scheme": "FP8_DYNAMIC", "model_free": True}
    assert rules(ahead(tmp_path, "llm-compressor", free, moe)) == (["known-failure"] if kind == "gpt_oss" else [])


def test_experts_nobody_tried_are_warned_of(tmp_path):
    moe = facts(tmp_path, kind="newmoe", widths={"self_attn.q_proj": (128, 128)}, experts={"count": 4})
    assert any("nobody has tried" in warning for warning in ahead(tmp_path, "gptqmodel", {}, moe).warnings)


def test_an_architecture_without_a_mapping_names_those_with_one(tmp_path):
    found = ahead(tmp_path, "amd-quark", {}, facts(tmp_path, kind="rwkv"))
    assert rules(found) == ["architecture"]
    assert "llama" in found.obstacles[0].fix


def test_a_quantized_source_is_told_to_be_dequantized_and_force_does_not_help(tmp_path):
    found = ahead(tmp_path, "bitsandbytes", {}, facts(tmp_path, form="gptq"))
    assert rules(found) == ["already-quantized"]
    assert "--to bf16" in found.obstacles[0].fix
    with pytest.raises(ConversionRefused, match="already quantized"):
        upfront.refuse(found, tmp_path, force=True)


def test_force_tries_what_failed_elsewhere(tmp_path):
    moe = facts(tmp_path, kind="mixtral", widths={"self_attn.q_proj": (128, 128)})
    upfront.refuse(ahead(tmp_path, "gptqmodel", {}, moe), tmp_path, force=True)


def test_calibration_needs_a_tokenizer_and_enough_tokens(tmp_path):
    request = QuantizeRequest(
        "gptqmodel", tmp_path, tmp_path / "out", {"group_size": 64}, samples=1, sequence_length=64
    )
    found = plan(request, facts(tmp_path))
    assert rules(found) == ["tokenizer", "calibration"]
    assert "64 calibration tokens are too few" in found.obstacles[1].reason
    assert rules(plan(replace(request, quantizer="bitsandbytes", options={}), facts(tmp_path))) == []


def test_files_cannot_be_calibrated(tmp_path):
    assert rules(ahead(tmp_path, "llm-compressor", {"model_free": True, "group_size": 64})) == ["model-free"]


def test_a_missing_library_names_the_exact_install_command(tmp_path, monkeypatch):
    monkeypatch.setattr(libraries.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError) as caught:
        ahead(tmp_path, "amd-quark")
    assert caught.value.hint == 'pip install "quantlab[quark]"'


def test_versions_outside_the_tested_range_warn_with_what_breaks():
    known = library("gptqmodel")
    assert known.version_warnings("7.6.0") == []
    assert "torch and transformers" in known.version_warnings("7.7.1")[0]
    assert "was not tested" in known.version_warnings("7.5.0")[0]


def test_too_little_memory_or_disk_is_said_with_both_figures(tmp_path, monkeypatch):
    found = ahead(tmp_path, "bitsandbytes")
    monkeypatch.setattr(upfront, "available_memory", lambda: 10**6)
    with pytest.raises(EnvironmentProblem, match=r"of memory are needed, 0\.0 GB are available"):
        upfront.refuse(found, tmp_path)
    with pytest.raises(EnvironmentProblem, match="of disk space are needed"):
        upfront.refuse(replace(found, disk_bytes=10**18), tmp_path)


def test_an_output_that_holds_something_is_left_alone(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    with pytest.raises(ConversionRefused, match="not an empty folder"):
        quantize(QuantizeRequest("bitsandbytes", tmp_path, tmp_path / "out"), facts(tmp_path))
    assert (tmp_path / "out" / "mine").read_text() == "x"


def test_every_library_has_a_member_data_and_an_extra():
    import tomllib

    extras = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(QUANTIZERS) == set(libraries.libraries())
    for name in QUANTIZERS:
        known = library(name)
        assert known.extra == QUANTIZERS[name].extra
        assert known.extra in extras
        assert all(clause.seen and clause.reason for clause in known.clauses)
        assert known.tested.text == parse_range(known.tested.text).text
    with pytest.raises(UnknownNameError, match="gptq-model"):
        library("gptq-model")


def test_planning_imports_no_torch(tmp_path):
    code = (
        "import sys; from tests.unit.test_quantizer_upfront import *; from pathlib import Path; import tempfile\n"
        "for q in QUANTIZERS: ahead(Path(tempfile.mkdtemp()), q)\n"
        "print([m for m in ('torch', 'transformers', 'gptqmodel') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_the_dry_run_has_the_call_the_time_and_what_an_interruption_costs(tmp_path):
    content = ahead(tmp_path, "gptqmodel", {"group_size": 64}).to_dict()
    assert "QuantizeConfig(bits=4, group_size=64, sym=True, desc_act=False)" in content["call"]
    assert content["seconds"] > 10
    assert content["memory_bytes"] > 10**8
    assert "resume_folder" in content["resume"]
    assert ahead(tmp_path, "gptqmodel", {"group_size": 64}, device="cuda").seconds is None
    json.dumps(content)


def test_awq_on_a_cpu_goes_through_torch(tmp_path):
    options = {"method": "awq", "group_size": 64, "symmetric": False}
    assert "backend=BACKEND.AWQ_TORCH" in ahead(tmp_path, "gptqmodel", options).call
    assert "AWQ_TORCH" not in ahead(tmp_path, "gptqmodel", options, device="cuda").call
    assert rules(ahead(tmp_path, "gptqmodel", options | {"bits": 8})) == ["bits"]


def write_safetensors(path, tensors):
    import numpy as np
    from safetensors.numpy import save_file

    save_file({name: np.zeros(shape, dtype) for name, (shape, dtype) in tensors.items()}, path)


def test_what_stays_in_16_bit_is_counted_from_the_headers(tmp_path):
    source, output = tmp_path / "s", tmp_path / "o"
    source.mkdir(), output.mkdir()
    experts, dense, embed = "l.0.mlp.experts.gate_up_proj", "l.0.q_proj.weight", "embed_tokens.weight"
    write_safetensors(
        source / "a.safetensors",
        {experts: ((4, 8, 8), "float16"), dense: ((8, 8), "float16"), embed: ((99, 8), "float16"),
         "l.0.norm.weight": ((8,), "float16")},
    )  # fmt: skip
    renamed = "l.0.mlp.experts.renamed_proj"
    scale = ((8, 4), "float16")
    write_safetensors(
        output / "a.safetensors",
        {renamed: ((4, 8, 8), "float16"), dense: ((8, 8), "int8"), "l.0.q_proj.weight_scale": scale},
    )
    share = dense_share(source, output)
    assert (share.total, share.dense, share.dense_experts) == (320, 256, 256)
    assert share.share == pytest.approx(0.8)
