"""What is known of each library: versions, devices, architectures, costs; data of ``matrix/quantizers``."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import metadata
from typing import Any, Literal

from quantlab.errors import DataError, UnknownNameError
from quantlab.matrix.data import read_section
from quantlab.matrix.versions import Range, parse_range, read_version

TRANSFORMERS = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{name}", dtype="auto", device_map="auto")
tokenizer = AutoTokenizer.from_pretrained("{name}")
inputs = tokenizer("The capital of France is", return_tensors="pt").to(model.device)
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=8, do_sample=False)[0]))
"""
"""How transformers loads a result; a library whose results need something else says so in its data."""

ArchitectureOutcome = Literal["allowed", "refused", "experts-dense"]


@dataclass(frozen=True, slots=True)
class KnownBad:
    """A range of versions, and what breaks there."""

    versions: Range
    reason: str


@dataclass(frozen=True, slots=True)
class Clause:
    """A statement about a library that holds under conditions.

    Attributes:
        when: option name to the values that it holds for; empty holds always.
        devices: device kinds (``cpu``, ``cuda``) that it holds on; empty means all.
        model_types: ``model_type`` values that it holds for; empty means all.
        outcome: for architectures: ``allowed``, ``refused`` or ``experts-dense`` (runs, experts stay in 16 bit).
        reason: what happens.
        fix: the way out.
        seen: what was run to know it.
    """

    outcome: ArchitectureOutcome
    reason: str
    seen: str
    fix: str | None = None
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    model_types: tuple[str, ...] = ()

    def holds(self, options: Mapping[str, Any], device: str, model_type: str | None) -> bool:
        """Say whether the clause speaks of this run."""
        return (
            all(options.get(name) in values for name, values in self.when.items())
            and (not self.devices or device.split(":", maxsplit=1)[0] in self.devices)
            and (not self.model_types or model_type in self.model_types)
        )


@dataclass(frozen=True, slots=True)
class Cost:
    """What a run takes on two CPU cores, fitted to measured runs.

    Attributes:
        base_bytes: host memory of the libraries themselves.
        memory_factor: host memory on top, in sizes of the source.
        seconds: fixed time, imports included.
        seconds_per_billion: for each billion parameters.
        seconds_per_billion_kilotoken: for each billion parameters and thousand calibration tokens.
        disk_factor: scratch space, in sizes of the source.
    """

    base_bytes: int
    memory_factor: float
    seconds: float
    seconds_per_billion: float = 0.0
    seconds_per_billion_kilotoken: float = 0.0
    disk_factor: float = 0.0


@dataclass(frozen=True, slots=True)
class Library:
    """One library as the matrix knows it.

    Attributes:
        id: quantizer id.
        title: name for people.
        package: distribution whose version counts.
        module: what is imported.
        extra: extra of quantlab that installs it.
        tested: versions that were run.
        known_bad: versions that are known to break something.
        samples: calibration windows where the user names none.
        sequence_length: tokens of a window where the user names none.
        minimum_tokens: fewest calibration tokens that are accepted.
        resume: how an interrupted run goes on, or why it cannot.
        clauses: what fails where, and what happens to experts.
        strip: dotted keys that leak and are taken out of the written config.
        cost: what a run takes.
        load: Python that loads the result; ``{name}`` stands for the folder.
        schemes: scheme names of its own that it has.
        supported_models: ``model_type`` values that it maps; empty where it takes any.
    """

    id: str
    title: str
    package: str
    module: str
    extra: str
    tested: Range
    resume: str
    cost: Cost
    load: str = TRANSFORMERS
    known_bad: tuple[KnownBad, ...] = ()
    samples: int = 32
    sequence_length: int = 512
    minimum_tokens: int = 256
    clauses: tuple[Clause, ...] = ()
    strip: tuple[str, ...] = ()
    schemes: tuple[str, ...] = ()
    supported_models: tuple[str, ...] = ()

    def installed(self) -> str | None:
        """Return the installed version, or None."""
        if importlib.util.find_spec(self.module) is None:
            return None
        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return None

    def version_warnings(self, version: str) -> list[str]:
        """Return what to say of a version: known to break, or never run."""
        read = read_version(version)
        broken = [bad.reason for bad in self.known_bad if read in bad.versions]
        if broken or read in self.tested:
            return [f"{self.package} {version}: {reason}" for reason in broken]
        return [f"{self.package} {version} was not tested with quantlab (tested: {self.tested.text})"]


@lru_cache(maxsize=1)
def libraries() -> Mapping[str, Library]:
    """Return every library by quantizer id.

    Raises:
        DataError: a file under ``matrix/quantizers`` lacks a field.
    """
    return {name: _library(name, entry) for name, entry in read_section("quantizers").items()}


def library(name: str) -> Library:
    """Return one library.

    Raises:
        UnknownNameError: no quantizer has that id.
    """
    known = libraries()
    if name not in known:
        raise UnknownNameError("quantizer", name, known, hint=f"quantizers: {', '.join(known)}")
    return known[name]


def versions(*packages: str) -> dict[str, str]:
    """Return the installed versions of distributions; absent ones are left out."""
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _library(name: str, entry: Mapping[str, Any]) -> Library:
    try:
        content = dict(entry)
        content["tested"] = parse_range(content["tested"])
        content["cost"] = Cost(**content["cost"])
        content["known_bad"] = tuple(
            KnownBad(parse_range(bad["versions"]), bad["reason"]) for bad in content.get("known_bad", ())
        )
        content["clauses"] = tuple(map(_clause, content.get("clauses", ())))
        for listed in ("strip", "schemes", "supported_models"):
            content[listed] = tuple(content.get(listed, ()))
        return Library(**content)
    except (KeyError, TypeError, ValueError) as error:
        message = f"matrix/quantizers/{name}.yaml: {error}"
        raise DataError(message) from error


def _clause(entry: Mapping[str, Any]) -> Clause:
    content = dict(entry)
    when = {
        key: tuple(value) if isinstance(value, list) else (value,) for key, value in content.pop("when", {}).items()
    }
    devices, model_types = tuple(content.pop("devices", ())), tuple(content.pop("model_types", ()))
    return Clause(**content, when=when, devices=devices, model_types=model_types)
