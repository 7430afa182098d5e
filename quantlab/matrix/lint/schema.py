"""The committed JSON schema is the one that the typed model gives."""

from __future__ import annotations

import json
from collections.abc import Iterator

from quantlab.checkpoint.facts import Finding
from quantlab.matrix.data import read_section
from quantlab.matrix.lint.interface import Subject
from quantlab.matrix.schema import SCHEMA_FILE, json_schema, problems


def check(subject: Subject) -> Iterator[Finding]:
    """Yield a finding when the schema is stale, and one for each file that does not follow it."""
    path = subject.folder / SCHEMA_FILE
    committed = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    if committed != json_schema():
        fix = "python -m quantlab.matrix.schema"
        yield Finding("schema", "error", SCHEMA_FILE, "is not the schema of the typed model", fix)
    for file, content in read_section("support", folder=subject.folder).items():
        for problem in problems(content):
            yield Finding("schema", "error", f"support/{file}.yaml", problem)
