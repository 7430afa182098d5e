"""torchao: int8 and FP8 weights through transformers' ``TorchAoConfig``.

Measured with 0.18.0. Its int4 configs run on a gpu only (the packings want mslk, CUDA or XPU); matrix/quantizers
refuses them on a CPU with the reason.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from quantlab.checkpoint.facts import CheckpointFacts
from quantlab.formats.interface import Obstacle
from quantlab.progress import Observer, Progress
from quantlab.quantizers.dense_model import load_dense
from quantlab.quantizers.interface import QuantizeJob, QuantizeReport
from quantlab.quantizers.libraries import versions
from quantlab.quantizers.options import option_values, parse_options
from quantlab.quantizers.shapes import group_obstacles

_CONFIGS = {
    "int8_weight_only": "Int8WeightOnlyConfig",
    "int8_dynamic": "Int8DynamicActivationInt8WeightConfig",
    "float8_weight_only": "Float8WeightOnlyConfig",
    "float8_dynamic": "Float8DynamicActivationFloat8WeightConfig",
    "int4_weight_only": "Int4WeightOnlyConfig",
}


@dataclass(frozen=True, slots=True)
class TorchAoOptions:
    """What ``--set`` can change.

    Attributes:
        type: what is quantized to what.
        group_size: columns that share a scale, int4 only.
        packing: int4 packing of torchao, or None for its default.
        keep_dense: module names that stay dense, besides the output head.
    """

    type: Literal["int8_weight_only", "int8_dynamic", "float8_weight_only", "float8_dynamic", "int4_weight_only"] = (
        "int8_weight_only"
    )
    group_size: int = 128
    packing: str | None = None
    keep_dense: tuple[str, ...] = ()


class TorchAo:
    """torchao behind the front door."""

    id = "torchao"
    extra = "torchao"

    def settings(self, job: QuantizeJob) -> Mapping[str, Any]:
        """Return every option with its value."""
        return option_values(_options(job))

    def calibrated(self, job: QuantizeJob) -> bool:
        """Say whether samples are needed."""
        return False

    def obstacles(self, facts: CheckpointFacts, job: QuantizeJob) -> list[Obstacle]:
        """Say which widths the group size does not divide."""
        options = _options(job)
        return group_obstacles(facts, options.group_size) if options.type == "int4_weight_only" else []

    def call(self, job: QuantizeJob) -> str:
        """Return the library call."""
        options = _options(job)
        inner = ", ".join(f"{name}={value!r}" for name, value in _arguments(options).items())
        return (
            f"m = AutoModelForCausalLM.from_pretrained({job.source.name!r}, dtype='auto', device_map={job.device!r}, "
            f"quantization_config=TorchAoConfig({_CONFIGS[options.type]}({inner})))\n"
            f"m.save_pretrained({job.output.name!r})"
        )

    def quantize(self, job: QuantizeJob, observe: Observer) -> QuantizeReport:
        """Load with quantization and save."""
        from torchao import quantization
        from transformers import TorchAoConfig

        options = _options(job)
        inner = getattr(quantization, _CONFIGS[options.type])(**_arguments(options))
        kept = {"modules_to_not_convert": ["lm_head", *options.keep_dense]} if options.keep_dense else {}
        observe(Progress("quantize", 0, 2, "steps", "loading and quantizing"))
        started = time.monotonic()
        model = load_dense(job.source, job.device, quantization_config=TorchAoConfig(inner, **kept))
        observe(Progress("quantize", 1, 2, "steps", "saving"))
        model.save_pretrained(job.output)
        observe(Progress("quantize", 2, 2, "steps"))
        seconds = time.monotonic() - started
        return QuantizeReport(versions("torchao", "transformers", "torch"), self.call(job), seconds)


def _options(job: QuantizeJob) -> TorchAoOptions:
    return parse_options(TorchAoOptions, job.options, "torchao")


def _arguments(options: TorchAoOptions) -> dict[str, Any]:
    if options.type != "int4_weight_only":
        return {}
    packing = {} if options.packing is None else {"int4_packing_format": options.packing}
    return {"group_size": options.group_size, **packing}


QUANTIZER = TorchAo()
