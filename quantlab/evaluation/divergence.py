"""Kullback-Leibler divergence of a candidate from the original's cached log-probabilities, in nats."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from quantlab.evaluation.reference_cache import Reference
from quantlab.evaluation.result import Divergence

QUANTILE_VALUES = 10_000_000
"""Values that quantiles are taken of; torch sorts no more than 16 million."""


@dataclass
class Comparer:
    """Compares each scored position of a candidate with the same position of the original."""

    reference: Reference
    divergences: list[torch.Tensor] = field(default_factory=list)
    gaps: list[torch.Tensor] = field(default_factory=list)
    agreements: list[torch.Tensor] = field(default_factory=list)
    seen: int = 0

    def see(self, logits: torch.Tensor, normalizer: torch.Tensor) -> None:
        """Look at a chunk ``[positions, vocabulary]``; positions behind the reference's end are left out."""
        end = min(self.seen + logits.shape[0], self.reference.ids.shape[0])
        part = slice(self.seen, end)
        self.seen += logits.shape[0]
        count = max(0, part.stop - part.start)
        if count == 0:
            return
        logits, normalizer = logits[:count], normalizer[:count]
        ids = self.reference.ids[part].to(logits.device, torch.int64)
        lower, gap = _bounds(logits, normalizer, ids, self.reference, part)
        self.divergences.append(lower.cpu())
        self.gaps.append(gap.cpu())
        self.agreements.append((logits.argmax(-1) == ids[:, 0]).cpu())

    def result(self, noise_floor: float | None) -> Divergence:
        """Sum up what was seen."""
        values = torch.cat(self.divergences)
        if not bool(torch.isfinite(values).all()):
            return Divergence(None, None, None, None, None, None, noise_floor, None, values.numel())
        agreement = torch.cat(self.agreements).double().mean()
        quantiles = torch.quantile(
            values[:: max(1, values.numel() // 10_000_000)], torch.tensor([0.5, 0.9, 0.99]).double()
        )
        error = float(values.std()) / math.sqrt(values.numel()) if values.numel() > 1 else None
        return Divergence(
            kl_mean=max(0.0, float(values.mean())),
            kl_median=float(quantiles[0]),
            kl_p90=float(quantiles[1]),
            kl_p99=float(quantiles[2]),
            kl_standard_error=error,
            top1_agreement=float(agreement),
            noise_floor=noise_floor,
            kl_error_bound=float(torch.cat(self.gaps).mean()),
            positions=values.numel(),
        )


def _bounds(
    logits: torch.Tensor, normalizer: torch.Tensor, ids: torch.Tensor, reference: Reference, part: slice
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the lower bound of each position's divergence and how much more it can be, in float64."""
    ours = (logits.gather(1, ids) - normalizer[:, None]).double()
    theirs = reference.logs[part].to(logits.device).double()
    mass, entropy = reference.rest[part].to(logits.device).double().unbind(-1)
    top = (theirs.exp() * (theirs - ours)).sum(-1)
    if ids.shape[1] == logits.shape[1]:
        return top, torch.zeros_like(top)
    left = (1 - ours.exp().sum(-1)).clamp_min(torch.finfo(torch.float32).tiny)
    rest = torch.where(mass > 0, mass * (mass.clamp_min(1e-300).log() - left.log()), 0.0)
    smallest = (logits.min(-1).values - normalizer).double()
    above = entropy - mass * smallest
    return top + rest, (above - rest).clamp_min(0)
