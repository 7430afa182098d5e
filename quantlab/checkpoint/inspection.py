"""``inspect``: a checkpoint's facts with everything that is wrong with it."""

from __future__ import annotations

from pathlib import Path

from quantlab.checkpoint.facts import CheckpointFacts, Finding
from quantlab.checkpoint.open import Opened, open_checkpoint, with_findings
from quantlab.checkpoint.rules import RULES
from quantlab.progress import Observer, silent


def inspect(
    target: str | Path,
    *,
    deep: bool = False,
    revision: str | None = None,
    token: str | bool | None = None,
    observer: Observer = silent,
) -> CheckpointFacts:
    """Return what is in a checkpoint and what is wrong with it, from configs and headers.

    Args:
        target: folder, config.json, .gguf or .safetensors file, or hub id.
        deep: read the scale tensors as well (local files only), in bounded memory.
        revision: branch, tag or commit of a hub checkpoint.
        token: access token for the hub.
        observer: hears of the progress of ``deep``.

    Raises:
        CheckpointError: nothing is there, or it cannot be read at all.
    """
    opened = open_checkpoint(target, revision=revision, token=token)
    findings = findings_of(opened)
    if deep:
        from quantlab.checkpoint.scale_values import scale_findings

        findings += tuple(scale_findings(opened, observer))
    return with_findings(opened, findings).facts


def findings_of(opened: Opened) -> tuple[Finding, ...]:
    """Return what all rules find in an opened checkpoint."""
    return tuple(finding for name in RULES for finding in RULES[name](opened))
