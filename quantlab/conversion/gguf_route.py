"""Conversions with a GGUF file at one end, behind the same door as all others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from quantlab.checkpoint.open import read
from quantlab.conversion.presets import Preset
from quantlab.conversion.result import Conversion
from quantlab.errors import UsageError
from quantlab.progress import Observer

GGUF = "gguf"


def gguf_route(
    source: str | Path, output: Path, preset: Preset | None, *, requantize: bool, verify: bool
) -> Callable[[Observer], Conversion] | None:
    """Return the conversion if source or target is a GGUF file, else None.

    Args:
        source: folder or ``.gguf`` file.
        output: ``.gguf`` file to write, or folder where the source is one.
        preset: what ``--to`` names.
        requantize: whether numbers may change.
        verify: read the output back and compare.

    Raises:
        UsageError: a GGUF file to anything but bfloat16, or a GGUF preset with an output that is no ``.gguf`` file.
    """
    if Path(source).suffix == ".gguf" and Path(source).is_file():
        if preset is None or preset.name != "bf16":
            raise UsageError(
                f"{source} is a GGUF file, which becomes a bfloat16 folder first", hint="--to bf16, then convert that"
            )
        return lambda observe: _to_folder(Path(source), output, observe)
    if preset is None or preset.format != GGUF:
        return None
    if output.suffix != ".gguf":
        raise UsageError(f"{preset.name} writes one file", hint=f"name it, for example {output}.gguf")
    if output.exists():
        raise UsageError(f"{output} exists", hint="name a new file, or remove that one")
    if not Path(source).is_dir():
        raise UsageError(f"{preset.name} needs the model on disk", hint="download it, then give its folder")
    kind = str(preset.options["kind"])
    return lambda observe: _to_file(Path(source), output, kind, requantize=requantize, verify=verify, observe=observe)


def _to_file(source: Path, output: Path, kind: str, *, requantize: bool, verify: bool, observe: Observer) -> Conversion:
    from quantlab.conversion.gguf_file import folder_to_gguf

    facts = read(source)
    done = folder_to_gguf(source, output, kind, requantize=requantize, verify=verify, observe=observe)
    report = done.report
    total = sum(report.types.values())
    exact = len(report.exact)
    return Conversion(
        str(source),
        str(output),
        "quantize" if facts.format == "dense" else "repack",
        facts.format,
        GGUF,
        {name: count for name, count in (("identical", exact), ("requantize", total - exact)) if count},
        (),
        (),
        {"read": sum(info.end - info.start for info in facts.tensors.values()), "written": report.bytes},
        {"convert": done.seconds["write"], "verify": done.seconds["verify"]},
        notes=(f"{done.compared} weights were read back and are equal to the source",) if verify else (),
    )


def _to_folder(source: Path, output: Path, observe: Observer) -> Conversion:
    from quantlab.conversion.gguf_file import gguf_to_folder

    count = gguf_to_folder(source, output, observe=observe)
    written = sum(path.stat().st_size for path in output.glob("*.safetensors"))
    return Conversion(
        str(source),
        str(output),
        "dequantize",
        GGUF,
        "dense",
        {"rounded": count},
        (),
        (),
        {"read": source.stat().st_size, "written": written},
        {},
    )
