"""What ``doctor`` says, for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from quantlab.hardware.diagnosis import Diagnosis
from quantlab.hardware.machine import Machine
from quantlab.report.figures import MISSING

WIDTH = 100


def doctor_text(diagnosis: Diagnosis) -> str:
    """Return machine, installed software, findings, and what works here."""
    parts = [*_machine(diagnosis.machine), "", *_installed(diagnosis), ""]
    parts += _findings(diagnosis)
    for item in diagnosis.works:
        parts += ["", f"{item.engine} {item.version} on {item.gpu}"]
        for label, titles in (
            ("works", item.works),
            ("works with a fallback", item.with_fallback),
            ("fails", item.fails),
            ("gives wrong results", item.wrong),
        ):
            if titles:
                parts.append(_listed(f"  {label}: ", titles))
    if diagnosis.fix and not diagnosis.ok:
        parts += ["", f"first: {diagnosis.fix}"]
    return "\n".join(parts)


def _machine(machine: Machine) -> Iterator[str]:
    yield f"{machine.system} {machine.processor}, Python {machine.python}, {_gib(machine.memory_bytes)} of memory"
    for device in machine.devices:
        features = f" ({device.features})" if device.features else ""
        yield f"  {device.arch or 'unknown arch'}{features}  {device.name}  {_gib(device.memory_bytes)}"
    if not machine.accelerators:
        yield "  no gpu seen"
    for name, version in machine.drivers.items():
        yield f"  {name} {version}"
    if machine.torch is not None:
        torch = machine.torch
        built = f"ROCm {torch.hip}" if torch.hip else f"CUDA {torch.cuda}" if torch.cuda else torch.kind
        yield f"  torch {torch.version}, built for {built}" + (f" ({torch.error})" if torch.error else "")
    for name, value in machine.variables.items():
        yield f"  {name}={value}"


def _installed(diagnosis: Diagnosis) -> Iterator[str]:
    present = [f"{item.title} {item.version}" for item in diagnosis.installed if item.version]
    absent = [item.title for item in diagnosis.installed if not item.version and item.kind != "library"]
    yield _listed("installed: ", present or [MISSING])
    if absent:
        yield _listed("not installed: ", absent)


def _findings(diagnosis: Diagnosis) -> Iterator[str]:
    if not diagnosis.findings:
        yield "nothing wrong found"
    for finding in diagnosis.findings:
        yield _wrapped(f"{finding.severity}: {finding.where}: {finding.message}", "  ")
        if finding.fix:
            yield _wrapped(f"  fix: {finding.fix}", "    ")


def _listed(label: str, items: tuple[str, ...] | list[str]) -> str:
    return _wrapped(label + ", ".join(items), " " * 4)


def _wrapped(text: str, indent: str) -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _gib(count: int | None) -> str:
    return MISSING if count is None else f"{count / 2**30:.1f} GiB"
