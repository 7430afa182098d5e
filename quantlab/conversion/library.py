"""The way through a quantizer library: the same front door and result, another workshop."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from quantlab.conversion.jobs import Plan
from quantlab.conversion.result import Conversion
from quantlab.errors import UsageError
from quantlab.progress import Observer
from quantlab.quantizers.run import QuantizeRequest, plan, quantize
from quantlab.quantizers.verification import Depth


@dataclass(frozen=True, slots=True)
class LibraryOptions:
    """What only a library understands.

    Attributes:
        recipe: recipe file, handed over as it is.
        calibration: text to calibrate on; the built-in one by default.
        samples: number of calibration windows.
        sequence_length: tokens of a window.
        seed: seed of everything random.
        device: torch device.
        force: try in spite of known failures elsewhere.
        verify: how the output is checked; the library's default if None.
        chat_template: apply the tokenizer's chat template to each conversation of the calibration text.
    """

    recipe: Path | None = None
    calibration: str | None = None
    samples: int | None = None
    sequence_length: int | None = None
    seed: int = 0
    device: str = "cpu"
    force: bool = False
    verify: str | None = None
    chat_template: bool = False


def with_library_plan(planned: Plan, options: LibraryOptions) -> Plan:
    """Return the plan with what the library would do: its call, obstacles, memory.

    Raises:
        UnknownNameError: no such quantizer or option.
        MissingExtraError: the library is not installed.
    """
    return replace(planned, quantizer=plan(_request(planned, options), planned.facts).to_dict())


def run_library(planned: Plan, options: LibraryOptions, observe: Observer) -> Conversion:
    """Quantize with the plan's library.

    Raises:
        UsageError: the source is on the hub, or ``decode`` was asked for.
        QuantizerFailed: the library stopped.
    """
    result = quantize(_request(planned, options), planned.facts, observe)
    content = result.to_dict()
    read = sum(info.end - info.start for info in planned.facts.tensors.values())
    written = sum(path.stat().st_size for path in planned.output.glob("*.safetensors"))
    return Conversion(
        planned.source,
        str(planned.output),
        planned.case,
        planned.facts.format,
        _format_written(planned),
        {},
        (),
        (),
        {"read": read, "written": written},
        {"convert": result.seconds},
        None,
        (*planned.notes, *result.plan.warnings, *result.notes),
        content,
    )


def _request(planned: Plan, options: LibraryOptions) -> QuantizeRequest:
    folder = Path(planned.source)
    if not folder.is_dir():
        raise UsageError(
            f"{planned.preset.using} needs the model on disk, and {planned.source} is on the hub",
            hint=f"hf download {planned.source} --local-dir FOLDER, then convert FOLDER",
        )
    if options.verify == "decode":
        raise UsageError(
            "a library's output has no source codes to be compared with", hint="--verify load or --verify quality"
        )
    return QuantizeRequest(
        planned.preset.using,
        folder,
        planned.output,
        options=dict(planned.preset.options),
        device=options.device,
        calibration=options.calibration,
        samples=options.samples,
        sequence_length=options.sequence_length,
        chat_template=options.chat_template,
        recipe=options.recipe,
        seed=options.seed,
        verify=cast("Depth | None", options.verify),
        force=options.force,
        target=planned.preset.name,
        command=_command(planned),
    )


def _format_written(planned: Plan) -> str:
    from quantlab.checkpoint.open import read

    return read(planned.output).format


def _command(planned: Plan) -> str:
    settings: Mapping[str, Any] = planned.preset.options
    words = [f"--set {key}={json.dumps(value)}" for key, value in settings.items()]
    return " ".join(["quantlab convert SOURCE OUTPUT --to", planned.preset.name, *words])
