"""Does the tokenizer belong to the model? One of another model loads without an error and makes noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantlab.evaluation.engines.transformers_load import load_tokenizer
from quantlab.evaluation.job import Job


def trouble(job: Job, model: Any) -> str | None:
    """Return what is wrong with the checkpoint's tokenizer, or None; a checkpoint need not have one.

    Token numbers must lie in the embedding, and mean what they mean in the original (``job.baseline``).
    """
    tokenizer = load_tokenizer(job.checkpoint, job.load)
    if tokenizer is None:
        return None
    words = tokenizer.get_vocab()
    rows = int(model.get_input_embeddings().weight.shape[0])
    if (outside := sum(number >= rows for number in words.values())) > 0:
        return f"{outside} of the tokenizer's {len(words)} tokens lie outside the embedding of {rows} rows"
    original = None if job.baseline is None else load_tokenizer(job.baseline, job.load)
    return None if original is None else difference(words, original.get_vocab())


def difference(mine: Mapping[str, int], theirs: Mapping[str, int]) -> str | None:
    """Compare what token numbers mean; tokens that one vocabulary has on top are no matter."""
    known = {number: word for word, number in theirs.items()}
    other = [number for word, number in mine.items() if number in known and known[number] != word]
    if not other:
        return None
    first = min(other)
    word = next(word for word, number in mine.items() if number == first)
    return (
        f"{len(other)} tokens of the tokenizer are not the original's: number {first} is {word!r} here, "
        f"{known[first]!r} there"
    )
