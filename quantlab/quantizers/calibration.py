"""Calibration samples: windows of token ids, always the same ones for the same text, tokenizer and seed.

Running text is tokenized as a whole, cut into windows of one length that do not overlap, and ``samples`` of
them are drawn with the seed. With chat templates each conversation is one sample, cut at the same length.
Nothing is padded, so a tokenizer without a padding token does no harm.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantlab.errors import UsageError
from quantlab.text import Text

SHORTEST_CHAT = 16
"""Tokens that a conversation needs to count as a sample; shorter ones are passed over."""


@dataclass(frozen=True, slots=True)
class CalibrationPlan:
    """What a user asked for.

    Attributes:
        text: ``builtin``, a file, a folder or a data set (``quantlab.text.read``).
        samples: number of windows.
        sequence_length: tokens of a window.
        chat_template: apply the tokenizer's chat template to each conversation.
        seed: seed of the draw.
    """

    text: str = "builtin"
    samples: int = 32
    sequence_length: int = 512
    chat_template: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Calibration:
    """Samples with their identity.

    Attributes:
        ids: token ids of each sample.
        sha256: of the ids as JSON without spaces; two runs with one hash saw the same samples.
        text: name of the text.
        text_sha256: hash of the whole text.
    """

    ids: tuple[tuple[int, ...], ...]
    sha256: str
    text: str
    text_sha256: str

    @property
    def tokens(self) -> int:
        """Number of tokens in all samples."""
        return sum(map(len, self.ids))

    def write(self, path: Path) -> Path:
        """Write the ids as a JSON list of lists, which is what members read."""
        path.write_text(json.dumps(self.ids, separators=(",", ":")), encoding="utf-8")
        return path

    def summary(self) -> dict[str, Any]:
        """Return what provenance keeps."""
        return {
            "text": self.text,
            "text_sha256": self.text_sha256,
            "samples": len(self.ids),
            "tokens": self.tokens,
            "token_ids_sha256": self.sha256,
        }


def calibrate(text: Text, tokenizer: Any, plan: CalibrationPlan) -> Calibration:
    """Return the samples of ``plan``.

    Args:
        text: the text that ``plan.text`` names.
        tokenizer: a tokenizer of transformers.
        plan: how many samples, how long, which seed.

    Raises:
        UsageError: the text gives fewer samples; says how many tokens are there and how many are needed.
    """
    if plan.samples < 1 or plan.sequence_length < SHORTEST_CHAT:
        message = f"{plan.samples} samples of {plan.sequence_length} tokens are no calibration"
        raise UsageError(message, hint=f"at least one sample of at least {SHORTEST_CHAT} tokens")
    draw = _chats if plan.chat_template else _windows
    ids = tuple(map(tuple, draw(text, tokenizer, plan)))
    digest = hashlib.sha256(json.dumps(ids, separators=(",", ":")).encode()).hexdigest()
    return Calibration(ids, digest, text.name, text.sha256)


def read_ids(path: Path) -> list[list[int]]:
    """Return the samples that ``Calibration.write`` wrote."""
    return [list(map(int, sample)) for sample in json.loads(path.read_text(encoding="utf-8"))]


def _windows(text: Text, tokenizer: Any, plan: CalibrationPlan) -> list[list[int]]:
    ids = tokenizer(text.content, add_special_tokens=False, verbose=False)["input_ids"]
    length = plan.sequence_length
    there = len(ids) // length
    if there < plan.samples:
        message = (
            f"{text.name} gives {len(ids)} tokens, {plan.samples} samples of {length} tokens need "
            f"{plan.samples * length}"
        )
        raise UsageError(message, hint=_way_out(there, plan, "a longer text"))
    chosen = sorted(random.Random(plan.seed).sample(range(there), plan.samples))  # noqa: S311 - a draw, no secret
    return [list(ids[n * length : (n + 1) * length]) for n in chosen]


def _chats(text: Text, tokenizer: Any, plan: CalibrationPlan) -> list[list[int]]:
    if not getattr(tokenizer, "chat_template", None):
        message = "the tokenizer has no chat template"
        raise UsageError(message, hint="leave --chat-template out, or add chat_template.jinja to the source")
    chats: Sequence[Any] = text.chats or [[{"role": "user", "content": document}] for document in text.documents]
    rendered = (tokenizer.apply_chat_template(chat, tokenize=False) for chat in chats)
    ids = [tokenizer(words, add_special_tokens=False)["input_ids"][: plan.sequence_length] for words in rendered]
    usable = [list(sample) for sample in ids if len(sample) >= SHORTEST_CHAT]
    if len(usable) < plan.samples:
        message = (
            f"{text.name} holds {len(usable)} conversations of at least {SHORTEST_CHAT} tokens, "
            f"{plan.samples} are needed"
        )
        raise UsageError(message, hint=_way_out(len(usable), plan, "more conversations"))
    chosen = sorted(random.Random(plan.seed).sample(range(len(usable)), plan.samples))  # noqa: S311
    return [usable[n] for n in chosen]


def _way_out(there: int, plan: CalibrationPlan, more: str) -> str:
    fewer = f"--samples {there}" if there else f"a --sequence-length under {plan.sequence_length}"
    return f"{fewer}, or {more}"
