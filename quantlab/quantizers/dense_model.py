"""The dense model in memory, as every library that works on a loaded model takes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quantlab.errors import CheckpointError


def load_dense(source: Path, device: str, **arguments: Any) -> Any:
    """Return the source as a causal language model of transformers, in its own dtype, in evaluation mode.

    Args:
        source: folder of a dense checkpoint.
        device: torch device string, for every module.
        arguments: further arguments of ``from_pretrained`` (``quantization_config``).

    Raises:
        CheckpointError: weights are missing, so that the model would hold random ones.
    """
    from transformers import AutoModelForCausalLM

    model, report = AutoModelForCausalLM.from_pretrained(
        source, dtype="auto", device_map=device, output_loading_info=True, local_files_only=True, **arguments
    )
    missing = sorted(report.get("missing_keys") or ())
    if missing:
        message = f"{source.name} lacks {len(missing)} weights, the first is {missing[0]}"
        raise CheckpointError(message, hint="quantlab inspect shows what is in the checkpoint")
    return model.eval()


def as_dataset(samples: list[list[int]]) -> Any:
    """Return samples as a ``datasets.Dataset`` with ``input_ids`` and ``attention_mask``."""
    from datasets import Dataset

    return Dataset.from_dict({"input_ids": samples, "attention_mask": [[1] * len(ids) for ids in samples]})


def layer_count(model: Any) -> int:
    """Return the number of decoder layers that the model's config tells."""
    config = getattr(model.config, "text_config", None) or model.config
    return int(getattr(config, "num_hidden_layers", 0) or 0)
