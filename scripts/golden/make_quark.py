"""Make tests/golden/data/quark.safetensors: one layer as AMD Quark 0.13 exports it in each scheme, and its own weight.

Run with amd-quark installed: ``python scripts/golden/make_quark.py tests/golden/data/quark.safetensors`` (2 minutes).
For each scheme the file holds the layer's tensors (``SCHEME/layer.weight``, ...), ``SCHEME/reference`` (what Quark's
own quantizer module dequantizes after transformers has loaded the export) and, in its metadata, the config.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import torch
from quark.torch import LLMTemplate, ModelQuantizer, export_safetensors
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

SCHEMES = ("fp8", "ptpc_fp8", "int4_wo_32", "uint4_wo_32", "int4_wo_per_channel", "int8", "mxfp4_weight_only")
LAYER = "model.layers.0.self_attn.k_proj"


def tiny_model() -> LlamaForCausalLM:
    """Return a random Llama whose key projection has awkward rows."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "vocab_size": 64}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    weight = model.get_submodule(LAYER).weight.data
    weight[0] = 0.0
    weight[1, ::2] = -0.0
    weight[2] *= 2.0**-18
    weight[3, 5] = 4.0
    weight[4, 7] = -6.5
    weight[6] = weight[6].abs()
    return model


def export(scheme: str, folder: Path) -> tuple[dict[str, torch.Tensor], str]:
    """Quantize, export, load again; return the layer's tensors with the reference, and the config as JSON."""
    model = tiny_model()
    quantizer = ModelQuantizer(LLMTemplate.get("llama").get_config(scheme=scheme))
    model = quantizer.freeze(quantizer.quantize_model(model, [torch.arange(32).reshape(1, 32)]))
    export_safetensors(model=model, output_dir=str(folder))
    stored = load_file(folder / "model.safetensors")
    tensors = {name.replace(LAYER, f"{scheme}/layer"): tensor for name, tensor in stored.items() if LAYER in name}
    module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).get_submodule(LAYER)
    quantizer = getattr(module, "weight_quantizer", None) or module._weight_quantizer
    tensors[f"{scheme}/reference"] = quantizer(module.weight).detach().contiguous()
    return tensors, json.dumps(json.loads((folder / "config.json").read_text())["quantization_config"])


def main() -> None:
    """Write the golden file."""
    tensors: dict[str, torch.Tensor] = {}
    configs: dict[str, str] = {}
    for scheme in SCHEMES:
        with tempfile.TemporaryDirectory() as folder:
            made, configs[scheme] = export(scheme, Path(folder) / "out")
            tensors |= made
    save_file(tensors, sys.argv[1], configs)


if __name__ == "__main__":
    main()
