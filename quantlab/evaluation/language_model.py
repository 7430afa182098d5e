"""Hidden states and logits apart, so that a large vocabulary never needs one giant tensor.

The logits of a window of 2048 tokens over 150,000 words are 1.2 GB in float32. Here the decoder runs once, and the
output head is applied to some positions at a time. What a model does to its logits after the head (Gemma's
soft cap, Cohere's and Granite's scale) is read from its config, and the first use compares both ways on a short
prompt: where they differ, the model's own full forward pass is used instead.

Source of the three rules: huggingface/transformers: models/{gemma2,cohere,granite}/modeling_*.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

CHUNK_ELEMENTS = 1 << 23
"""Logits at once: 32 MB in float32, near the size of a processor's last cache."""


class LanguageModel:
    """A causal language model of transformers.

    Args:
        model: the model, in evaluation mode.
        forward: what runs a forward pass (the compiled model, or the model itself).
    """

    def __init__(self, model: Any, forward: Any | None = None) -> None:
        self.model = model
        self.forward = model if forward is None else forward
        self.head = model.get_output_embeddings()
        self.device = model.get_input_embeddings().weight.device
        self.vocabulary = int(model.config.get_text_config().vocab_size)
        self._split: bool | None = None

    @torch.inference_mode()
    def full_logits(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the model's own logits ``[batch, tokens, vocabulary]`` in its own dtype."""
        logits: torch.Tensor = self.forward(input_ids=ids.to(self.device), use_cache=False).logits
        return logits

    @torch.inference_mode()
    def logits_in_chunks(self, ids: torch.Tensor) -> Iterator[tuple[int, int, torch.Tensor]]:
        """Yield ``(window, first position, float32 logits [positions, vocabulary])`` over a batch ``[batch, tokens]``.

        The tensor may be overwritten by the caller.
        """
        step = max(1, CHUNK_ELEMENTS // self.vocabulary)
        if not self._splits():
            everything = self.full_logits(ids)
            for row in range(ids.shape[0]):
                for start in range(0, ids.shape[1], step):
                    yield row, start, everything[row, start : start + step].to(torch.float32, copy=True)
            return
        hidden = self._hidden(ids)
        for row in range(ids.shape[0]):
            for start in range(0, ids.shape[1], step):
                yield row, start, self._finish(self.head(hidden[row, start : start + step]))

    def _hidden(self, ids: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.model.base_model(input_ids=ids.to(self.device), use_cache=False).last_hidden_state
        return hidden

    def _finish(self, raw: torch.Tensor) -> torch.Tensor:
        """Apply what the model does to its logits behind the head."""
        config = self.model.config.get_text_config()
        cap = getattr(config, "final_logit_softcapping", None)
        logits = raw
        if cap:
            logits = torch.tanh(logits / cap) * cap
        if (scale := getattr(config, "logit_scale", None)) is not None:
            logits = logits * scale
        if (divisor := getattr(config, "logits_scaling", None)) is not None:
            logits = logits / divisor
        return logits.to(torch.float32, copy=logits is raw)

    def _splits(self) -> bool:
        """Say whether decoder and head give what the whole model gives; asked once."""
        if self._split is None:
            self._split = self.forward is self.model and self._same_both_ways()
        return self._split

    def _same_both_ways(self) -> bool:
        if self.head is None or self.model.base_model is self.model:
            return False
        ids = torch.arange(2, 10)[None] % self.vocabulary
        whole = self.full_logits(ids).float()[0]
        try:
            split = self._finish(self.head(self._hidden(ids)[0])).to(whole.device)
        except (AttributeError, TypeError):
            return False
        return split.shape == whole.shape and torch.allclose(split, whole, rtol=1e-2, atol=1e-2, equal_nan=True)
