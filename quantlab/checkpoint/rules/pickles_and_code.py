"""Files that run code when they are loaded: pickled weights, and Python modules that the config names."""

from __future__ import annotations

from collections.abc import Iterator

from quantlab.checkpoint.facts import Finding
from quantlab.checkpoint.open import Opened
from quantlab.checkpoint.values import mapping, strings


def check(opened: Opened) -> Iterator[Finding]:
    """Report pickles (never opened here) and ``auto_map``."""
    pickles = opened.listing.pickles
    if pickles and not opened.listing.weights:
        message = f"the weights are pickles only ({pickles[0]}), which can run code; they are not opened"
        yield Finding("pickles-only", "warning", pickles[0], message, "ask for safetensors, or convert in a sandbox")
    elif pickles:
        message = f"{len(pickles)} pickled files lie beside the safetensors, such as {pickles[0]}"
        yield Finding("pickles", "info", pickles[0], message, "delete them")
    config = opened.listing.config
    named = sorted({part.partition("--")[2] or part for value in mapping(config.get("auto_map")).values()
                    for part in strings(value)})  # fmt: skip
    if named:
        remote = [part.partition("--")[0] for value in mapping(config.get("auto_map")).values()
                  for part in strings(value) if "--" in part]  # fmt: skip
        source = f" from {remote[0]}" if remote else ""
        message = f"the model needs its own Python code{source} ({named[0]})"
        yield Finding("remote-code", "info", "config.json: auto_map", message,
                      "loaders need trust_remote_code; read the code first")  # fmt: skip
