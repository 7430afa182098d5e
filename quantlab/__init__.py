"""Say which quantized models run where, convert them exactly, and prove that they work.

The names below mirror the commands and are imported on first use, so that ``import quantlab`` costs
milliseconds and never imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from quantlab.version import __version__

if TYPE_CHECKING:
    from quantlab.checkpoint.inspection import inspect
    from quantlab.conversion.api import convert
    from quantlab.evaluation.api import evaluate
    from quantlab.evaluation.comparison import compare
    from quantlab.hardware.diagnosis import doctor
    from quantlab.matrix.api import Matrix, check
    from quantlab.matrix.recommendation import recommend

_PUBLIC = {
    "Matrix": "quantlab.matrix.api",
    "check": "quantlab.matrix.api",
    "compare": "quantlab.evaluation.comparison",
    "convert": "quantlab.conversion.api",
    "doctor": "quantlab.hardware.diagnosis",
    "evaluate": "quantlab.evaluation.api",
    "inspect": "quantlab.checkpoint.inspection",
    "recommend": "quantlab.matrix.recommendation",
}

__all__ = [
    "Matrix",
    "__version__",
    "check",
    "compare",
    "convert",
    "doctor",
    "evaluate",
    "inspect",
    "recommend",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use (PEP 562)."""
    try:
        module = _PUBLIC[name]
    except KeyError:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message) from None
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
