"""``doctor``: this machine, what is installed, what is wrong, and what works here."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from quantlab.checkpoint.facts import Finding
from quantlab.errors import UnknownNameError
from quantlab.hardware.findings import find_problems
from quantlab.hardware.machine import Machine, read_machine, this_machine
from quantlab.matrix.load import MatrixData, load


@dataclass(frozen=True, slots=True)
class Installed:
    """An engine or quantizer that is (or is not) installed here."""

    id: str
    title: str
    kind: str
    package: str
    version: str | None


@dataclass(frozen=True, slots=True)
class WorksHere:
    """What the matrix says of one installed engine on one of the machine's devices, method titles by outcome."""

    engine: str
    version: str
    gpu: str
    works: tuple[str, ...]
    with_fallback: tuple[str, ...]
    fails: tuple[str, ...]
    wrong: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Everything that ``doctor`` says.

    Attributes:
        machine: the machine.
        installed: engines and quantizers of the matrix, installed or not.
        findings: what is wrong, errors first.
        works: by installed engine and device.
        fix: the one command or action that helps most, or None.
    """

    machine: Machine
    installed: tuple[Installed, ...]
    findings: tuple[Finding, ...]
    works: tuple[WorksHere, ...]
    fix: str | None

    @property
    def ok(self) -> bool:
        """Whether nothing is an error."""
        return not any(finding.severity == "error" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of ``quantlab doctor``."""
        content = asdict(self)
        known = {item.package for item in self.installed}
        packages = content["machine"]["packages"]
        content["machine"]["packages"] = {name: packages[name] for name in sorted(packages) if name in known}
        return {**content, "ok": self.ok}


def doctor(machine: Machine | Path | str | None = None) -> Diagnosis:
    """Diagnose a machine.

    Args:
        machine: a description, or the file of a recorded one; this machine by default.

    Raises:
        UsageError: the file is not a machine's description.
    """
    if machine is None:
        machine = this_machine()
    elif not isinstance(machine, Machine):
        machine = read_machine(Path(machine))
    data = load()
    installed = tuple(_installed(machine, data))
    findings = find_problems(machine)
    works = tuple(_works(machine, data, installed))
    fix = next((finding.fix for finding in findings if finding.fix and finding.severity != "info"), None)
    return Diagnosis(machine, installed, findings, works, fix)


def _installed(machine: Machine, data: MatrixData) -> list[Installed]:
    return [
        Installed(engine.id, engine.title, engine.kind, engine.package, machine.packages.get(engine.package))
        for engine in data.engines.values()
        if engine.package
    ]


def _works(machine: Machine, data: MatrixData, installed: tuple[Installed, ...]) -> list[WorksHere]:
    from quantlab.matrix.table import build_table

    engines = [item for item in installed if item.version and data.engines[item.id].main]
    archs = [arch for arch in dict.fromkeys(_archs(machine)) if arch in data.gpus.backends]
    if not engines or not archs:
        return []
    versions = {item.package: item.version for item in installed if item.version}
    table = build_table(data, engines=[item.id for item in engines], gpus=archs, versions=versions)
    told = []
    for engine in engines:
        for arch in archs:
            outcomes = {method: table.cell(engine.id, method, arch).outcome for method in table.methods}
            titles = {
                outcome: tuple(table.methods[method] for method, found in outcomes.items() if found == outcome)
                for outcome in ("works", "works-with-fallback", "fails", "silent-wrong-result")
            }
            told.append(WorksHere(engine.title, str(engine.version), arch, *titles.values()))
    return told


def _archs(machine: Machine) -> list[str]:
    from quantlab.hardware.catalogue import gpu

    found = []
    for device in machine.devices if not machine.accelerators else machine.accelerators:
        try:
            found.append(gpu(device.arch or device.name).arch)
        except UnknownNameError:
            continue
    return found
