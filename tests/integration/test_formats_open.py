"""What the codecs write is opened by the library that owns the format: the layers compute with our numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from quantlab.checkpoint.facts import Architecture, CheckpointFacts, Scheme
from quantlab.formats import FORMATS
from quantlab.tensors.dequantize import dequantize
from quantlab.tensors.number_types import INT4, INT8
from quantlab.tensors.quantize import quantize
from quantlab.tensors.quantized import QuantizedTensor, WeightFormat

HIDDEN, INNER = 64, 128
CASES: dict[str, tuple[str, WeightFormat]] = {
    "gptq 4 bit": ("gptq", WeightFormat(INT4, "group", 32)),
    "gptq 8 bit whole rows": ("gptq", WeightFormat(INT8, "channel")),
    "gptq_v2 with zero points": ("gptq_v2", WeightFormat(INT4, "group", 32, symmetric=False)),
    "awq symmetric": ("awq", WeightFormat(INT4, "group", 32)),
    "awq with zero points": ("awq", WeightFormat(INT4, "group", 32, symmetric=False)),
    "auto-round": ("auto-round", WeightFormat(INT4, "group", 32)),
}


def tiny_model(dtype: torch.dtype) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": 1, "vocab_size": 96}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)).to(dtype).eval()


def write(model: Any, folder: Path, form: str, made: dict[str, QuantizedTensor]) -> dict[str, torch.Tensor]:
    """Write a checkpoint with some modules quantized; return the dense twin's state."""
    codec = FORMATS[form]
    dense = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tensors = {name: tensor for name, tensor in dense.items() if name.removesuffix(".weight") not in made}
    for module, weight in made.items():
        assert codec.obstacle(weight) is None
        tensors |= codec.encode(module, weight)
        dense[f"{module}.weight"] = dequantize(weight, model.dtype)
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    facts = CheckpointFacts("made-here", "dense", Scheme(), Architecture(torch_dtype=str(model.dtype)))
    schemes = {module: weight.format for module, weight in made.items()}
    config = json.loads(model.config.to_json_string())
    config["quantization_config"] = codec.config(schemes, ("lm_head",), facts)
    (folder / "config.json").write_text(json.dumps(config))
    return dense


def check_opens(model: Any, folder: Path, dense: dict[str, torch.Tensor], tolerance: float) -> Any:
    """Load in transformers with clean keys; its logits are those of the dense twin."""
    from transformers import AutoModelForCausalLM

    loaded, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=model.dtype, device_map="cpu", output_loading_info=True
    )
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    model.load_state_dict(dense)
    ids = torch.tensor([[1, 5, 9, 33, 70, 2]])
    with torch.no_grad():
        expected, given = model(ids).logits.float(), loaded(ids).logits.float()
    assert (given - expected).abs().max() <= tolerance * expected.abs().max()
    return loaded


@pytest.mark.parametrize("case", CASES)
def test_gptqmodel_opens_integers(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPTQMODEL_CPU_WORKERS", "2")
    form, scheme = CASES[case]
    model = tiny_model(torch.float16)
    made = {name: quantize(module.weight.detach(), scheme) for name, module in model.named_modules() if "_proj" in name}
    dense = write(model, tmp_path, form, made)
    loaded = check_opens(model, tmp_path, dense, 0.01)
    assert type(loaded.get_submodule("model.layers.0.mlp.down_proj")) is not torch.nn.Linear


def test_a_dense_layer_among_quantized_ones_stays_dense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPTQMODEL_CPU_WORKERS", "2")
    model = tiny_model(torch.float16)
    kept = "model.layers.0.mlp.down_proj"
    made = {
        name: quantize(module.weight.detach(), WeightFormat(INT4, "group", 32))
        for name, module in model.named_modules()
        if "_proj" in name and name != kept
    }
    codec = FORMATS["awq"]
    tensors = {name: t.clone() for name, t in model.state_dict().items() if name.removesuffix(".weight") not in made}
    for module, weight in made.items():
        tensors |= codec.encode(module, weight)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    config = json.loads(model.config.to_json_string())
    facts = CheckpointFacts("made-here", "dense", Scheme(), Architecture())
    schemes = {module: weight.format for module, weight in made.items()}
    config["quantization_config"] = codec.config(schemes, ("lm_head", kept), facts)
    (tmp_path / "config.json").write_text(json.dumps(config))
    from transformers import AutoModelForCausalLM

    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float16, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    assert type(loaded.get_submodule(kept)) is torch.nn.Linear


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_bitsandbytes_opens_four_bits(kind: str, double: bool, tmp_path: Path) -> None:
    """Saved by transformers with bitsandbytes, taken apart, written by us, opened again."""
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    from quantlab.checkpoint.open import read

    source, target = tmp_path / "source", tmp_path / "target"
    plain = tmp_path / "plain"
    tiny_model(torch.bfloat16).save_pretrained(plain)
    settings = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=kind,
        bnb_4bit_use_double_quant=double,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    AutoModelForCausalLM.from_pretrained(plain, quantization_config=settings, dtype=torch.bfloat16).save_pretrained(
        source
    )
    facts, stored, codec = read(source), load_file(source / "model.safetensors"), FORMATS["bitsandbytes"]
    made = {
        layer.name: codec.decode(layer, {role: stored[name] for role, name in layer.tensors.items()})
        for layer in codec.layers(facts)
    }
    assert len(made) == 7
    target.mkdir()
    owned = {name for layer in codec.layers(facts) for name in layer.tensors.values()}
    tensors = {name: tensor for name, tensor in stored.items() if name not in owned}
    for module, weight in made.items():
        tensors |= codec.encode(module, weight)
    assert tensors.keys() == stored.keys()
    assert all(torch.equal(tensors[name], stored[name]) for name in stored)
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    before = config["quantization_config"]
    written = codec.config({module: weight.format for module, weight in made.items()}, ("lm_head",), facts)
    assert all(before[key] == value for key, value in written.items() if key != "llm_int8_skip_modules"), (
        before,
        written,
    )
    (target / "config.json").write_text(json.dumps({**config, "quantization_config": written}))
    ids = torch.tensor([[1, 5, 9, 33]])
    with torch.no_grad():
        one, other = (
            AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)(ids).logits
            for folder in (source, target)
        )
    assert torch.equal(one, other)
