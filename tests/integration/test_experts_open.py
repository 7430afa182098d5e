"""Experts that lie one by one on disk: what we encode, transformers merges and computes with, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from quantlab.formats import FORMATS
from quantlab.tensors.dequantize import dequantize
from quantlab.tensors.number_types import FP4_E2M1, FP8_E4M3FN, signed_int
from quantlab.tensors.quantize import quantize
from quantlab.tensors.quantized import WeightFormat
from tests.awkward import checkpoint

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

CASES = {
    "compressed-tensors/float-quantized": WeightFormat(FP8_E4M3FN, "channel"),
    "compressed-tensors/pack-quantized": WeightFormat(signed_int(4), "group", 64),
    "compressed-tensors/mxfp4-pack-quantized": WeightFormat(FP4_E2M1, "group", 32),
    "fp8": WeightFormat(FP8_E4M3FN, "block", block=(128, 128), scale_type="float32"),
}


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a tiny Qwen3-MoE; transformers writes its experts one by one."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        hidden_size=128,
        intermediate_size=256,
        moe_intermediate_size=256,
        num_experts=4,
        num_experts_per_tok=2,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=64,
        vocab_size=64,
        torch_dtype="bfloat16",
    )
    folder = tmp_path_factory.mktemp("experts")
    Qwen3MoeForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("form", CASES)
def test_transformers_merges_our_experts(form: str, experts: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    codec, schemes = FORMATS[form], {}
    stored: dict[str, torch.Tensor] = {}
    dense: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(experts / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            stored[name] = dense[name] = tensor
            continue
        weight, module = quantize(tensor, CASES[form]), name.removesuffix(".weight")
        schemes[module] = weight.format
        stored |= codec.encode(module, weight)
        dense[name] = dequantize(weight, torch.bfloat16)
    assert any("experts.3.down_proj" in module for module in schemes)

    config = json.loads((experts / "config.json").read_text())
    plain = _folder(tmp_path / "dense", config, dense)
    ignore = ("lm_head", "model.layers.0.mlp.gate")
    quantized = {**config, "quantization_config": codec.config(schemes, ignore, checkpoint({}, "dense", None))}
    loaded, report = AutoModelForCausalLM.from_pretrained(
        _folder(tmp_path / "quantized", quantized, stored), output_loading_info=True
    )
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for module in loaded.modules():
        if getattr(module, "quantization_scheme", None) is not None:
            module.quantization_enabled = False  # rounding of inputs is the engine's, not the file's
    tokens = torch.arange(16).view(1, -1)
    with torch.no_grad():
        expected = AutoModelForCausalLM.from_pretrained(plain)(tokens).logits
        assert torch.equal(loaded(tokens).logits.to(expected.dtype), expected)


def _folder(path: Path, config: dict[str, object], tensors: dict[str, torch.Tensor]) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(whole, path / "model.safetensors", metadata={"format": "pt"})
    return path
