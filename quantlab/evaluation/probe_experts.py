"""Where an expert of the file lies in a loaded model that keeps all experts in 3-D parameters.

transformers 5 fuses the experts of Mixtral and Qwen: ``experts.gate_up_proj`` is ``[experts, 2 * width, in]``, gate
rows before up rows, and ``experts.down_proj`` is ``[experts, in, width]`` (huggingface/transformers:
src/transformers/conversion_mapping.py, models/qwen3_moe/modeling_qwen3_moe.py).
"""

from __future__ import annotations

import re
from typing import Any

import torch

from quantlab.evaluation import modules
from quantlab.formats.interface import Layer

EXPERT = re.compile(r"^(?P<stem>.*\.experts)\.(?P<number>\d+)\.(?P<part>\w+)$")
GATES = {"gate_proj": 0, "w1": 0, "up_proj": 1, "w3": 1}
"""Name of one expert's matrix to its half of ``gate_up_proj``."""
DOWN = ("down_proj", "w2")


def loaded_expert(model: Any, layer: Layer) -> torch.Tensor | None:
    """Return the dense matrix of one expert, or a whole stack of experts, or None where there is none."""
    stack = _parameter(model, layer.weight_name)
    if stack is not None:
        return stack
    found = EXPERT.match(layer.name)
    if found is None:
        return None
    stem = found["stem"].replace("block_sparse_moe", "mlp")
    holder = modules.find(model, found["stem"]) or modules.find(model, stem)
    number, part = int(found["number"]), found["part"]
    if part in GATES and isinstance(both := getattr(holder, "gate_up_proj", None), torch.Tensor) and both.ndim == 3:
        half = both.shape[1] // 2
        start = GATES[part] * half
        return both[number, start : start + half]
    if part in DOWN and isinstance(down := getattr(holder, "down_proj", None), torch.Tensor) and down.ndim == 3:
        return down[number]
    return None


def _parameter(model: Any, name: str) -> torch.Tensor | None:
    stem, _, last = name.rpartition(".")
    value = getattr(modules.find(model, stem), last, None)
    return value if isinstance(value, torch.Tensor) else None
