"""Entries of the ignore list that name nothing: a typo there quantizes (or fails to load) what was to stay dense."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from quantlab.checkpoint.facts import Finding
from quantlab.checkpoint.open import Opened
from quantlab.checkpoint.patterns import compiled, matches
from quantlab.checkpoint.rules.interface import MOST

MOST_ENTRIES = 20_000
"""Entries that are looked at; the longest honest list seen has 541."""


def check(opened: Opened) -> Iterator[Finding]:
    """Report entries that match no module; needs tensor names (headers or an index)."""
    entries = opened.facts.ignore[:MOST_ENTRIES]
    where = opened.recognition.where or "config.json"
    for entry in entries:
        if entry.startswith("re:") and compiled(entry[3:]) is None:
            yield Finding("ignore-pattern", "error", where, f"{entry[:120]!r} is no safe regular expression",
                          "write it without nested repeats")  # fmt: skip
    names = opened.facts.tensors or opened.listing.index
    if not names or not entries:
        return
    text = "\n".join(_modules(names))
    known = set(text.split("\n"))
    idle = [entry for entry in entries if entry not in known and not _hits(entry, text)]
    for entry in idle[:MOST]:
        yield Finding("ignore-matches-nothing", "warning", where, f"ignore entry {entry[:120]!r} matches no module",
                      "correct the name, or delete the entry")  # fmt: skip
    if len(idle) > MOST:
        message = f"{len(idle)} of {len(entries)} ignore entries match no module"
        yield Finding("ignore-matches-nothing", "warning", where, message, "the names may be those of another release")


def _modules(names: Iterable[str]) -> set[str]:
    """Every module name and parent, and the tensors' own names (some lists name parameters)."""
    found: set[str] = {"lm_head"}
    for name in names:
        part = name.replace("\n", " ")
        while part and part not in found:
            found.add(part)
            part = part.rpartition(".")[0]
    return found


def _hits(entry: str, text: str) -> bool:
    """Search all names at once, one a line; loaders differ in how they match, so any of their ways counts."""
    if entry.startswith("re:"):
        expression = entry[3:]
    elif any(sign in entry for sign in "*?["):
        expression = re.escape(entry).replace(r"\*", ".*").replace(r"\?", ".").replace(r"\[", "[").replace(r"\]", "]")
    else:
        return entry in text
    if compiled(expression) is None:
        return True
    try:
        return re.search(f"^(?:{expression})", text, re.MULTILINE) is not None
    except re.error:
        return any(matches(entry, module) for module in text.split("\n"))
