"""Methods name formats that exist, and defaults that are facts."""

from __future__ import annotations

from collections.abc import Iterator

from quantlab.checkpoint.facts import Finding
from quantlab.matrix.data import read_section
from quantlab.matrix.lint.interface import Subject
from quantlab.matrix.model import FACTS

_ON_THE_FLY = frozenset({"dense", "fp8-kv", "onnx"})
"""Formats of a method that no checkpoint has by that name."""


def check(subject: Subject) -> Iterator[Finding]:
    """Yield a finding for each unknown format or fact of a method."""
    formats = {name.partition("/")[0] for name in read_section("formats", folder=subject.folder)} | _ON_THE_FLY
    for method, entry in subject.data.methods.items():
        where = f"methods/{method}.yaml"
        for name in entry.get("formats") or ():
            if str(name).partition("/")[0] not in formats:
                yield Finding("methods", "error", where, f"format {name!r} is not in formats/")
        for fact in entry.get("defaults") or {}:
            if fact not in FACTS:
                yield Finding("methods", "error", where, f"unknown fact {fact!r}")
        if not entry.get("title") or not entry.get("summary"):
            yield Finding("methods", "error", where, "needs a title and a summary")
