"""Whether the shapes of a checkpoint fit what a library needs, told from the headers alone."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from quantlab.checkpoint.facts import CheckpointFacts, TensorInfo
from quantlab.formats.interface import Obstacle

_LINEAR = re.compile(r"\.(layers|h|blocks|block)\.\d+\..*\.weight$")
_NOT_LINEAR = re.compile(r"norm|embed|conv|router|(mlp|moe)\.gate\.")
_EXPERT = re.compile(r"\.experts?\.")


def linear_weights(facts: CheckpointFacts) -> Iterator[TensorInfo]:
    """Yield the matrices of linear layers inside the decoder, single experts included, routers left out."""
    for name, tensor in facts.tensors.items():
        if len(tensor.shape) == 2 and _LINEAR.search(name) and not _NOT_LINEAR.search(name):
            yield tensor


def expert_weights(facts: CheckpointFacts) -> Iterator[TensorInfo]:
    """Yield the weights of experts, fused ones (three dimensions) included."""
    for name, tensor in facts.tensors.items():
        if _EXPERT.search(name) and len(tensor.shape) >= 2 and not name.endswith("bias"):
            yield tensor


def group_obstacles(facts: CheckpointFacts, group_size: int) -> list[Obstacle]:
    """Say which input widths the group size does not divide, and which sizes would do.

    A width that is not divided is refused although some libraries accept it: gptqmodel quantizes, saves and
    loads such a layer, and its first forward pass on a CPU fails.
    """
    if group_size <= 0:
        return []
    widths = [tensor.shape[1] for tensor in linear_weights(facts)]
    bad = next((t for t in linear_weights(facts) if t.shape[1] % group_size), None)
    if bad is None:
        return []
    common = math.gcd(*widths)
    fitting = [str(size) for size in (128, 64, 32) if size != group_size and common % size == 0]
    offer = f"group_size={' or '.join(fitting)}" if fitting else "group_size=-1 (one scale a row)"
    reason = f"{bad.name} has {bad.shape[1]} input columns, which groups of {group_size} do not divide"
    return [Obstacle("group-size", reason, offer)]


def block_obstacles(facts: CheckpointFacts, block: int) -> list[Obstacle]:
    """Say which matrix a square block does not divide in both directions."""
    for tensor in linear_weights(facts):
        if tensor.shape[0] % block or tensor.shape[1] % block:
            reason = f"{tensor.name} is {tensor.shape[0]} x {tensor.shape[1]}, which blocks of {block} do not divide"
            return [Obstacle("block-size", reason, "an FP8 scheme per channel")]
    return []


def row_obstacles(facts: CheckpointFacts, rows: int, who: str) -> list[Obstacle]:
    """Say which matrix has a number of output rows that ``rows`` does not divide."""
    for tensor in linear_weights(facts):
        if tensor.shape[0] % rows:
            reason = f"{tensor.name} has {tensor.shape[0]} rows; {who} needs multiples of {rows}"
            return [Obstacle("rows", reason, "type=int8, or a gpu")]
    return []
