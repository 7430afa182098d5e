"""``quantlab.convert``: quantize, repack or dequantize a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from quantlab.conversion.gguf_route import gguf_route
from quantlab.conversion.jobs import Plan
from quantlab.conversion.origin import Origin, open_origin
from quantlab.conversion.plan import make_plan
from quantlab.conversion.presets import find_preset
from quantlab.conversion.result import Conversion
from quantlab.conversion.staging import check_output, discard, download_folder
from quantlab.errors import UsageError
from quantlab.progress import Observer, silent

Verify = Literal["decode", "load", "quality", "none"]


def convert(
    source: str | Path,
    output: str | Path,
    to: str | None = None,
    *,
    to_format: str | None = None,
    settings: Mapping[str, Any] | None = None,
    using: str | None = None,
    recipe: str | Path | None = None,
    calibration: str | None = None,
    samples: int | None = None,
    sequence_length: int | None = None,
    chat_template: bool = False,
    seed: int = 0,
    gpu: str | None = None,
    engine: str | None = None,
    force: bool = False,
    requantize: bool = False,
    verify: Verify | None = None,
    resume: bool = False,
    device: str = "cpu",
    threads: int | None = None,
    observe: Observer = silent,
) -> Conversion:
    """Convert a checkpoint; the output folder appears whole or not at all.

    Args:
        source: folder or hub id.
        output: folder to write; must not exist, or be empty.
        to: name of a preset, such as ``fp8`` or ``w4a16``.
        to_format: format id; alone it asks for a repack, beside ``to`` for another format of the same scheme.
        settings: changes to the preset, such as ``{"group_size": 64}``.
        using: quantizer library instead of the preset's.
        recipe: recipe file for the library.
        calibration: text that the library calibrates on.
        samples: number of calibration samples.
        sequence_length: tokens of a sample.
        chat_template: apply the tokenizer's chat template to each conversation of the calibration text.
        seed: seed of everything that a library does at random.
        gpu: gpu on which the output shall run; refused if the matrix says that it fails there.
        engine: engine that shall load it.
        force: convert although the matrix says that it fails.
        requantize: allow the numbers to change where they cannot be kept.
        verify: how the output is checked; ``decode`` by default; ``load`` or ``quality`` for libraries.
        resume: go on with an unfinished conversion.
        device: torch device on which is worked.
        threads: worker threads; one a core by default.
        observe: receives progress.

    Returns:
        What was done.

    Raises:
        ConversionRefused: the output would not be exact, or would not run.
        CheckpointError: the source is missing or malformed.
        UsageError: the options cannot be meant.
        EnvironmentProblem: a library, memory or disk space is missing.
        InterruptedRun: stopped half way; ``resume`` finishes it.
    """
    started = time.perf_counter()
    asked = None if to is None else find_preset(to, settings, using=using)
    with_gguf = gguf_route(source, Path(output), asked, requantize=requantize, verify=verify != "none")
    if with_gguf is not None:
        return with_gguf(observe)
    plan, origin = plan_conversion(
        source,
        output,
        to,
        to_format=to_format,
        settings=settings,
        using=using,
        gpu=gpu,
        engine=engine,
        force=force,
        requantize=requantize,
    )
    planned = time.perf_counter() - started
    if plan.case == "quantizer":
        from quantlab.conversion.library import LibraryOptions, run_library

        options = LibraryOptions(
            None if recipe is None else Path(recipe),
            calibration,
            samples,
            sequence_length,
            seed,
            device,
            force,
            verify,
            chat_template,
        )
        result = run_library(plan, options, observe)
    else:
        from quantlab.conversion.native import run_plan

        try:
            result = run_plan(
                plan,
                origin,
                _recipe(to, to_format, settings, requantize=requantize),
                verify=verify or "decode",
                resume=resume,
                device=device,
                threads=threads,
                observe=observe,
            )
        finally:
            discard(download_folder(Path(output)))
    result.seconds["plan"] = planned
    return result


def plan_conversion(
    source: str | Path,
    output: str | Path,
    to: str | None = None,
    *,
    to_format: str | None = None,
    settings: Mapping[str, Any] | None = None,
    using: str | None = None,
    gpu: str | None = None,
    engine: str | None = None,
    force: bool = False,
    requantize: bool = False,
) -> tuple[Plan, Origin]:
    """Plan a conversion without doing it; arguments and errors as ``convert``."""
    target = Path(output)
    check_output(target)
    preset = None if to is None else find_preset(to, settings, using=using)
    if gguf_route(source, target, preset, requantize=requantize, verify=False) is not None:
        raise UsageError("a GGUF file has no plan to print", hint="leave --dry-run out; nothing is left if it fails")
    origin = open_origin(source, scratch=download_folder(target))
    plan = make_plan(origin.facts, target, preset, to_format=to_format, requantize=requantize)
    if gpu is not None or engine is not None:
        from quantlab.conversion.judgement import judged

        plan = judged(plan, origin.config, gpu=gpu, engine=engine, force=force)
    return plan, origin


def _recipe(
    to: str | None, to_format: str | None, settings: Mapping[str, Any] | None, *, requantize: bool
) -> dict[str, Any]:
    """Return the options that decide the output's bytes."""
    return {"to": to, "to_format": to_format, "settings": dict(settings or {}), "requantize": requantize}
