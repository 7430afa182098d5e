"""A sweep's plan: which models, which conversions, which measurements.

A plan is YAML. Options stand under the names of the commands' own flags, so that whatever ``quantlab convert``
and ``quantlab evaluate`` can do, a sweep can do::

    output: runs/sample            # checkpoints, results and logs go here
    budget_seconds: 1500           # optional: no cell starts that is not expected to end in time
    models:
      sample: {path: .cache/sample}
    evaluate: {window: 1024}       # for every cell
    grid:                          # models x conversions
      models: [sample]
      convert: [null, {to: fp8}, {to: w4a16, set: [group_size=64]}]
    cells:                         # and single ones
      - {model: sample, convert: {to: gptq}, evaluate: {probe: 8}, seconds: 120, keep: true}

``convert: null`` evaluates the model as it is. Every converted cell is compared with its model
(``--baseline``) unless its own ``evaluate`` says otherwise.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quantlab.errors import UnknownNameError, UsageError

Option = str | int | float | bool | None
Options = Mapping[str, Option | Sequence[Option]]

PLAN_KEYS = {"output", "budget_seconds", "models", "evaluate", "grid", "cells"}
CELL_KEYS = {"id", "model", "convert", "evaluate", "seconds", "keep"}


@dataclass(frozen=True, slots=True)
class Cell:
    """One conversion (or none) and one evaluation.

    Attributes:
        id: file-name-safe name, unique in the plan.
        model: path or hub id of the model.
        convert: options of ``quantlab convert``, or None to take the model as it is.
        evaluate: options of ``quantlab evaluate``, or None to convert only.
        seconds: expected wall time, for the budget.
        keep: keep the converted checkpoint after it was evaluated.
    """

    id: str
    model: str
    convert: Options | None
    evaluate: Options | None
    seconds: float = 0.0
    keep: bool = False

    def checkpoint(self, output: Path) -> str:
        """Return the path of what is evaluated."""
        return self.model if self.convert is None else str(output / "checkpoints" / self.id)

    def commands(self, output: Path) -> list[list[str]]:
        """Return the quantlab commands of this cell, without the program's name."""
        commands = []
        if self.convert is not None:
            commands.append(["convert", self.model, self.checkpoint(output), *flags(self.convert)])
        if self.evaluate is not None:
            options = {"format": "json", **self.evaluate}
            if self.convert is not None:
                options = {"baseline": self.model, **options}
            commands.append(["evaluate", self.checkpoint(output), *flags(options)])
        return commands

    def digest(self, output: Path) -> str:
        """Return a hash of what the cell does: a changed cell is run again."""
        content = json.dumps([self.commands(output), self.keep], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole sweep."""

    output: Path
    cells: tuple[Cell, ...]
    budget_seconds: float | None = None


@dataclass
class _Names:
    """Gives each cell a name of its own."""

    taken: set[str] = field(default_factory=set)

    def claim(self, wanted: str) -> str:
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", wanted).strip("-.")
        if name in self.taken:
            message = f"two cells are called {name!r}"
            raise UsageError(message, hint="give one of them an id")
        self.taken.add(name)
        return name


def flags(options: Options) -> list[str]:
    """Return options as command-line words: ``{"to": "fp8", "force": True}`` gives ``--to fp8 --force``."""
    words = []
    for key, value in options.items():
        for item in value if isinstance(value, Sequence) and not isinstance(value, str) else [value]:
            if item is True:
                words.append(f"--{key}")
            elif item is not None and item is not False:
                words += [f"--{key}", str(item)]
    return words


def read_plan(path: Path) -> Plan:
    """Read a plan.

    Raises:
        UsageError: the file cannot be read, is not YAML, or has a wrong key or type; the key is named.
    """
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        message = f"cannot read the plan {path}: {error.strerror}"
        raise UsageError(message) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        message = f"the plan {path} is not YAML: {error}"
        raise UsageError(message) from error
    return parse_plan(content, where=str(path))


def parse_plan(content: Any, *, where: str) -> Plan:
    """Turn a plan's content into typed cells; see ``read_plan``."""
    plan = _mapping(content, where, PLAN_KEYS)
    models = {
        str(name): str(_mapping(value, f"{where}: models.{name}", {"path"}).get("path", ""))
        for name, value in _mapping(plan.get("models", {}), f"{where}: models").items()
    }
    shared = _mapping(plan.get("evaluate", {}), f"{where}: evaluate")
    raw = [*_grid(plan.get("grid"), where), *_list(plan.get("cells", []), f"{where}: cells")]
    if not raw:
        message = f"{where} plans no cell"
        raise UsageError(message, hint="give it a grid or cells; see quantlab sweep --help")
    names = _Names()
    cells = tuple(_cell(item, models, shared, names, f"{where}: cell {number}") for number, item in enumerate(raw, 1))
    budget = plan.get("budget_seconds")
    if budget is not None and not isinstance(budget, int | float):
        message = f"{where}: budget_seconds is {budget!r}, not a number"
        raise UsageError(message)
    return Plan(Path(str(plan.get("output", "sweep"))), cells, budget)


def _grid(content: Any, where: str) -> Iterator[dict[str, Any]]:
    if content is None:
        return
    grid = _mapping(content, f"{where}: grid", {"models", "convert", "evaluate", "seconds", "keep"})
    rest: dict[str, Any] = {key: grid[key] for key in ("evaluate", "seconds", "keep") if key in grid}
    for model in _list(grid.get("models", []), f"{where}: grid.models"):
        for convert in _list(grid.get("convert", [None]), f"{where}: grid.convert"):
            yield {"model": model, "convert": convert, **rest}


def _cell(item: Any, models: Mapping[str, str], shared: Options, names: _Names, where: str) -> Cell:
    raw = _mapping(item, where, CELL_KEYS)
    model = str(raw.get("model", ""))
    if model not in models:
        raise UnknownNameError("model of the plan", model, models)
    convert = None if raw.get("convert") is None else _mapping(raw["convert"], f"{where}: convert")
    evaluate = None
    if raw.get("evaluate", {}) is not None:
        evaluate = {**shared, **_mapping(raw.get("evaluate", {}), f"{where}: evaluate")}
    seconds = raw.get("seconds", 0)
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        message = f"{where}: seconds is {seconds!r}, not a number"
        raise UsageError(message)
    wanted = str(raw["id"]) if "id" in raw else "-".join([model, *_described(convert)])
    return Cell(names.claim(wanted), models[model], convert, evaluate, float(seconds), bool(raw.get("keep", False)))


def _described(convert: Options | None) -> list[str]:
    if convert is None:
        return []
    words: list[str] = []
    for value in convert.values():
        words += [str(item) for item in value] if isinstance(value, list | tuple) else [str(value)]
    return words


def _mapping(value: Any, where: str, allowed: set[str] | None = None) -> dict[str, Any]:
    if not isinstance(value, dict):
        message = f"{where} is {type(value).__name__}, not a mapping"
        raise UsageError(message)
    for key in value:
        if allowed is not None and key not in allowed:
            raise UnknownNameError(f"key in {where}", str(key), allowed)
    return {str(key): item for key, item in value.items()}


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        message = f"{where} is {type(value).__name__}, not a list"
        raise UsageError(message)
    return value
