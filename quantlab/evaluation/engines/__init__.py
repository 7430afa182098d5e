"""Engines that the evaluator can load a checkpoint with, one module each."""

from __future__ import annotations

from quantlab.evaluation.engines.interface import Engine
from quantlab.registry import Registry

ENGINES: Registry[Engine] = Registry(
    "engine",
    {
        "transformers": "quantlab.evaluation.engines.transformers:ENGINE",
    },
)
"""Engine id to engine."""
