"""A LoRA adapter is not a model, though its folder looks like one."""

from __future__ import annotations

from collections.abc import Iterator

from quantlab.checkpoint.facts import Finding
from quantlab.checkpoint.open import Opened
from quantlab.checkpoint.values import text


def check(opened: Opened) -> Iterator[Finding]:
    """Name the base model of an adapter folder."""
    if not opened.listing.adapter:
        return
    config = opened.listing.documents.get("adapter_config.json", {})
    base = text(config.get("base_model_name_or_path")) or "a base model that it does not name"
    kind = text(config.get("peft_type")) or "PEFT"
    message = f"this is a {kind} adapter of {base[:200]}, not a model"
    yield Finding("adapter", "warning", "adapter_config.json", message, "merge it into its base model first")
