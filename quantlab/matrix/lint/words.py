"""Aliases: patterns that compile, facts that exist, operations and presets that mean something."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from quantlab.checkpoint.facts import Finding
from quantlab.matrix.lint.interface import Subject
from quantlab.matrix.model import FACTS, OPERATIONS


def check(subject: Subject) -> Iterator[Finding]:
    """Yield a finding for each alias that cannot work."""
    words = subject.data.words
    rules = [*words["phrases"], *words["models"]]
    rules += [rule for key in words["config_keys"].values() for rule in key.get("patterns", ())]
    for rule in rules:
        yield from _rule(rule)
    facts = [str(key["fact"]) for key in words["config_keys"].values() if "fact" in key]
    facts += [str(fact) for fact in words["architecture_keys"].values()]
    facts += [str(fact) for entry in words["ways_out"].values() for fact in entry]
    facts += [str(fact) for entry in words["findings"].values() for fact in entry]
    for fact in facts:
        if fact not in FACTS:
            yield _finding(f"unknown fact {fact!r}")
    for word, operation in words["operations"].items():
        if operation not in OPERATIONS:
            yield _finding(f"operation {word!r} leads to unknown {operation!r}")


def _rule(rule: Mapping[str, Any]) -> Iterator[Finding]:
    try:
        re.compile(rule["match"])
    except re.error as error:
        yield _finding(f"pattern {rule['match']!r} does not compile: {error}")
    for fact in rule["set"]:
        if fact not in FACTS:
            yield _finding(f"pattern {rule['match']!r} sets unknown fact {fact!r}")


def _finding(what: str) -> Finding:
    return Finding("words", "error", "words.yaml", what)
