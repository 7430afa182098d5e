"""How a text is cut into windows for perplexity.

Windows start every ``stride`` tokens and are ``window`` tokens long; each scores the tokens that the one before
did not. With ``stride == window`` they do not overlap. Where the tokenizer begins a text with a special token,
every window gets one in front (which is not scored, and makes the window's first token scorable); otherwise the
first token of the first window is context only. A rest shorter than a window is left out, unless it is all there is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from quantlab.errors import UsageError


@dataclass(frozen=True, slots=True)
class Window:
    """Token ids of one forward pass.

    Attributes:
        ids: the tokens, beginning-of-text included.
        first_scored: index in ``ids`` of the first token whose probability counts; at least 1.
    """

    ids: tuple[int, ...]
    first_scored: int

    @property
    def scored(self) -> int:
        """Return how many tokens this window scores."""
        return len(self.ids) - self.first_scored


def cut(ids: Sequence[int], *, window: int, stride: int, beginning: int | None) -> list[Window]:
    """Cut token ids into windows.

    Args:
        ids: tokens of the text, without special tokens.
        window: tokens of a forward pass, the beginning-of-text token included; at least 2.
        stride: new tokens of each window after the first; 1 up to the window's room.
        beginning: id of the beginning-of-text token, or None.

    Raises:
        UsageError: the window or stride makes no sense, or the text has fewer than two tokens.
    """
    front = () if beginning is None else (beginning,)
    room = window - len(front)
    if room < 1 or window < 2:
        raise UsageError(f"a window of {window} tokens scores nothing", hint="--window needs at least 2")
    step = min(stride, room) if stride == window else stride
    if not 1 <= step <= room:
        raise UsageError(f"stride {stride} does not fit windows of {window} tokens", hint=f"1 to {room}")
    if len(ids) + len(front) < 2:
        raise UsageError("the text has fewer than two tokens", hint="--text needs a longer text")
    starts = list(range(0, max(1, len(ids) - room + 1), step))
    first = Window((*front, *ids[:room]), 1)
    rest = [
        Window((*front, *ids[start : start + room]), max(1, len(front) + room - (start - before)))
        for before, start in pairwise(starts)
    ]
    return [first, *rest]


def tokens_hash(windows: Sequence[Window]) -> str:
    """Return a hash of what is measured: token ids, cuts and what is scored."""
    digest = hashlib.sha256()
    for item in windows:
        digest.update(f"{item.first_scored}:{','.join(map(str, item.ids))}\n".encode())
    return digest.hexdigest()


def beginning_of_text(tokenizer: Any) -> tuple[int | None, str]:
    """Return the token that this tokenizer puts before a text, and words for the record."""
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    special = tokenizer("a", add_special_tokens=True)["input_ids"]
    if len(special) > len(plain) and special[0] != plain[0]:
        token = int(special[0])
        return token, f"{tokenizer.convert_ids_to_tokens(token)} before every window"
    return None, "none"
