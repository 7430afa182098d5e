"""bitsandbytes: NF4, FP4 and int8, saved before any forward pass.

On a CPU with AVX512-BF16 a first forward pass repacks 4-bit weights in place, and a model saved after it holds
``absmax`` transposed (bitsandbytes 0.50.2, bitsandbytes/nn/modules.py and functional.py): reloaded, it is
garbage without an error. Here nothing runs between loading and saving.
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
from quantlab.quantizers.shapes import row_obstacles

CPU_ROWS = 32
"""Rows that a 4-bit weight must be a multiple of to run on a CPU (bitsandbytes/functional.py asserts it)."""


@dataclass(frozen=True, slots=True)
class BitsAndBytesOptions:
    """What ``--set`` can change.

    Attributes:
        type: ``nf4``, ``fp4`` or ``int8``.
        double_quant: quantize the 4-bit statistics too.
        keep_dense: module names that stay dense, besides the output head.
    """

    type: Literal["nf4", "fp4", "int8"] = "nf4"
    double_quant: bool = False
    keep_dense: tuple[str, ...] = ()


class BitsAndBytes:
    """bitsandbytes behind the front door."""

    id = "bitsandbytes"
    extra = "bitsandbytes"

    def settings(self, job: QuantizeJob) -> Mapping[str, Any]:
        """Return every option with its value."""
        return option_values(_options(job))

    def calibrated(self, job: QuantizeJob) -> bool:
        """Say whether samples are needed."""
        return False

    def obstacles(self, facts: CheckpointFacts, job: QuantizeJob) -> list[Obstacle]:
        """Say which layers would stop the first forward pass on a CPU."""
        if _options(job).type == "int8" or not job.device.startswith("cpu"):
            return []
        return row_obstacles(facts, CPU_ROWS, "bitsandbytes 4 bit on a CPU")

    def call(self, job: QuantizeJob) -> str:
        """Return the library call."""
        arguments = ", ".join(f"{name}={value!r}" for name, value in _config(job).items())
        return (
            f"m = AutoModelForCausalLM.from_pretrained({job.source.name!r}, dtype='auto', device_map={job.device!r}, "
            f"quantization_config=BitsAndBytesConfig({arguments}))\n"
            f"m.save_pretrained({job.output.name!r})"
        )

    def quantize(self, job: QuantizeJob, observe: Observer) -> QuantizeReport:
        """Load with quantization and save at once."""
        from transformers import BitsAndBytesConfig

        observe(Progress("quantize", 0, 2, "steps", "loading and quantizing"))
        started = time.monotonic()
        model = load_dense(job.source, job.device, quantization_config=BitsAndBytesConfig(**_config(job)))
        observe(Progress("quantize", 1, 2, "steps", "saving"))
        model.save_pretrained(job.output)
        observe(Progress("quantize", 2, 2, "steps"))
        seconds = time.monotonic() - started
        return QuantizeReport(versions("bitsandbytes", "transformers", "torch"), self.call(job), seconds)


def _options(job: QuantizeJob) -> BitsAndBytesOptions:
    return parse_options(BitsAndBytesOptions, job.options, "bitsandbytes")


def _config(job: QuantizeJob) -> dict[str, Any]:
    options = _options(job)
    kept = {"llm_int8_skip_modules": ["lm_head", *options.keep_dense]} if options.keep_dense else {}
    if options.type == "int8":
        return {"load_in_8bit": True, **kept}
    return {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": options.type,
        "bnb_4bit_use_double_quant": options.double_quant,
        "bnb_4bit_compute_dtype": "bfloat16",
        **kept,
    }


QUANTIZER = BitsAndBytes()
