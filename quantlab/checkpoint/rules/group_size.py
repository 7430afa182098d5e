"""The group size against the columns that it has to divide: kernels refuse a ragged last group, or read past it."""

from __future__ import annotations

from collections.abc import Iterator

from quantlab.checkpoint.facts import Finding
from quantlab.checkpoint.open import Opened


def check(opened: Opened) -> Iterator[Finding]:
    """Compare the config's group size with hidden and intermediate sizes (tensors are the other rule's)."""
    weights, shape = opened.facts.scheme.weights, opened.facts.architecture
    if weights is None or weights.granularity != "group" or not isinstance(weights.group_size, int):
        return
    group = weights.group_size
    if group <= 0 or opened.facts.format == "gguf":
        return
    for key in ("hidden_size", "intermediate_size", "moe_intermediate_size"):
        size = getattr(shape, key)
        if size and size % group:
            offers = [offer for offer in (128, 64, 32, 16) if offer < group and size % offer == 0]
            message = f"{key} {size} is no multiple of the group size {group}"
            fix = f"groups of {offers[0]} divide it" if offers else "use one scale a channel"
            yield Finding("group-size", "warning", f"config.json: {key}", message, fix)
