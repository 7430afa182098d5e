"""How much memory a model needs on a device, and how fast it can decode at most.

Weights come from the real parameter counts where the checkpoint's headers are at hand, and from the config's
shapes otherwise. Embeddings and the head stay in 16 bit in every preset; tied ones are counted once. Decoding one
token reads every active weight and the whole KV cache once, so memory bandwidth over those bytes is a limit
that no kernel beats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quantlab.checkpoint.facts import Architecture, CheckpointFacts
from quantlab.errors import CheckpointError
from quantlab.matrix.data import read_section

DENSE_BYTES = 2


@dataclass(frozen=True, slots=True)
class Counts:
    """Parameters by what quantizing does to them.

    Attributes:
        linear: attention and MLP weights that every token uses (shared experts too).
        experts: weights of all routed experts.
        embeddings: input embeddings, and the head where it is a matrix of its own.
        other: norms, biases, routers, vision parts: kept in 16 bit.
        head: the part of ``embeddings`` that a decode step reads whole (the head, tied or not).
        active_fraction: share of the routed experts that one token uses.
    """

    linear: int
    experts: int
    embeddings: int
    other: int
    head: int
    active_fraction: float = 1.0

    @property
    def total(self) -> int:
        """All parameters."""
        return self.linear + self.experts + self.embeddings + self.other


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes on the device(s).

    Attributes:
        weights: bytes of the weights.
        kv_cache: bytes of keys and values for the context and batch.
        overhead: the engine's own (an estimate, ``matrix/memory.yaml``).
        read_per_step: bytes that one decode step of the whole batch reads.
    """

    weights: int
    kv_cache: int
    overhead: int
    read_per_step: int

    @property
    def total(self) -> int:
        """Everything together."""
        return self.weights + self.kv_cache + self.overhead


def count_parameters(facts: CheckpointFacts) -> Counts:
    """Return the parameter counts of a checkpoint, from its headers or else from its config.

    Raises:
        CheckpointError: there are no headers and the config lacks a size.
    """
    shape = facts.architecture
    fraction = 1.0
    if shape.num_experts and shape.experts_per_token:
        fraction = min(1.0, shape.experts_per_token / shape.num_experts)
    if facts.parameters.get("total"):
        counts = facts.parameters
        head = counts.get("head", 0) or counts.get("embeddings", 0)
        linear = counts.get("attention", 0) + counts.get("mlp", 0)
        tables = counts.get("embeddings", 0) + counts.get("head", 0)
        experts = counts.get("experts", 0)
        return Counts(linear, experts, tables, counts["total"] - linear - experts - tables, head, fraction)
    return _from_config(facts, fraction)


def _from_config(facts: CheckpointFacts, fraction: float) -> Counts:
    shape = facts.architecture
    hidden, layers, vocabulary = (_needed(facts, name) for name in ("hidden_size", "num_hidden_layers", "vocab_size"))
    config = _text_config(facts)
    table = vocabulary * hidden
    tables = table if shape.tied_embeddings else 2 * table
    expert_layers = _expert_layers(config, shape, layers)
    shared = int(config.get("n_shared_experts") or 0) * (shape.moe_intermediate_size or 0)
    shared += int(config.get("shared_expert_intermediate_size") or 0)
    dense_mlp = 3 * hidden * (shape.intermediate_size or 4 * hidden) * (layers - expert_layers)
    experts = 3 * hidden * _expert_width(shape) * (shape.num_experts or 0) * expert_layers
    linear = layers * _attention(config, shape, hidden) + dense_mlp + 3 * hidden * shared * expert_layers
    other = 2 * hidden * layers + hidden + hidden * (shape.num_experts or 0) * expert_layers
    return Counts(linear, experts, tables, other, table, fraction)


def _needed(facts: CheckpointFacts, name: str) -> int:
    value = getattr(facts.architecture, name)
    if value is None:
        raise CheckpointError(f"{facts.path}: config.json does not say {name}", hint="memory needs the model's shape")
    return int(value)


def _text_config(facts: CheckpointFacts) -> Mapping[str, Any]:
    config: Mapping[str, Any] = facts.config or {}
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def _expert_width(shape: Architecture) -> int:
    return shape.moe_intermediate_size or shape.intermediate_size or 0


