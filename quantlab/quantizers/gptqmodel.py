"""GPTQModel: GPTQ in 2, 3, 4 and 8 bit, and AWQ.

Calls and traps were measured with 7.6.0. On a CPU its AWQ needs ``BACKEND.AWQ_TORCH`` (the default backend asks
for CUDA, gptqmodel/models/base.py), and its thread pools need ``GPTQMODEL_CPU_WORKERS`` of at least 2, which the
front door sets. An interrupted GPTQ run of some architectures can go on from its own layer checkpoints.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from quantlab.checkpoint.facts import CheckpointFacts
from quantlab.formats.interface import Obstacle
from quantlab.progress import Observer, Progress
from quantlab.quantizers.calibration import read_ids
from quantlab.quantizers.interface import QuantizeJob, QuantizeReport
from quantlab.quantizers.libraries import versions
from quantlab.quantizers.options import option_values, parse_options
from quantlab.quantizers.shapes import group_obstacles


@dataclass(frozen=True, slots=True)
class GptqModelOptions:
    """What ``--set`` can change.

    Attributes:
        method: ``gptq`` or ``awq``.
        bits: bits of a weight; AWQ has 4 only.
        group_size: columns that share a scale; -1 is the whole row.
        symmetric: no zero points.
        desc_act: act order; vLLM 0.30 and later refuse it with groups.
        damp_percent: GPTQ's damping, or None for the library's own.
        batch_size: samples a forward pass.
        resume_folder: folder for the library's layer checkpoints (``CheckpointConfig``), or None.
    """

    method: Literal["gptq", "awq"] = "gptq"
    bits: Literal[2, 3, 4, 8] = 4
    group_size: int = 128
    symmetric: bool = True
    desc_act: bool = False
    damp_percent: float | None = None
    batch_size: int = 1
    resume_folder: str | None = None


class GptqModel:
    """GPTQModel behind the front door."""

    id = "gptqmodel"
    extra = "gptqmodel"

    def settings(self, job: QuantizeJob) -> Mapping[str, Any]:
        """Return every option with its value."""
        return option_values(_options(job))

    def calibrated(self, job: QuantizeJob) -> bool:
        """Say whether samples are needed."""
        return True

    def obstacles(self, facts: CheckpointFacts, job: QuantizeJob) -> list[Obstacle]:
        """Say what will not work: group sizes, AWQ's bits."""
        options = _options(job)
        found = group_obstacles(facts, options.group_size)
        if options.method == "awq" and options.bits != 4:
            found.append(Obstacle("bits", f"AWQ is 4 bit here, {options.bits} bit was asked for", "bits=4"))
        return found

    def call(self, job: QuantizeJob) -> str:
        """Return the library call."""
        backend = ", backend=BACKEND.AWQ_TORCH" if _torch_awq(job) else ""
        arguments = ", ".join(f"{name}={value!r}" for name, value in _config(job).items())
        return (
            f"m = GPTQModel.load({job.source.name!r}, QuantizeConfig({arguments}), device={job.device!r})\n"
            f"m.quantize(samples, batch_size={_options(job).batch_size}{backend})\n"
            f"m.save({job.output.name!r})"
        )

    def quantize(self, job: QuantizeJob, observe: Observer) -> QuantizeReport:
        """Quantize layer by layer and save."""
        from gptqmodel import BACKEND, GPTQModel, QuantizeConfig

        assert job.calibration is not None
        samples = [{"input_ids": ids, "attention_mask": [1] * len(ids)} for ids in read_ids(job.calibration)]
        model = GPTQModel.load(str(job.source), QuantizeConfig(**_config(job)), device=job.device)
        model.layer_callback = _layer_counter(model, observe)
        arguments: dict[str, Any] = {"batch_size": _options(job).batch_size, **_resume(job)}
        if _torch_awq(job):
            arguments["backend"] = BACKEND.AWQ_TORCH
        started = time.monotonic()
        model.quantize(samples, **arguments)
        model.save(str(job.output))
        return QuantizeReport(
            versions("gptqmodel", "transformers", "torch"), self.call(job), time.monotonic() - started
        )


def _options(job: QuantizeJob) -> GptqModelOptions:
    return parse_options(GptqModelOptions, job.options, "gptqmodel")


def _config(job: QuantizeJob) -> dict[str, Any]:
    options = _options(job)
    config: dict[str, Any] = {"bits": options.bits, "group_size": options.group_size, "sym": options.symmetric}
    if options.method == "awq":
        config |= {"method": "awq", "format": "gemm"}
    else:
        config["desc_act"] = options.desc_act
        if options.damp_percent is not None:
            config["damp_percent"] = options.damp_percent
    return config


def _torch_awq(job: QuantizeJob) -> bool:
    return _options(job).method == "awq" and job.device.startswith("cpu")


def _resume(job: QuantizeJob) -> dict[str, Any]:
    folder = _options(job).resume_folder
    if folder is None:
        return {}
    from gptqmodel.looper.checkpoint_store import CheckpointConfig

    return {"checkpoint": CheckpointConfig(path=Path(folder))}


def _layer_counter(model: Any, observe: Observer) -> Any:
    config = getattr(model.model.config, "text_config", None) or model.model.config
    total = int(config.num_hidden_layers)

    def layer_complete(*, layer_idx: int, submodule_finalized: bool) -> None:
        if submodule_finalized:
            observe(Progress("quantize", layer_idx + 1, total, "layers", f"layer {layer_idx + 1} of {total}"))

    return layer_complete


QUANTIZER = GptqModel()
