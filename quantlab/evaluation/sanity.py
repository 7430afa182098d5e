"""Short prompts, batches and generations: what fails there and nowhere else.

Half-precision overflow often shows at 8 to 50 tokens only, where the attention sink's huge activations meet a short
softmax; a broken kernel may answer for one row and not for several; a ruined model repeats itself.
"""

from __future__ import annotations

from typing import Any

import torch

from quantlab.evaluation.language_model import LanguageModel
from quantlab.evaluation.result import Continuation, Sanity

LENGTHS = (1, 2, 4, 8, 13, 21, 34, 50)
"""Prompt lengths in tokens."""

PROMPTS = ("The capital of France is", "A function that adds two numbers:\n\ndef add(", "Once upon a time")
NEW_TOKENS = 24

BATCH_ALLOWED = 0.25
"""How far the logits of a prompt may move when others run beside it, relative to their spread: rounding in 16 bit
through some tens of layers moves them by a few percent; rows that are exchanged or empty by more than 100."""


@torch.inference_mode()
def check(model: LanguageModel, tokenizer: Any, ids: list[int], *, generate: bool = True) -> Sanity:
    """Run short prompts cut from ``ids`` and, with a tokenizer, some generations."""
    lengths = tuple(length for length in LENGTHS if length <= len(ids))
    bad = []
    for length in lengths:
        logits = model.full_logits(torch.tensor([ids[:length]]))
        # minus infinity is a masked word; anything else that is not finite is a failure
        if bool(torch.isnan(logits).any()) or bool((logits == torch.inf).any()):
            bad.append(length)
    continuations: tuple[Continuation, ...] = ()
    if generate and tokenizer is not None:
        continuations = tuple(_continue(model, tokenizer, prompt) for prompt in PROMPTS)
    return Sanity(lengths, tuple(bad), _batch_error(model, ids), BATCH_ALLOWED, continuations)


def _batch_error(model: LanguageModel, ids: list[int]) -> float | None:
    """Return how much a prompt's logits differ alone and as each row of a batch, relative to their spread."""
    length = min(16, len(ids) // 2)
    if length == 0:
        return None
    rows = torch.tensor([ids[:length], ids[length : 2 * length], ids[:length]])
    alone = model.full_logits(rows[:1])[0].float()
    together = model.full_logits(rows)[[0, 2]].float()
    if not bool(torch.isfinite(alone).all()) or not bool(torch.isfinite(together).all()):
        return None
    spread = float((alone - alone.mean(-1, keepdim=True)).square().mean().sqrt())
    error = float((together - alone).square().mean((1, 2)).sqrt().max())
    return error / spread if spread > 0 else None


def _continue(model: LanguageModel, tokenizer: Any, prompt: str) -> Continuation:
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"].to(model.device)
    try:
        output = model.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            pad_token_id=tokenizer.pad_token_id or tokenizer.eos_token_id or 0,
        )
    except (RuntimeError, ValueError) as error:
        return Continuation(prompt, "", f"{type(error).__name__}: {str(error).splitlines()[0]}")
    new = output[0, ids.shape[1] :].tolist()
    text = tokenizer.decode(new, skip_special_tokens=True)
    return Continuation(prompt, text, problem(new, text))


def problem(ids: list[int], text: str) -> str | None:
    """Say what is wrong with a continuation: nothing said, or one short piece said over and over."""
    if not ids or not text.strip():
        return "empty"
    if len(ids) >= 12:
        for period in (1, 2):
            if all(ids[i] == ids[i + period] for i in range(len(ids) - period)):
                return f"repeats {'one token' if period == 1 else 'two tokens'}"
    return None