def _expert_layers(config: Mapping[str, Any], shape: Architecture, layers: int) -> int:
    if not shape.num_experts:
        return 0
    listed = config.get("mlp_only_layers")
    dense = len(listed) if isinstance(listed, list) else 0
    dense = max(dense, int(config.get("first_k_dense_replace") or 0))
    step = max(1, int(config.get("decoder_sparse_step") or config.get("moe_layer_freq") or 1))
    return max(0, (layers - dense) // step)


def _attention(config: Mapping[str, Any], shape: Architecture, hidden: int) -> int:
    heads = shape.num_attention_heads or 1
    width = shape.head_dim or hidden // heads
    if shape.kv_lora_rank:
        return _latent_attention(config, shape, hidden, heads, width)
    shared = shape.num_key_value_heads or heads
    return 2 * hidden * heads * width + 2 * hidden * shared * width


def _latent_attention(config: Mapping[str, Any], shape: Architecture, hidden: int, heads: int, width: int) -> int:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""
    rank, rope = shape.kv_lora_rank or 0, shape.qk_rope_head_dim or 0
    plain = int(config.get("qk_nope_head_dim") or width)
    value = int(config.get("v_head_dim") or width)
    query_rank = int(config.get("q_lora_rank") or 0)
    query = hidden * query_rank + query_rank * heads * (plain + rope) if query_rank else hidden * heads * (plain + rope)
    return query + hidden * (rank + rope) + rank * heads * (plain + value) + heads * value * hidden


def kv_cache_bytes(facts: CheckpointFacts, *, context: int, batch: int, bytes_per_value: float = 2.0) -> int:
    """Return bytes of the KV cache: grouped heads, latent attention and sliding windows counted as they are.

    Args:
        facts: the checkpoint.
        context: tokens a sequence, prompt and answer together.
        batch: sequences at a time.
        bytes_per_value: 2 for 16 bit, 1 for FP8 caches.
    """
    shape, config = facts.architecture, _text_config(facts)
    layers = _needed(facts, "num_hidden_layers")
    if shape.kv_lora_rank:
        values = (shape.kv_lora_rank + (shape.qk_rope_head_dim or 0)) * layers * context
    else:
        heads = shape.num_attention_heads or 1
        width = shape.head_dim or _needed(facts, "hidden_size") // heads
        tokens = _cached_tokens(config, shape, layers, context)
        values = 2 * (shape.num_key_value_heads or heads) * width * tokens
    return int(values * batch * bytes_per_value)


def _cached_tokens(config: Mapping[str, Any], shape: Architecture, layers: int, context: int) -> int:
    """Return tokens kept over all layers: a sliding layer keeps its window, a linear one no cache of tokens."""
    window = shape.sliding_window
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and len(kinds) == layers:
        short = min(context, window) if window else context
        kept = {"sliding_attention": short, "chunked_attention": short, "linear_attention": 0}
        return sum(kept.get(str(kind), context) for kind in kinds)
    if window and config.get("use_sliding_window", True):
        return layers * min(context, window)
    return layers * context


def footprint(
    facts: CheckpointFacts,
    *,
    bits_per_weight: float,
    context: int,
    batch: int,
    counts: Counts | None = None,
    bits_per_expert: float | None = None,
) -> Footprint:
    """Return what a model needs, from the bits that a weight takes in memory (scales included).

    Args:
        facts: the checkpoint.
        bits_per_weight: of linear layers; 16 where the engine multiplies them out when it loads.
        context: tokens a sequence.
        batch: sequences at a time.
        counts: parameter counts, where the caller has them.
        bits_per_expert: of routed experts; those of linear layers by default.
    """
    data = read_section("memory")["memory"]
    counts = count_parameters(facts) if counts is None else counts
    linear = bits_per_weight / 8 * counts.linear
    experts = (bits_per_weight if bits_per_expert is None else bits_per_expert) / 8 * counts.experts
    weights = int(linear + experts) + DENSE_BYTES * (counts.embeddings + counts.other)
    cache = kv_cache_bytes(facts, context=context, batch=batch)
    active = min(1.0, counts.active_fraction * batch)
    read = linear + experts * active + DENSE_BYTES * (counts.head + counts.other) + cache
    overhead = int(data["overhead_bytes"] + data["overhead_fraction"] * weights)
    return Footprint(weights, cache, overhead, int(read))
