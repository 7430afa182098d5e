"""Small checkpoints with the names and shapes of a Llama, made in milliseconds without building a model."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

HIDDEN, INTERMEDIATE, VOCABULARY, HEADS = 64, 128, 96, 2


def tiny_tensors(layers: int = 2, *, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return dense tensors, awkward ones among them: an all-zero row, minus zero, an outlier, a subnormal."""
    generator = torch.Generator().manual_seed(seed)

    def weight(rows: int, columns: int) -> torch.Tensor:
        values = torch.randn(rows, columns, generator=generator) * 0.05
        values[0] = 0.0
        values[1, 0], values[1, 1], values[2, 3] = -0.0, 1e-39, 3.0
        return values.to(dtype)

    tensors = {"model.embed_tokens.weight": weight(VOCABULARY, HIDDEN)}
    for number in range(layers):
        stem = f"model.layers.{number}"
        for name in ("q", "k", "v", "o"):
            tensors[f"{stem}.self_attn.{name}_proj.weight"] = weight(HIDDEN, HIDDEN)
        tensors[f"{stem}.mlp.gate_proj.weight"] = weight(INTERMEDIATE, HIDDEN)
        tensors[f"{stem}.mlp.up_proj.weight"] = weight(INTERMEDIATE, HIDDEN)
        tensors[f"{stem}.mlp.down_proj.weight"] = weight(HIDDEN, INTERMEDIATE)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{stem}.{name}.weight"] = torch.ones(HIDDEN, dtype=dtype)
    return tensors | {"model.norm.weight": torch.ones(HIDDEN, dtype=dtype)}


def tiny_config(layers: int = 2, *, dtype: str = "bfloat16") -> dict:
    """Return the config of the tensors above."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": True,
        "torch_dtype": dtype,
    }


def write_tiny(
    folder: Path, *, layers: int = 2, shards: int = 1, dtype: torch.dtype = torch.bfloat16, seed: int = 0
) -> Path:
    """Write a dense checkpoint with tokenizer, license and generation config; return the folder."""
    folder.mkdir(parents=True)
    name = str(dtype).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(tiny_config(layers, dtype=name)))
    (folder / "generation_config.json").write_text('{"eos_token_id": 2}')
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "LICENSE").write_text("Apache-2.0")
    write_shards(folder, tiny_tensors(layers, dtype=dtype, seed=seed), shards)
    return folder


def write_shards(folder: Path, tensors: dict[str, torch.Tensor], shards: int) -> None:
    """Write tensors in so many files, with an index where there is more than one."""
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(tensors)
    where = {}
    for number in range(shards):
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        part = names[number * len(names) // shards : (number + 1) * len(names) // shards]
        save_file({name: tensors[name] for name in part}, folder / file, metadata={"format": "pt"})
        where |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 1, "note": "kept"}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def all_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Return every tensor of a checkpoint folder, read by safetensors itself."""
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def file_bytes(folder: Path) -> dict[str, bytes]:
    """Return every file's content by name."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
