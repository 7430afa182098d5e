"""llm-compressor: GPTQ, AWQ, SmoothQuant and plain observers, in every scheme of compressed-tensors.

Calls and traps were measured with 0.14.0.1. Its AWQ pins memory without asking for an accelerator
(llmcompressor/pipelines/cache.py), so on a machine without one pinning is switched off. A run that raised leaves
a model which saves and reloads cleanly and gives NaN, so nothing is saved after an exception. ``NVFP4`` and
``MXFP4`` round activations too; the weight-only names end in ``A16``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from quantlab.checkpoint.facts import CheckpointFacts
from quantlab.formats.interface import Obstacle
from quantlab.progress import Observer, Progress
from quantlab.quantizers.calibration import read_ids
from quantlab.quantizers.dense_model import as_dataset, layer_count, load_dense
from quantlab.quantizers.interface import QuantizeJob, QuantizeReport
from quantlab.quantizers.libraries import versions
from quantlab.quantizers.options import option_values, parse_options
from quantlab.quantizers.shapes import block_obstacles, group_obstacles

IGNORE = ("lm_head", "re:.*mlp.gate$", "re:.*block_sparse_moe.gate$", "re:.*router$", "re:.*shared_expert_gate$")
"""Output head and routers: what stays dense in every run."""
STATIC = ("FP8", "NVFP4", "W8A8_STATIC")
"""Schemes whose activation scales come from calibration."""
GROUPS = {"NVFP4": 16, "NVFP4A16": 16, "MXFP4": 32, "MXFP4A16": 32, "MXFP8": 32, "MXFP8A16": 32}
"""Group sizes that a scheme fixes."""
INTEGER_GROUP = 128
"""Group size of the integer presets that keep 16-bit activations (W4A16 and its like)."""


@dataclass(frozen=True, slots=True)
class LlmCompressorOptions:
    """What ``--set`` can change.

    Attributes:
        algorithm: ``rtn`` (observers only), ``gptq``, ``awq``, or ``smoothquant`` (followed by GPTQ).
        scheme: a preset of compressed-tensors, such as ``W4A16``, ``W8A8``, ``FP8``, ``NVFP4A16``.
        group_size: group size of an integer scheme with groups, or None for the preset's own.
        symmetric: no zero points, or None for the preset's own.
        kv_cache: ``fp8`` adds static scales of an FP8 cache.
        smoothing_strength: SmoothQuant's migration strength.
        ignore: further modules that stay dense.
        model_free: work on the files without building the model (round to nearest only).
    """

    algorithm: Literal["rtn", "gptq", "awq", "smoothquant"] = "gptq"
    scheme: str = "W4A16"
    group_size: int | None = None
    symmetric: bool | None = None
    kv_cache: Literal["fp8"] | None = None
    smoothing_strength: float = 0.8
    ignore: tuple[str, ...] = ()
    model_free: bool = False


class LlmCompressor:
    """llm-compressor behind the front door."""

    id = "llm-compressor"
    extra = "llm-compressor"

    def settings(self, job: QuantizeJob) -> Mapping[str, Any]:
        """Return every option with its value."""
        return option_values(_options(job))

    def calibrated(self, job: QuantizeJob) -> bool:
        """Say whether samples are needed: by the algorithm, by static activations, or perhaps by a recipe."""
        options = _options(job)
        if options.model_free:
            return False
        static = options.scheme in STATIC or options.kv_cache is not None
        return job.recipe is not None or options.algorithm != "rtn" or static

    def obstacles(self, facts: CheckpointFacts, job: QuantizeJob) -> list[Obstacle]:
        """Say what will not work: groups and blocks against shapes, files against calibrated algorithms."""
        options = _options(job)
        if options.model_free and (options.algorithm != "rtn" or job.recipe or options.kv_cache):
            reason = "model_free works on files, so it has neither calibration, recipe nor cache scales"
            return [Obstacle("model-free", reason, "algorithm=rtn, or model_free=false")]
        if options.group_size is not None and not _grouped(options.scheme):
            return [Obstacle("group-size", f"{options.scheme} has no group size to set", "leave group_size out")]
        if job.recipe is not None:
            return []
        if options.scheme == "FP8_BLOCK":
            return block_obstacles(facts, 128)
        group = GROUPS.get(options.scheme) or (_grouped(options.scheme) and (options.group_size or INTEGER_GROUP))
        return group_obstacles(facts, group) if group else []

    def call(self, job: QuantizeJob) -> str:
        """Return the library call."""
        options, source, output = _options(job), job.source.name, job.output.name
        if options.model_free:
            return (
                f"model_free_ptq(model_stub={source!r}, save_directory={output!r}, scheme={options.scheme!r}, "
                f"ignore={_ignored(options, embeddings=True)!r}, max_workers=1, device={job.device!r})"
            )
        data = "dataset=samples, " if self.calibrated(job) else ""
        return (
            f"m = AutoModelForCausalLM.from_pretrained({source!r}, dtype='auto', device_map={job.device!r})\n"
            f"oneshot(model=m, {data}recipe={_recipe_words(job)}, shuffle_calibration_samples=False)\n"
            f"m.save_pretrained({output!r}, save_compressed=True)"
        )

    def quantize(self, job: QuantizeJob, observe: Observer) -> QuantizeReport:
        """Run ``oneshot`` or ``model_free_ptq`` and save."""
        started = time.monotonic()
        if _options(job).model_free:
            _quantize_files(job, observe)
            seconds = time.monotonic() - started
        else:
            seconds = _quantize_model(job, observe, calibrated=self.calibrated(job))
        libraries = versions("llmcompressor", "compressed-tensors", "transformers", "torch")
        return QuantizeReport(libraries, self.call(job), seconds)


def _options(job: QuantizeJob) -> LlmCompressorOptions:
    return parse_options(LlmCompressorOptions, job.options, "llm-compressor")


def _grouped(scheme: str) -> bool:
    """Say whether a scheme is integer weights with 16-bit or 8-bit activations in groups (W4A16, W4A8, W3A16)."""
    return scheme.startswith("W") and not scheme.startswith("W8") and scheme not in {"W4A4", "W4AFP8"}


def _ignored(options: LlmCompressorOptions, *, embeddings: bool = False) -> list[str]:
    return [*IGNORE, *(("re:.*embed_tokens$",) if embeddings else ()), *options.ignore]


def _quantize_files(job: QuantizeJob, observe: Observer) -> None:
    from llmcompressor import model_free_ptq

    options = _options(job)
    observe(Progress("quantize", 0, 1, "models", "rewriting the files"))
    model_free_ptq(
        model_stub=str(job.source),
        save_directory=str(job.output),
        scheme=options.scheme,
        ignore=_ignored(options, embeddings=True),
        max_workers=1,
        device=job.device,
    )
    observe(Progress("quantize", 1, 1, "models"))


def _quantize_model(job: QuantizeJob, observe: Observer, *, calibrated: bool) -> float:
    import torch
    from llmcompressor import oneshot
    from llmcompressor.pipelines.cache import IntermediatesCache

    if not torch.cuda.is_available():
        IntermediatesCache.pin_memory = lambda *_args, **_kwargs: None
    model = load_dense(job.source, job.device)
    data: dict[str, Any] = {}
    if calibrated:
        assert job.calibration is not None
        samples = read_ids(job.calibration)
        data = {
            "dataset": as_dataset(samples),
            "num_calibration_samples": len(samples),
            "max_seq_length": max(map(len, samples)),
            "shuffle_calibration_samples": False,
        }
    recipe = str(job.recipe) if job.recipe else _modifiers(_options(job))
    started = time.monotonic()
    with _layers_counted(layer_count(model), observe):
        oneshot(model=model, recipe=recipe, **data)
    model.save_pretrained(job.output, save_compressed=True)
    return time.monotonic() - started


def _modifiers(options: LlmCompressorOptions) -> list[Any]:
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.modifiers.transform import AWQModifier, SmoothQuantModifier

    arguments: dict[str, Any] = {"config_groups": {"group_0": _scheme(options)}, "ignore": _ignored(options)}
    if options.kv_cache == "fp8":
        arguments["kv_cache_scheme"] = {
            "num_bits": 8,
            "type": "float",
            "strategy": "tensor",
            "dynamic": False,
            "symmetric": True,
        }
    match options.algorithm:
        case "rtn":
            return [QuantizationModifier(**arguments)]
        case "gptq":
            return [GPTQModifier(**arguments)]
        case "awq":
            return [AWQModifier(), QuantizationModifier(**arguments)]
        case "smoothquant":
            return [SmoothQuantModifier(smoothing_strength=options.smoothing_strength), GPTQModifier(**arguments)]


def _scheme(options: LlmCompressorOptions) -> Any:
    """Return the preset's scheme with group size and symmetry put in."""
    from compressed_tensors.quantization import preset_name_to_scheme

    scheme = preset_name_to_scheme(options.scheme, ["Linear"])
    changes: dict[str, Any] = {}
    if options.group_size is not None:
        changes |= {"group_size": options.group_size, "strategy": "channel" if options.group_size < 0 else "group"}
    if options.symmetric is not None:
        changes["symmetric"] = options.symmetric
    if not changes:
        return scheme
    if options.group_size is not None and options.group_size < 0:
        changes["group_size"] = None
    weights = type(scheme.weights).model_validate({**scheme.weights.model_dump(), **changes})
    return scheme.model_copy(update={"weights": weights})


