"""Open a checkpoint with transformers as a user would, and keep what it says about the load."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from quantlab.evaluation.job import LoadOptions


@dataclass(frozen=True)
class Loaded:
    """A model with what its load reported.

    Attributes:
        model: in evaluation mode.
        info: ``missing_keys``, ``unexpected_keys``, ``mismatched_keys``.
        seconds: of the load call alone.
    """

    model: Any
    info: dict[str, Any]
    seconds: float


def load(checkpoint: str, options: LoadOptions) -> Loaded:
    """Load the model; errors are the library's own."""
    from transformers import AutoModelForCausalLM

    keywords: dict[str, Any] = {
        "dtype": options.dtype or "auto",
        "device_map": device_map(options.device),
        "trust_remote_code": options.trust_remote_code,
        "local_files_only": True,
    }
    if options.attention is not None:
        keywords["attn_implementation"] = options.attention
    if options.use_kernels:
        keywords["use_kernels"] = True
    started = time.perf_counter()
    model, info = AutoModelForCausalLM.from_pretrained(checkpoint, output_loading_info=True, **keywords)
    return Loaded(model.eval(), dict(info), time.perf_counter() - started)


def device_map(device: str) -> str | dict[str, str]:
    """Return transformers' device map: ``auto`` spreads over all gpus, and is the CPU where there is none."""
    if device != "auto":
        return {"": device}
    if torch.cuda.is_available():
        return "auto" if torch.cuda.device_count() > 1 else {"": "cuda:0"}
    for kind in ("xpu", "mps"):
        module = getattr(torch, kind, None)
        if module is not None and module.is_available():
            return {"": kind}
    return {"": "cpu"}


def first_device(device: str) -> torch.device:
    """Return the device that a load will begin on: a load that fails says where, too."""
    where = device_map(device)
    return torch.device("cuda:0" if isinstance(where, str) else where[""])


def load_tokenizer(checkpoint: str, options: LoadOptions) -> Any:
    """Return the checkpoint's tokenizer, or None where it has none."""
    from pathlib import Path

    from transformers import AutoTokenizer

    folder = Path(checkpoint)
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        return None
    return AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=options.trust_remote_code, local_files_only=True)
