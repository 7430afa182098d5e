"""A Hugging Face config as GGUF metadata: the way back of ``GgufModel.config``.

Source: ggml-org/llama.cpp: convert_hf_to_gguf.py (``set_gguf_parameters``), gguf-py/gguf/constants.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantlab.checkpoint.values import first, integer, mapping, number
from quantlab.errors import CheckpointError, ConversionRefused
from quantlab.formats.gguf_names import GgufArchitecture, gguf_data
from quantlab.formats.gguf_rope import llama3_factors

FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "BF16": 32, "MXFP4": 38}
"""``general.file_type`` by the type of most weights (gguf-py/gguf/constants.py, ``LlamaFileType``)."""

QUANTIZATION_VERSION = 2


def model_fields(
    config: Mapping[str, Any], entry: GgufArchitecture, kind: str, name: str
) -> dict[str, int | float | str]:
    """Return ``general.*`` and ``<architecture>.*`` metadata; ints are uint32, floats float32.

    Args:
        config: the folder's ``config.json``.
        entry: its architecture.
        kind: type of most weights.
        name: the model's name.

    Raises:
        CheckpointError: the config lacks a number that every file needs.
        ConversionRefused: rotary scaling that GGUF metadata cannot say.
    """
    fields: dict[str, int | float | str] = {
        "general.name": name,
        "general.file_type": FILE_TYPES[kind],
        "general.quantization_version": QUANTIZATION_VERSION,
    }
    prefix, aliases = entry.gguf, gguf_data()["aliases"]
    for key, source in entry.config.items():
        value = (
            rope_theta(config) if source == "rope_theta" else number(first(config, (source, *aliases.get(source, ()))))
        )
        if source == "num_key_value_heads" and value is None:
            value = number(config.get("num_attention_heads"))
        if value is None:
            raise CheckpointError(f"config.json has no {source}, which GGUF's {prefix}.{key} needs")
        fields[f"{prefix}.{key}"] = float(value) if key in _FLOATS else int(value)
    head = head_dim(config)
    fields[f"{prefix}.attention.key_length"] = head
    fields[f"{prefix}.attention.value_length"] = head
    if entry.permute:
        fields[f"{prefix}.rope.dimension_count"] = head
    fields[f"{prefix}.vocab_size"] = integer(config.get("vocab_size")) or 0
    return fields | _scaling_fields(config, prefix)


_FLOATS = {"attention.layer_norm_rms_epsilon", "rope.freq_base"}


def head_dim(config: Mapping[str, Any]) -> int:
    """Return the size of an attention head."""
    stated = integer(config.get("head_dim"))
    if stated:
        return stated
    heads, hidden = integer(config.get("num_attention_heads")), integer(config.get("hidden_size"))
    if not heads or not hidden:
        raise CheckpointError("config.json has no head_dim and not both of hidden_size and num_attention_heads")
    return hidden // heads


def rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return rotary settings from ``rope_parameters`` (transformers 5) or ``rope_scaling`` (before)."""
    return mapping(config.get("rope_parameters")) or mapping(config.get("rope_scaling"))


def rope_theta(config: Mapping[str, Any]) -> float:
    """Return the rotary base; 10000 where the config says none."""
    return float(number(rope(config).get("rope_theta")) or number(config.get("rope_theta")) or 10000.0)


def rope_factors(config: Mapping[str, Any]) -> list[float] | None:
    """Return the values of ``rope_freqs.weight``, which Llama 3's scaling needs, or None."""
    scaling = rope(config)
    return llama3_factors(rope_theta(config), head_dim(config), scaling) if _kind(scaling) == "llama3" else None


def _kind(scaling: Mapping[str, Any]) -> str:
    return str(scaling.get("rope_type") or scaling.get("type") or "default")


def _scaling_fields(config: Mapping[str, Any], prefix: str) -> dict[str, int | float | str]:
    scaling = rope(config)
    kind = _kind(scaling)
    if kind in {"default", "llama3"}:
        return {}
    factor = number(scaling.get("factor"))
    if kind not in {"linear", "yarn"} or factor is None:
        raise ConversionRefused(f"rotary scaling {kind!r} cannot be said in GGUF metadata")
    fields: dict[str, int | float | str] = {
        f"{prefix}.rope.scaling.type": kind,
        f"{prefix}.rope.scaling.factor": float(factor),
    }
    context = integer(scaling.get("original_max_position_embeddings"))
    return fields if context is None else fields | {f"{prefix}.rope.scaling.original_context_length": context}
