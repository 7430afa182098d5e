"""Reads a library's own progress bars, so that its work can be counted from outside.

A library that has no callback shows ``tqdm`` bars; the name ``tqdm`` in its module is replaced by a subclass
that reports each step. The library's work is not touched.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from quantlab.progress import Observer, Progress


@contextmanager
def counted_bars(modules: list[ModuleType], observe: Observer, unit: str) -> Iterator[None]:
    """Report every bar that the modules draw, as ``quantize`` progress in ``unit``.

    Args:
        modules: modules of a library that hold the name ``tqdm``.
        observe: receives the events; the bar's description becomes the detail.
        unit: name of one step.
    """
    bar_class: Any = importlib.import_module("tqdm").tqdm

    class Counted(bar_class):  # type: ignore[misc]
        """A bar that tells its steps."""

        def update(self, n: float | None = 1) -> bool:
            shown = bool(super().update(n))
            if self.leave:
                observe(_event(self, unit))
            return shown

        def __iter__(self) -> Iterator[Any]:
            for done, item in enumerate(super().__iter__()):
                yield item
                if self.leave:
                    total = None if self.total is None else int(self.total)
                    observe(Progress("quantize", done + 1, total, unit, self.desc.strip(" :")))

    before = [module.__dict__["tqdm"] for module in modules]
    for module in modules:
        module.__dict__["tqdm"] = Counted
    try:
        yield
    finally:
        for module, bar in zip(modules, before, strict=True):
            module.__dict__["tqdm"] = bar


def _event(bar: Any, unit: str) -> Progress:
    total = None if bar.total is None else int(bar.total)
    return Progress("quantize", int(bar.n), total, unit, bar.desc.strip(" :"))
