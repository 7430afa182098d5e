"""One pass over the windows; whoever needs log-probabilities looks on.

Perplexity and divergence come from the same forward passes. A position ``t`` of a window predicts its token
``t + 1``; only positions whose next token is scored are looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Protocol

import torch

from quantlab.evaluation.language_model import LanguageModel
from quantlab.evaluation.windows import Window
from quantlab.progress import Progress


class Onlooker(Protocol):
    """Sees log-probabilities chunk by chunk, in the order of the scored positions."""

    def see(self, logits: torch.Tensor, normalizer: torch.Tensor) -> None:
        """Look at float32 logits ``[positions, vocabulary]`` and their logsumexp ``[positions]``."""


@dataclass
class Score:
    """Sums over the scored tokens.

    Attributes:
        losses: negative log-likelihood of each window, summed, in nats.
        tokens: scored tokens of each window.
        non_finite: positions with a logit that is NaN or plus infinity.
    """

    losses: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    non_finite: int = 0

    def perplexity(self) -> tuple[float | None, float | None]:
        """Return the perplexity and its standard error over windows (delta method); None where not finite.

        The error is None for fewer than two windows.
        """
        total = sum(self.tokens)
        mean = sum(self.losses) / total
        if self.non_finite or not math.isfinite(mean) or mean > 700:
            return None, None
        value = math.exp(mean)
        if len(self.losses) < 2:
            return value, None
        spread = sum((loss - mean * n) ** 2 for loss, n in zip(self.losses, self.tokens, strict=True))
        count = len(self.losses)
        return value, value * math.sqrt(spread * count / (count - 1)) / total


def score(
    model: LanguageModel,
    windows: Sequence[Window],
    *,
    batch: int,
    onlookers: Sequence[Onlooker] = (),
    report: Callable[[Progress], None] | None = None,
) -> Score:
    """Run the model over the windows.

    Args:
        model: the model.
        windows: windows as ``windows.cut`` makes them.
        batch: windows in one forward pass; those of one pass have the same length.
        onlookers: see every scored position.
        report: hears of progress.
    """
    result = Score()
    for _, same_length in groupby(windows, key=lambda item: len(item.ids)):
        group = list(same_length)
        for start in range(0, len(group), batch):
            _score_batch(model, group[start : start + batch], result, onlookers)
            if report is not None:
                report(Progress("perplexity", len(result.losses), len(windows), "windows"))
    return result


def _score_batch(model: LanguageModel, part: list[Window], result: Score, onlookers: Sequence[Onlooker]) -> None:
    ids = torch.tensor([item.ids for item in part])
    losses = [0.0] * len(part)
    for row, start, logits in model.logits_in_chunks(ids):
        first = max(start, part[row].first_scored - 1)
        last = min(start + logits.shape[0], ids.shape[1] - 1)
        if first >= last:
            continue
        losses[row] += _score_chunk(
            logits[first - start : last - start], ids[row, first + 1 : last + 1], result, onlookers
        )
    result.losses += losses
    result.tokens += [item.scored for item in part]


def _score_chunk(logits: torch.Tensor, targets: torch.Tensor, result: Score, onlookers: Sequence[Onlooker]) -> float:
    normalizer = torch.logsumexp(logits, dim=-1)
    chosen = logits.gather(1, targets.to(logits.device)[:, None])[:, 0]
    losses = normalizer - chosen
    # minus infinity is a masked word; NaN and plus infinity anywhere in a row make its logsumexp non-finite
    result.non_finite += int((~torch.isfinite(losses)).sum())
    for onlooker in onlookers:
        onlooker.see(logits, normalizer)
    return float(losses.double().sum())
