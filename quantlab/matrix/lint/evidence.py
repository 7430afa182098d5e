"""Evidence files that cannot be read, or that speak of engines and gpus nobody knows."""

from __future__ import annotations

from collections.abc import Iterator

from quantlab.checkpoint.facts import Finding
from quantlab.matrix.evidence import parse_evidence
from quantlab.matrix.lint.interface import Subject


def check(subject: Subject) -> Iterator[Finding]:
    """Yield a finding for each evidence file that no statement can be compared with."""
    folder = subject.folder / "evidence"
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        item = parse_evidence(path)
        where = f"evidence/{path.name}"
        if item is None:
            yield Finding("evidence", "error", where, "needs 'statement' with engine, format, gpu, and 'result'")
        elif item.engine not in subject.data.engines:
            yield Finding("evidence", "error", where, f"unknown engine {item.engine!r}")
        elif item.gpu not in subject.data.gpus.backends:
            yield Finding("evidence", "error", where, f"unknown gpu {item.gpu!r}")
