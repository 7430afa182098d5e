#!/usr/bin/env python3
"""What the evaluator costs beside the bare work, as ratios in one run, printed as JSON.

usage: evaluate.py CHECKPOINT [--tokens N] [--window N] [--batch N] [--device D]

``perplexity_ratio`` is scoring the text (logits in chunks, losses, standard error) over the same forward passes of
the bare model; ``load_ratio`` is load plus load proof (keys, dense tensors compared, bytes) over the load alone.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from quantlab import text
from quantlab.checkpoint.open import read
from quantlab.evaluation import load_proof, memory, modules, scoring, windows
from quantlab.evaluation.engines.transformers import file_layers
from quantlab.evaluation.engines.transformers_load import load, load_tokenizer
from quantlab.evaluation.job import LoadOptions
from quantlab.evaluation.language_model import LanguageModel


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds that some work took, and what it gave."""
    started = time.perf_counter()
    value = work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started, value


def prove(checkpoint: str, model: Any, info: dict[str, Any]) -> None:
    """Do the load proof."""
    facts = read(checkpoint)
    layers, _ = file_layers(facts)
    with load_proof.open_tensors(facts) as source:
        load_proof.differing_tensors(model, facts, source, layers)
    load_proof.missing_keys(model, info)
    modules.kernels(model, layers)
    memory.allocated(model)


@torch.inference_mode()
def bare(model: Any, parts: list[windows.Window], batch: int, device: torch.device) -> None:
    """Run the same forward passes and look at nothing."""
    for start in range(0, len(parts), batch):
        ids = torch.tensor([part.ids for part in parts[start : start + batch]], device=device)
        model(input_ids=ids, use_cache=False)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()

    checkpoint, settings = str(options.checkpoint), LoadOptions(device=options.device)
    load(checkpoint, settings)  # imports and file cache are warm for both
    load_seconds, loaded = timed(lambda: load(checkpoint, settings))
    proof_seconds, _ = timed(lambda: prove(checkpoint, loaded.model, loaded.info))
    tokenizer = load_tokenizer(checkpoint, settings)
    ids = tokenizer(text.builtin("evaluation").content, add_special_tokens=False, verbose=False)["input_ids"]
    parts = windows.cut(ids[: options.tokens], window=options.window, stride=options.window, beginning=None)
    model = LanguageModel(loaded.model)
    bare(loaded.model, parts[: options.batch], options.batch, model.device)
    bare_seconds, _ = timed(lambda: bare(loaded.model, parts, options.batch, model.device))
    score_seconds, scored = timed(lambda: scoring.score(model, parts, batch=options.batch))
    found = {
        "tokens": sum(scored.tokens),
        "perplexity": scored.perplexity()[0],
        "bare_forward_seconds": bare_seconds,
        "perplexity_seconds": score_seconds,
        "perplexity_ratio": score_seconds / bare_seconds,
        "load_seconds": load_seconds,
        "proof_seconds": proof_seconds,
        "load_ratio": (load_seconds + proof_seconds) / load_seconds,
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
