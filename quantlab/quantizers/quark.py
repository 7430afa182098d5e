"""AMD Quark: FP8, PTPC FP8, int4 weight only, int8 and MXFP4, with GPTQ, AWQ or SmoothQuant where it offers them.

Calls and traps were measured with 0.13. Importing it takes 12 to 16 seconds. Its scheme names ``int8`` and
``mxfp4`` round activations too; ``mxfp4_weight_only`` does not.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from quantlab.checkpoint.facts import CheckpointFacts
from quantlab.errors import UsageError
from quantlab.formats.interface import Obstacle
from quantlab.progress import Observer, Progress
from quantlab.quantizers.calibration import read_ids
from quantlab.quantizers.dense_model import load_dense
from quantlab.quantizers.interface import QuantizeJob, QuantizeReport
from quantlab.quantizers.libraries import library, versions
from quantlab.quantizers.options import option_values, parse_options
from quantlab.quantizers.progress_taps import counted_bars
from quantlab.quantizers.shapes import group_obstacles

_GROUP = re.compile(r"^u?int4_w[oa]_(\d+)$")
_STATIC = ("int8", "fp8", "int4_fp8", "nvfp4")
"""Schemes whose activation scales come from calibration."""


@dataclass(frozen=True, slots=True)
class QuarkOptions:
    """What ``--set`` can change.

    Attributes:
        scheme: a scheme of ``LLMTemplate``, such as ``fp8``, ``ptpc_fp8``, ``int4_wo_64``, ``mxfp4_weight_only``.
        algorithm: ``gptq``, ``awq`` or ``smoothquant``, or None for round to nearest.
        kv_cache: ``fp8`` adds cache scales.
    """

    scheme: str = "fp8"
    algorithm: Literal["gptq", "awq", "smoothquant"] | None = None
    kv_cache: Literal["fp8"] | None = None


class Quark:
    """AMD Quark behind the front door."""

    id = "amd-quark"
    extra = "quark"

    def settings(self, job: QuantizeJob) -> Mapping[str, Any]:
        """Return every option with its value."""
        return option_values(_options(job))

    def calibrated(self, job: QuantizeJob) -> bool:
        """Say whether samples change the result; weight-only round to nearest gets one short one all the same."""
        options = _options(job)
        return options.scheme in _STATIC or options.algorithm is not None or options.kv_cache is not None

    def obstacles(self, facts: CheckpointFacts, job: QuantizeJob) -> list[Obstacle]:
        """Say what will not work: architectures without a template, groups that do not divide."""
        scheme = _options(job).scheme
        group = _GROUP.match(scheme)
        size = int(group.group(1)) if group else 32 if scheme.startswith(("mx", "amdfp4")) else None
        found = [] if size is None else group_obstacles(facts, size)
        if group and found:
            prefix = scheme.rsplit("_", 1)[0]
            fix = " or ".join(f"scheme={prefix}_{n}" for n in (64, 32) if not group_obstacles(facts, n))
            found = [Obstacle(o.rule, o.reason, fix or "scheme=int4_wo_per_channel") for o in found]
        return found

    def call(self, job: QuantizeJob) -> str:
        """Return the library call."""
        arguments = ", ".join(f"{name}={value!r}" for name, value in _arguments(job).items())
        return (
            f"m = AutoModelForCausalLM.from_pretrained({job.source.name!r}, dtype='auto', device_map={job.device!r})\n"
            f"q = ModelQuantizer(LLMTemplate.get(m.config.model_type).get_config({arguments}))\n"
            "m = q.freeze(q.quantize_model(m, samples))\n"
            f"export_safetensors(model=m, output_dir={job.output.name!r})"
        )

    def quantize(self, job: QuantizeJob, observe: Observer) -> QuantizeReport:
        """Quantize, freeze and export."""
        import torch

        observe(Progress("quantize", 0, None, "modules", "importing quark"))
        import quark.torch.quantization.api as quantization
        from quark.torch import LLMTemplate, ModelQuantizer, export_safetensors

        model = load_dense(job.source, job.device)
        kind = str(model.config.model_type)
        if kind not in LLMTemplate.list_available():
            message = f"quark has no template for {kind}"
            raise UsageError(message, hint=f"templates: {', '.join(LLMTemplate.list_available())}")
        config = LLMTemplate.get(kind).get_config(**_arguments(job))
        ids = [[1] * 16] if job.calibration is None else read_ids(job.calibration)
        samples = [torch.tensor([sample], device=job.device) for sample in ids]
        started = time.monotonic()
        with counted_bars([quantization], observe, "steps"):
            quantizer = ModelQuantizer(config)
            model = quantizer.freeze(quantizer.quantize_model(model, samples))
        observe(Progress("quantize", 0, None, "modules", "exporting"))
        job.output.mkdir()
        export_safetensors(model=model, output_dir=str(job.output))
        seconds = time.monotonic() - started
        return QuantizeReport(versions("amd-quark", "transformers", "torch"), self.call(job), seconds)


def _options(job: QuantizeJob) -> QuarkOptions:
    options = parse_options(QuarkOptions, job.options, "amd-quark")
    known = library("amd-quark").schemes
    if options.scheme not in known:
        raise UsageError(f"amd-quark has no scheme {options.scheme!r}", hint=f"schemes: {', '.join(known)}")
    return options


def _arguments(job: QuantizeJob) -> dict[str, Any]:
    options = _options(job)
    extra = {"algorithm": options.algorithm, "kv_cache_scheme": options.kv_cache}
    return {"scheme": options.scheme, **{name: value for name, value in extra.items() if value is not None}}


QUANTIZER = Quark()