def _recipe_words(job: QuantizeJob) -> str:
    if job.recipe is not None:
        return repr(job.recipe.name)
    options = _options(job)
    scheme = f"scheme={options.scheme!r}"
    if options.group_size is not None:
        scheme += f" with group_size={options.group_size}"
    if options.symmetric is not None:
        scheme += f" with symmetric={options.symmetric}"
    cache = ", kv_cache_scheme=FP8 per tensor" if options.kv_cache else ""
    quantize = f"({scheme}, targets='Linear', ignore={_ignored(options)!r}{cache})"
    match options.algorithm:
        case "rtn":
            return f"[QuantizationModifier{quantize}]"
        case "gptq":
            return f"[GPTQModifier{quantize}]"
        case "awq":
            return f"[AWQModifier(), QuantizationModifier{quantize}]"
        case "smoothquant":
            strength = options.smoothing_strength
            return f"[SmoothQuantModifier(smoothing_strength={strength}), GPTQModifier{quantize}]"


@contextmanager
def _layers_counted(total: int, observe: Observer) -> Iterator[None]:
    """Count the layers that the sequential pipeline has finished; it has one more step, for the output head."""
    from llmcompressor.core import LifecycleCallbacks

    original = LifecycleCallbacks.sequential_epoch_end
    done = 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal done
        done = min(done + 1, total)
        observe(Progress("quantize", done, total or None, "layers", f"layer {done} of {total}"))
        return original(*args, **kwargs)

    LifecycleCallbacks.sequential_epoch_end = counted
    try:
        yield
    finally:
        LifecycleCallbacks.sequential_epoch_end = original


QUANTIZER = LlmCompressor()
