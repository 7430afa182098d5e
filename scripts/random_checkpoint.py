#!/usr/bin/env python3
"""Write a checkpoint with a config's true shapes and random weights, shard by shard.

usage: random_checkpoint.py CONFIG.json OUTPUT [--shard-gigabytes G] [--layers N] [--device D] [--seed S]

For measuring speed and memory at sizes whose real weights are not at hand: the shapes, names and dtypes are those
of the published model, the numbers are normal with the config's ``initializer_range`` (norm weights are one). The
model is built on the meta device only for its names and shapes; fused 3-D experts of Mixtral and Qwen are written
one expert a tensor, as their published checkpoints are.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

Shape = tuple[int, ...]


def tensor_shapes(config_file: Path, layers: int | None) -> tuple[dict[str, object], list[tuple[str, Shape]]]:
    """Return the config and each tensor's published name and shape, in file order."""
    content = json.loads(config_file.read_text(encoding="utf-8"))
    if layers is not None:
        content["num_hidden_layers"] = layers
    config = AutoConfig.for_model(**content)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    tied = set(getattr(model, "all_tied_weights_keys", None) or {}) if config.tie_word_embeddings else set()
    shapes = []
    for name, tensor in model.state_dict().items():
        if name not in tied:
            shapes += list(published(name, tuple(tensor.shape), fused=config.model_type == "gpt_oss"))
    return content, shapes


def published(name: str, shape: Shape, *, fused: bool) -> Iterator[tuple[str, Shape]]:
    """Yield the names under which published checkpoints hold a tensor of the model in memory."""
    if fused or len(shape) != 3 or ".experts." not in name:
        yield name, shape
        return
    stem, kind = name.rsplit(".", 1)
    for expert in range(shape[0]):
        if kind == "gate_up_proj":
            half = (shape[1] // 2, shape[2])
            yield f"{stem}.{expert}.gate_proj.weight", half
            yield f"{stem}.{expert}.up_proj.weight", half
        else:
            yield f"{stem}.{expert}.{kind}.weight", shape[1:]


def random_tensor(name: str, shape: Shape, spread: float, generator: torch.Generator) -> torch.Tensor:
    """Return one bf16 weight: ones for norms, normal otherwise."""
    if "norm" in name:
        return torch.ones(shape, dtype=torch.bfloat16)
    values = torch.empty(shape, dtype=torch.bfloat16, device=generator.device)
    return values.normal_(0.0, spread, generator=generator).cpu()


def shards(shapes: list[tuple[str, Shape]], limit: int) -> Iterator[list[tuple[str, Shape]]]:
    """Yield the tensors of each shard, at most ``limit`` bytes unless one tensor is larger."""
    shard: list[tuple[str, Shape]] = []
    size = 0
    for name, shape in shapes:
        bytes_here = 2 * torch.Size(shape).numel()
        if shard and size + bytes_here > limit:
            yield shard
            shard, size = [], 0
        shard.append((name, shape))
        size += bytes_here
    yield shard


def main() -> None:
    """Write the checkpoint."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--shard-gigabytes", type=float, default=4.0)
    parser.add_argument("--layers", type=int, help="keep this many layers of the config")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    config, shapes = tensor_shapes(options.config, options.layers)
    generator = torch.Generator(options.device).manual_seed(options.seed)
    options.output.mkdir(parents=True)
    parts = list(shards(shapes, int(options.shard_gigabytes * 1e9)))
    where: dict[str, str] = {}
    for number, part in enumerate(parts, 1):
        single = len(parts) == 1
        file = "model.safetensors" if single else f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        spread = float(str(config["initializer_range"]))
        tensors = {name: random_tensor(name, shape, spread, generator) for name, shape in part}
        save_file(tensors, options.output / file, metadata={"format": "pt"})
        where |= dict.fromkeys(tensors, file)
    (options.output / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    if len(parts) > 1:
        total = sum(2 * torch.Size(shape).numel() for _, shape in shapes)
        index = {"metadata": {"total_size": total}, "weight_map": where}
        (options.output / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


if __name__ == "__main__":
    main()
