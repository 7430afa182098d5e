"""Lint of the matrix data: one module a rule, each with a function ``check``."""

from __future__ import annotations

from pathlib import Path

from quantlab.checkpoint.facts import Finding
from quantlab.errors import DataError
from quantlab.matrix.data import data_folder
from quantlab.matrix.lint.interface import Rule, Subject
from quantlab.matrix.load import load
from quantlab.registry import Registry

RULES: Registry[Rule] = Registry(
    "lint rule",
    {
        "evidence": "quantlab.matrix.lint.evidence:check",
        "gpus": "quantlab.matrix.lint.gpus:check",
        "methods": "quantlab.matrix.lint.methods:check",
        "prose": "quantlab.matrix.lint.prose:check",
        "releases": "quantlab.matrix.lint.releases:check",
        "schema": "quantlab.matrix.lint.schema:check",
        "sources": "quantlab.matrix.lint.sources:check",
        "unreachable": "quantlab.matrix.lint.unreachable:check",
        "words": "quantlab.matrix.lint.words:check",
    },
)
"""Rule id to its function."""


def run_lint(folder: Path | None = None) -> list[Finding]:
    """Return everything that is wrong with a folder of matrix data; what does not load is one finding."""
    base = data_folder() if folder is None else folder
    try:
        data = load(folder)
    except DataError as error:
        return [Finding("load", "error", str(base), error.message, error.hint)]
    subject = Subject(base, data)
    return [finding for rule in RULES for finding in RULES[rule](subject)]
