"""Labels of the config that a loader passes over: it loads, but not as the label says."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from itertools import islice

from quantlab.checkpoint.facts import Finding
from quantlab.checkpoint.open import Opened
from quantlab.checkpoint.values import boolean, mapping, strings, text
from quantlab.matrix.data import read_section

MOST_KEYS = 2000
"""Keys and entries that are looked at; honest configs have fewer, and a hostile one must not stall the rule."""


def check(opened: Opened) -> Iterator[Finding]:
    """Report misspelled keys, placeholders, and numbers that stand outside of the quantization config."""
    block = opened.facts.quantization_config or {}
    where = opened.recognition.where or "config.json"
    form = read_section("formats").get(opened.facts.format.partition("/")[0], {})
    keys = (name for names in mapping(form.get("keys")).values() for name in strings(names))
    known = {*keys, *strings(form.get("known")), *strings(form.get("ignore")), "quant_method"}
    for key in islice(block, MOST_KEYS):
        near = difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.85) if key not in known else []
        if near and near[0] not in block:
            message = f"{key[:80]} is not read by loaders of {opened.facts.format}"
            yield Finding("ignored-label", "warning", f"{where}.{key[:80]}", message, f"did you mean {near[0]}?")
    for entry in opened.facts.ignore[:MOST_KEYS]:
        if "..." in entry or "<" in entry:
            yield Finding("placeholder", "warning", where, f"ignore entry {entry[:80]!r} looks like a placeholder",
                          "write the real names")  # fmt: skip
    expert = text(opened.listing.config.get("expert_dtype"))
    if expert and block and opened.facts.format == "fp8":
        message = f"experts are {expert}, which config.json says outside of quantization_config"
        yield Finding("ignored-label", "warning", "config.json: expert_dtype", message,
                      "loaders that read only quantization_config take the experts for FP8")  # fmt: skip
    if opened.facts.format == "bitnet" and text(block.get("quantization_mode")) == "online":
        yield Finding("online-quantization", "info", where, "weights are stored in 16 bit and rounded while loading")
    if boolean(block.get("lm_head")) is True:
        yield Finding("ignored-label", "info", f"{where}.lm_head", "lm_head is quantized, which few loaders support")
