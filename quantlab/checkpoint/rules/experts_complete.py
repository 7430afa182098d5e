"""Each expert of a mixture needs the same tensors; a calibration that never reached one leaves it without scales."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from quantlab.checkpoint.facts import Finding
from quantlab.checkpoint.open import Opened
from quantlab.checkpoint.rules.interface import MOST

_EXPERT = re.compile(r"^(.*\bexperts)\.(\d+)\.(.+)$")


def check(opened: Opened) -> Iterator[Finding]:
    """Compare the experts of each layer with each other, and their number with the config's."""
    names = opened.facts.tensors or opened.listing.index or {}
    layers: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for name in names:
        match = _EXPERT.match(name)
        if match is not None and len(match[2]) < 7:
            layers[match[1]][int(match[2])].add(match[3])
    uneven = [found for layer, experts in layers.items() for found in _uneven(layer, experts)]
    yield from uneven[:MOST]
    if len(uneven) > MOST:
        yield Finding("expert-incomplete", "error", "", f"{len(uneven)} experts lack tensors that others have")
    count = opened.facts.architecture.num_experts
    short = {layer: len(experts) for layer, experts in layers.items() if count and len(experts) != count}
    complete = opened.headers and len(opened.headers) == len(opened.listing.weights)
    if short and complete:
        layer, held = next(iter(short.items()))
        message = f"{layer} has {held} experts, the config says {count}"
        yield Finding(
            "expert-count", "error", layer, message, "the checkpoint is incomplete, or pruned without its config"
        )


def _uneven(layer: str, experts: dict[int, set[str]]) -> Iterator[Finding]:
    whole = set().union(*experts.values())
    for number, held in sorted(experts.items()):
        lacking = sorted(whole - held)
        if lacking:
            scales = any("scale" in name or "absmax" in name for name in lacking)
            what = f"lacks {lacking[0]}" + (f" and {len(lacking) - 1} more" if len(lacking) > 1 else "")
            fix = "calibrate with more text or all experts, so that each is reached" if scales else "download it again"
            yield Finding("expert-incomplete", "error", f"{layer}.{number}", f"expert {number} of {layer} {what}", fix)
