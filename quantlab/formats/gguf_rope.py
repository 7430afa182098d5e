"""Rotary scaling between GGUF and a Hugging Face config.

Linear and YaRN scaling are metadata. Llama 3's is not: its per-frequency factors are stored as a tensor,
``rope_freqs.weight`` of ``[head_dim / 2]`` float32, and the four parameters behind them are lost. They are found
again by computing the factors of the parameter sets that released models use (``matrix/gguf.yaml``).

Source: ggml-org/llama.cpp: convert_hf_to_gguf.py, ``LlamaModel.generate_extra_tensors``;
huggingface/transformers: src/transformers/modeling_rope_utils.py, ``_compute_llama3_parameters``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from quantlab.errors import CheckpointError
from quantlab.formats.gguf_names import gguf_data

ROPE_FACTORS = "rope_freqs.weight"


def llama3_factors(theta: float, head_dim: int, scaling: Mapping[str, Any]) -> list[float]:
    """Return what each rotary frequency is divided by (``head_dim / 2`` numbers; 1 leaves it as it is)."""
    factor, low, high = (float(scaling[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    context = float(scaling["original_max_position_embeddings"])
    factors = []
    for index in range(0, head_dim, 2):
        wavelength = 2 * math.pi * theta ** (index / head_dim)
        if wavelength < context / high:
            factors.append(1.0)
        elif wavelength > context / low:
            factors.append(factor)
        else:
            smooth = (context / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return factors


def rope_config(
    fields: Mapping[str, Any], prefix: str, factors: list[float] | None, config: Mapping[str, Any]
) -> dict[str, Any]:
    """Return ``rope_scaling`` for the config, or nothing where the model has none.

    Raises:
        CheckpointError: factors that no known parameter set gives.
    """
    if factors is not None:
        return {"rope_scaling": _known_llama3(factors, float(config.get("rope_theta", 10000.0)))}
    kind = fields.get(f"{prefix}.rope.scaling.type")
    if kind in {None, "none"}:
        return {}
    scaling: dict[str, Any] = {"rope_type": kind, "factor": float(fields.get(f"{prefix}.rope.scaling.factor", 1.0))}
    context = fields.get(f"{prefix}.rope.scaling.original_context_length")
    if context is not None:
        scaling["original_max_position_embeddings"] = context
    return {"rope_scaling": scaling}


def _known_llama3(factors: list[float], theta: float) -> dict[str, Any]:
    for candidate in gguf_data()["llama3_rope"]:
        computed = llama3_factors(theta, 2 * len(factors), candidate)
        if all(math.isclose(one, other, rel_tol=1e-4) for one, other in zip(computed, factors, strict=True)):
            return {"rope_type": "llama3", **candidate}
    message = f"{ROPE_FACTORS} holds rotary factors (largest {max(factors):g}) that no known Llama 3 scaling gives"
    raise CheckpointError(message, hint="add the model's rope_scaling to llama3_rope in matrix/gguf.yaml")
