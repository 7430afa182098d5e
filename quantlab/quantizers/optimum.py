"""optimum: GPTQ through transformers' ``GPTQConfig``, on the fly while loading.

Measured with optimum 2.3.0 over gptqmodel 7.6.0: writes ``gptq_v2`` (zero points as they are). It writes the
calibration samples into ``config.json``; the front door takes them out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from quantlab.checkpoint.facts import CheckpointFacts
from quantlab.formats.interface import Obstacle
from quantlab.progress import Observer
from quantlab.quantizers.calibration import read_ids
from quantlab.quantizers.dense_model import load_dense
from quantlab.quantizers.interface import QuantizeJob, QuantizeReport
from quantlab.quantizers.libraries import versions
from quantlab.quantizers.options import option_values, parse_options
from quantlab.quantizers.progress_taps import counted_bars
from quantlab.quantizers.shapes import group_obstacles


@dataclass(frozen=True, slots=True)
class OptimumOptions:
    """What ``--set`` can change.

    Attributes:
        bits: bits of a weight.
        group_size: columns that share a scale; -1 is the whole row.
        symmetric: no zero points.
        desc_act: act order.
        damp_percent: GPTQ's damping.
    """

    bits: Literal[2, 3, 4, 8] = 4
    group_size: int = 128
    symmetric: bool = True
    desc_act: bool = False
    damp_percent: float = 0.1


class Optimum:
    """optimum's GPTQ behind the front door."""

    id = "optimum"
    extra = "optimum"

    def settings(self, job: QuantizeJob) -> Mapping[str, Any]:
        """Return every option with its value."""
        return option_values(_options(job))

    def calibrated(self, job: QuantizeJob) -> bool:
        """Say whether samples are needed."""
        return True

    def obstacles(self, facts: CheckpointFacts, job: QuantizeJob) -> list[Obstacle]:
        """Say which widths the group size does not divide."""
        return group_obstacles(facts, _options(job).group_size)

    def call(self, job: QuantizeJob) -> str:
        """Return the library call."""
        arguments = ", ".join(f"{name}={value!r}" for name, value in _config(job).items())
        return (
            f"m = AutoModelForCausalLM.from_pretrained({job.source.name!r}, dtype='auto', device_map={job.device!r}, "
            f"quantization_config=GPTQConfig({arguments}, dataset=samples, tokenizer=tokenizer))\n"
            f"m.save_pretrained({job.output.name!r})"
        )

    def quantize(self, job: QuantizeJob, observe: Observer) -> QuantizeReport:
        """Load with quantization, then save."""
        import torch
        from optimum.gptq import quantizer
        from transformers import AutoTokenizer, GPTQConfig

        assert job.calibration is not None
        tokenizer = AutoTokenizer.from_pretrained(job.source, local_files_only=True)
        samples = [_sample(ids, torch) for ids in read_ids(job.calibration)]
        config = GPTQConfig(**_config(job), dataset=["pending"], tokenizer=tokenizer)
        config.dataset = samples
        started = time.monotonic()
        with counted_bars([quantizer], observe, "layers"):
            model = load_dense(job.source, job.device, quantization_config=config)
        model.config.quantization_config.dataset = None
        model.config.quantization_config.tokenizer = None
        model.save_pretrained(job.output)
        seconds = time.monotonic() - started
        return QuantizeReport(versions("optimum", "gptqmodel", "transformers", "torch"), self.call(job), seconds)


def _sample(ids: list[int], torch: Any) -> dict[str, Any]:
    tensor = torch.tensor([ids])
    return {"input_ids": tensor, "attention_mask": torch.ones_like(tensor)}


def _options(job: QuantizeJob) -> OptimumOptions:
    return parse_options(OptimumOptions, job.options, "optimum")


def _config(job: QuantizeJob) -> dict[str, Any]:
    options = _options(job)
    return {
        "bits": options.bits,
        "group_size": options.group_size,
        "sym": options.symmetric,
        "desc_act": options.desc_act,
        "damp_percent": options.damp_percent,
    }


QUANTIZER = Optimum()
