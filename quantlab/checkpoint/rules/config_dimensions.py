"""Sizes in ``config.json`` against the tensors that they describe."""

from __future__ import annotations

import re
from collections.abc import Iterator

from quantlab.checkpoint.facts import Finding
from quantlab.checkpoint.open import Opened

_EMBEDDING = re.compile(r"(^|\.)(embed_tokens|wte|word_embeddings|tok_embeddings|embed_in)\.weight$")
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")


def check(opened: Opened) -> Iterator[Finding]:
    """Compare vocabulary, hidden size and number of layers."""
    shape, facts = opened.facts.architecture, opened.facts
    if not opened.headers or facts.format in {"gguf", "adapter"}:
        return
    if not opened.listing.config:
        message = "there is no config.json beside the weights"
        yield Finding("config-missing", "error", "config.json", message, "download it from where the weights are from")
        return
    for name, tensor in opened.layout.dense.items():
        if not _EMBEDDING.search(name) or len(tensor.shape) != 2 or "visual" in name or "vision" in name:
            continue
        for size, got, key in ((shape.hidden_size, tensor.shape[1], "hidden_size"),
                               (shape.vocab_size, tensor.shape[0], "vocab_size")):  # fmt: skip
            if size and got != size and not (key == "vocab_size" and got > size):
                message = f"{name} is {list(tensor.shape)}, the config says {key} {size}"
                yield Finding(
                    "config-dimension", "error", f"config.json: {key}", message, "the config is of another model"
                )
        break
    complete = len(opened.headers) == len(opened.listing.weights)
    numbers = {
        int(match[1])
        for name in facts.tensors
        if (match := _LAYER.search(name)) and "vis" not in name and len(match[1]) < 6
    }
    if (
        shape.num_hidden_layers
        and numbers
        and complete
        and not shape.multimodal
        and max(numbers) + 1 < shape.num_hidden_layers
    ):
        message = f"the tensors have {max(numbers) + 1} layers, the config says {shape.num_hidden_layers}"
        yield Finding("config-dimension", "error", "config.json: num_hidden_layers", message, "layers are missing")
