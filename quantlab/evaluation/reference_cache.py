"""The original's log-probabilities, computed once and kept by hash, so that ten candidates cost one baseline pass.

For each scored position the ``TOP`` most likely tokens are kept with their log-probabilities, and two numbers of
the rest: its mass ``m = sum p`` and ``h = sum p log p``. The divergence of a candidate ``q`` is then known between
two bounds. Below (the log-sum inequality, all of the rest taken as one token)::

    KL >= sum_top p (log p - log q) + m (log m - log q_rest)

and above, since no ``q`` of the rest is less than the smallest one::

    KL <= sum_top p (log p - log q) + h - m log(min q)

With a vocabulary of at most ``TOP`` tokens the two are equal. The lower one is reported, with the mean gap as
``kl_error_bound``.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch

from quantlab.errors import CheckpointError

TOP = 256
"""Tokens of each position that are kept; 2 KB a position."""

LAYOUT = "1"
"""Changed when older files must not be read."""


@dataclass
class Recorder:
    """Collects what the cache keeps while the original is scored."""

    ids: list[torch.Tensor] = field(default_factory=list)
    logs: list[torch.Tensor] = field(default_factory=list)
    rest: list[torch.Tensor] = field(default_factory=list)

    def see(self, logits: torch.Tensor, normalizer: torch.Tensor) -> None:
        """Keep the top of a chunk ``[positions, vocabulary]``."""
        top = torch.topk(logits, min(TOP, logits.shape[1]), dim=-1)
        logs = top.values - normalizer[:, None]
        kept = logs.double().exp()
        entropy = -torch.special.entr(torch.exp(logits - normalizer[:, None])).sum(-1).double()
        mass = (1 - kept.sum(-1)).clamp_min(0)
        tail = torch.minimum(entropy - torch.xlogy(kept, kept).sum(-1), torch.zeros_like(entropy))
        self.ids.append(top.indices.to(torch.int32).cpu())
        self.logs.append(logs.cpu())
        self.rest.append(torch.stack([mass, tail], dim=-1).float().cpu())


@dataclass(frozen=True)
class Reference:
    """What the cache holds.

    Attributes:
        ids: int32 ``[positions, top]``.
        logs: float32 log-probabilities of these tokens.
        rest: float32 ``[positions, 2]``: mass of the rest, and its sum of ``p log p``.
        facts: figures of the original: ``perplexity``, ``noise_floor``, ``tokens_sha256``, ``rounded`` by scheme.
    """

    ids: torch.Tensor
    logs: torch.Tensor
    rest: torch.Tensor
    facts: Mapping[str, Any]

    def save(self, path: Path) -> None:
        """Write the file whole or not at all."""
        from safetensors.torch import save_file

        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
        os.close(descriptor)
        metadata = {"layout": LAYOUT, "facts": json.dumps(dict(self.facts))}
        save_file({"ids": self.ids, "logs": self.logs, "rest": self.rest}, temporary, metadata=metadata)
        Path(temporary).replace(path)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file.

        Raises:
            CheckpointError: it is not one of ours.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(str(path), framework="pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("layout") != LAYOUT:
                    raise CheckpointError(f"{path} is not a cache of log-probabilities of this version")
                tensors = {name: file.get_tensor(name) for name in ("ids", "logs", "rest")}
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"cannot read the log-probabilities in {path}: {error}") from error
        return cls(**tensors, facts=json.loads(metadata["facts"]))

    @classmethod
    def of(cls, recorder: Recorder, facts: Mapping[str, Any]) -> Self:
        """Put a recorder's chunks together."""
        return cls(torch.cat(recorder.ids), torch.cat(recorder.logs), torch.cat(recorder.rest), facts)
