"""Embeddings and head: one tensor or two, and which of them is quantized."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from quantlab.checkpoint.facts import Finding
from quantlab.checkpoint.open import Opened
from quantlab.checkpoint.patterns import matches

_HEAD = re.compile(r"(^|\.)(lm_head|embed_out|output_layer)(?=\.|$)")
_EMBEDDING = re.compile(r"(^|\.)(embed_tokens|wte|word_embeddings|tok_embeddings|embed_in)(?=\.|$)")


def check(opened: Opened) -> Iterator[Finding]:
    """Compare ``tie_word_embeddings`` with the tensors."""
    facts = opened.facts
    tied = facts.tied_embeddings
    layers = opened.layout.layers
    quantized_head = [module for module in layers if _HEAD.search(module)]
    if opened.headers and facts.format != "gguf":
        yield from _tensors(opened, tied, quantized_head)
    if tied and facts.scheme.weights is not None and not opened.headers:
        yield from _config_only(opened)


def _tensors(opened: Opened, tied: bool | None, quantized_head: list[str]) -> Iterator[Finding]:
    tensors: Mapping[str, Any] = opened.facts.tensors
    head = [name for name in tensors if _HEAD.search(name)]
    embedding = [name for name in tensors if _EMBEDDING.search(name)]
    where = "config.json: tie_word_embeddings"
    if tied and quantized_head:
        message = f"embeddings are tied, but {quantized_head[0]} is stored quantized: loaders lose one of the two"
        fix = "set tie_word_embeddings to false, or leave the head out of quantization"
        yield Finding("tied-head-quantized", "error", where, message, fix)
    elif tied and head and embedding:
        one, other = tensors[head[0]], tensors[embedding[0]]
        if one.shape != other.shape:
            message = f"embeddings are tied, but {head[0]} is {list(one.shape)} and {embedding[0]} {list(other.shape)}"
            yield Finding("tied-head-differs", "error", where, message, "set tie_word_embeddings to false")
        else:
            yield Finding("tied-head-stored", "info", where, f"embeddings are tied, {head[0]} is stored as well",
                          "loaders drop one of the two; delete it")  # fmt: skip
    if tied is False and not head and embedding and _causal(opened):
        yield Finding("head-missing", "error", where, "embeddings are not tied, but no output head is stored",
                      "loaders start with a random head; set tie_word_embeddings to true if that is meant")  # fmt: skip


def _causal(opened: Opened) -> bool:
    return any("CausalLM" in name for name in opened.facts.architecture.architectures)


def _config_only(opened: Opened) -> Iterator[Finding]:
    """Tied embeddings and no ignore entry for the head: writers that quantize the head then clash."""
    facts = opened.facts
    targets = [target for group in facts.scheme.groups for target in group.targets if _HEAD.search(target)]
    if targets and not any(matches(entry, "lm_head") for entry in facts.ignore):
        message = f"embeddings are tied and the config quantizes {targets[0]}"
        yield Finding("tied-head-quantized", "warning", "config.json", message, "set tie_word_embeddings to false")
