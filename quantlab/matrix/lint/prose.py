"""Words of a statement: an id in kebab case, a reason and a fix on one line without a full stop."""

from __future__ import annotations

import re
from collections.abc import Iterator

from quantlab.checkpoint.facts import Finding
from quantlab.matrix.lint.interface import Subject

LONGEST = 240
"""Characters of a reason or a fix that still read as one sentence."""


def check(subject: Subject) -> Iterator[Finding]:
    """Yield a finding for each statement whose words break the form."""
    for statement in subject.data.statements:
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", statement.id):
            yield Finding("prose", "error", statement.file, f"{statement.id}: the id is not in kebab case")
        for name, words in (("reason", statement.reason), ("fix", statement.fix)):
            if words is None:
                continue
            if "\n" in words.strip() or words.endswith(".") or len(words) > LONGEST:
                what = f"{statement.id}: the {name} is not one line of at most {LONGEST} characters without a full stop"
                yield Finding("prose", "error", statement.file, what)
