"""Small checkpoints written byte by byte, so that each test can break exactly one thing."""

import json
import struct
from pathlib import Path

import numpy as np

WIDTH = {"F32": 4, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "I64": 8, "I8": 1, "U8": 1, "F8_E4M3": 1, "F8_E8M0": 1}


def tensor(dtype, shape, values=None):
    """Return (dtype, shape, bytes); zero bytes where no values are given."""
    size = int(np.prod(shape, dtype=np.int64)) * WIDTH[dtype]
    content = bytes(size) if values is None else np.ascontiguousarray(values).tobytes()
    assert len(content) == size, (dtype, shape, len(content))
    return dtype, list(shape), content


def bf16(values):
    """Return the high halves of float32 numbers, as bf16 is stored."""
    return (np.asarray(values, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)


def ones(shape, dtype="BF16"):
    """Return a tensor of ones."""
    full = np.ones(shape, dtype=np.float32)
    return tensor(dtype, shape, {"BF16": bf16, "F32": np.float32, "F16": np.float16}[dtype](full))


def safetensors_bytes(tensors, metadata=None):
    """Return a safetensors file."""
    header, data = {}, b""
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def write(folder: Path, config, shards, index=None, **documents):
    """Write a checkpoint folder; ``shards`` maps file name to tensors, ``index`` True makes the right index."""
    folder.mkdir(parents=True, exist_ok=True)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    for name, tensors in shards.items():
        (folder / name).write_bytes(safetensors_bytes(tensors))
    if index is True:
        index = {name: file for file, tensors in shards.items() for name in tensors}
    if index is not None:
        content = {"metadata": {}, "weight_map": index}
        (folder / "model.safetensors.index.json").write_text(json.dumps(content))
    for name, content in documents.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 96, "tie_word_embeddings": False,
}  # fmt: skip
NAMES = ("self_attn.q_proj", "mlp.down_proj")
SHAPES = {"self_attn.q_proj": (64, 64), "mlp.down_proj": (64, 128)}


def dense_tensors():
    """Embeddings, head and a norm of the small model."""
    return {
        "model.embed_tokens.weight": ones((96, 64)),
        "lm_head.weight": ones((96, 64)),
        "model.norm.weight": ones((64,)),
    }


def gptq(group=32):
    """A 4-bit GPTQ checkpoint of one layer: (config, tensors)."""
    block = {"quant_method": "gptq", "bits": 4, "group_size": group, "sym": True, "desc_act": False}
    tensors = dense_tensors()
    for name in NAMES:
        rows, columns = SHAPES[name]
        base = f"model.layers.0.{name}"
        tensors[f"{base}.qweight"] = tensor("I32", (columns // 8, rows))
        tensors[f"{base}.qzeros"] = tensor("I32", (columns // group, rows // 8))
        tensors[f"{base}.scales"] = ones((columns // group, rows), "F16")
        tensors[f"{base}.g_idx"] = tensor("I32", (columns,))
    return {**LLAMA, "quantization_config": block}, tensors


def fp8_blocks():
    """A DeepSeek-style FP8 checkpoint with blocks of 32 x 32: (config, tensors)."""
    block = {"quant_method": "fp8", "weight_block_size": [32, 32], "activation_scheme": "dynamic"}
    tensors = dense_tensors()
    for name in NAMES:
        rows, columns = SHAPES[name]
        tensors[f"model.layers.0.{name}.weight"] = tensor("F8_E4M3", (rows, columns))
        tensors[f"model.layers.0.{name}.weight_scale_inv"] = ones((rows // 32, columns // 32), "F32")
    return {**LLAMA, "quantization_config": block}, tensors
