"""The groups of gpus and the hardware catalogue know the same architectures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from quantlab.checkpoint.facts import Finding
from quantlab.matrix.data import read_section
from quantlab.matrix.lint.interface import Subject

_WHERE = "gpu-groups.yaml"


def check(subject: Subject) -> Iterator[Finding]:
    """Yield a finding for each architecture that one of both lacks, and for each alias that leads nowhere."""
    groups = subject.data.gpus
    catalogue = set(_architectures(subject))
    for gpu in sorted(catalogue - set(groups.backends)):
        yield Finding("gpus", "error", _WHERE, f"{gpu} of the catalogue is in no backend")
    for word, gpu in groups.aliases.items():
        if gpu not in groups.backends:
            yield Finding("gpus", "error", _WHERE, f"alias {word!r} leads to {gpu}, which is in no backend")
    for name, members in [*groups.groups.items(), *groups.typical.items()]:
        for gpu in members:
            if gpu not in groups.backends:
                yield Finding("gpus", "error", _WHERE, f"group {name} has {gpu}, which is in no backend")


def _architectures(subject: Subject) -> Iterator[str]:
    for content in read_section("gpus", folder=subject.folder).values():
        listed = content.get("architectures", content) if isinstance(content, Mapping) else content
        if isinstance(listed, Mapping):
            yield from (str(name) for name in listed)
        else:
            yield from (str(item["id"]) for item in listed if isinstance(item, Mapping) and "id" in item)
