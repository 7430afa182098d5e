"""Mixtures of experts, act order and verdicts: what a plan must get right beyond plain layers."""

import json

import pytest
import torch

import quantlab
from quantlab.cli import main
from quantlab.conversion.api import plan_conversion
from quantlab.conversion.edges import all_edges, find_edge
from quantlab.conversion.presets import find_preset, preset_names
from quantlab.errors import ConversionRefused
from quantlab.formats import FORMATS
from tests.tiny_checkpoint import all_tensors, tiny_tensors, write_shards, write_tiny

EXPERTS = 3


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    """A checkpoint with experts one tensor each, spread over shards so that gate and up lie apart."""
    source = write_tiny(tmp_path_factory.mktemp("moe") / "in")
    generator = torch.Generator().manual_seed(1)
    tensors = tiny_tensors() | {"model.layers.0.mlp.gate.weight": torch.randn(EXPERTS, 64, generator=generator).half()}
    for kind in ("gate", "up", "down"):
        for expert in range(EXPERTS):
            shape = (64, 32) if kind == "down" else (32, 64)
            weight = torch.randn(shape, generator=generator) * (expert + 1)
            tensors[f"model.layers.0.mlp.experts.{expert}.{kind}_proj.weight"] = weight.bfloat16()
    (source / "model.safetensors").unlink()
    write_shards(source, tensors, 4)
    return source


def test_experts_are_quantized_the_router_is_not_and_gate_and_up_share_within_an_expert(mixture, tmp_path):
    result = quantlab.convert(mixture, tmp_path / "out", "nvfp4a16")
    assert result.layers == {"requantize": 14 + 3 * EXPERTS}
    assert "model.layers.0.mlp.gate" in result.kept_dense
    found = all_tensors(tmp_path / "out")
    scale = "model.layers.0.mlp.experts.{}.{}_proj.weight_global_scale"
    for expert in range(EXPERTS):
        assert found[scale.format(expert, "gate")] == found[scale.format(expert, "up")]
    assert found[scale.format(0, "gate")] != found[scale.format(2, "gate")]
    assert found["model.layers.0.mlp.gate.weight"].dtype == torch.float16
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(found)


def test_act_order_needs_a_group_map(tmp_path):
    """Columns in shuffled groups go between formats that have a map, and are refused by name elsewhere."""
    source = write_tiny(tmp_path / "in")
    quantlab.convert(source, tmp_path / "w4", "w4a16", settings={"group_size": 32})
    quantlab.convert(tmp_path / "w4", tmp_path / "gptq", to_format="gptq")
    tensors = all_tensors(tmp_path / "gptq")
    name = "model.layers.1.mlp.down_proj"
    order = torch.randperm(128, generator=torch.Generator().manual_seed(0))
    tensors[f"{name}.g_idx"] = (order // 32).to(torch.int32)
    write_shards(tmp_path / "gptq", tensors, 1)
    config = json.loads((tmp_path / "gptq" / "config.json").read_text())
    config["quantization_config"]["desc_act"] = True
    (tmp_path / "gptq" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConversionRefused, match=rf"{name} \(act-order\)") as refusal:
        quantlab.convert(tmp_path / "gptq", tmp_path / "awq", to_format="awq")
    assert "--requantize" in str(refusal.value.hint)
    assert not (tmp_path / "awq").exists()
    same = quantlab.convert(tmp_path / "gptq", tmp_path / "v2", to_format="gptq_v2")
    assert same.layers == {"identical": 14}
    changed = quantlab.convert(tmp_path / "gptq", tmp_path / "ct", "compressed-tensors", requantize=True)
    assert changed.layers == {"identical": 13, "requantize": 1}
    assert [change["name"] for change in changed.changed] == [name]
    assert changed.proof["worst"]["name"] == name
    assert 0 < changed.proof["worst"]["error"] < 0.2


def test_the_matrix_is_asked_and_what_fails_is_refused_unless_forced(tmp_path, capsys):
    source = write_tiny(tmp_path / "in")
    arguments = ["convert", str(source), str(tmp_path / "out"), "--to", "fp8", "--engine", "vllm", "--dry-run"]
    assert main([*arguments, "--gpu", "MI250"]) == 2
    refused = capsys.readouterr().err
    assert "fails on MI250 with vllm" in refused
    assert "--force" in refused
    assert main([*arguments, "--gpu", "MI250", "--force", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"]["outcome"] == "fails"
    assert main([*arguments, "--gpu", "H100", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"]["outcome"] == "works"


def test_a_library_preset_is_planned_with_its_call(tmp_path, capsys):
    source = write_tiny(tmp_path / "in")
    assert main(["convert", str(source), str(tmp_path / "out"), "--to", "nf4", "--dry-run", "--format", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["case"] == "quantizer"
    assert "BitsAndBytesConfig" in plan["quantizer"]["call"]


def test_every_preset_and_edge_names_what_exists():
    families = {name.partition("/")[0] for name in FORMATS} | {"gguf"}
    for name in preset_names():
        assert find_preset(name).format.partition("/")[0] in families | {"torchao", "quark"}
    for edge in all_edges():
        assert {edge.source, edge.target} <= {*FORMATS, "gguf"}
        assert find_edge(edge.source, edge.target).exactness == edge.exactness


def test_the_plan_keeps_gate_and_up_of_an_expert_in_one_job(mixture, tmp_path):
    plan, _ = plan_conversion(mixture, tmp_path / "out", "nvfp4a16")
    pairs = [job for job in plan.jobs if len(job.layers) == 2 and ".experts." in job.layers[0].name]
    assert len(pairs) == EXPERTS
    plan, _ = plan_conversion(mixture, tmp_path / "out", "fp8")
    assert all(len(job.layers) <= 1 for job in plan.jobs)
