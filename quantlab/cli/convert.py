"""``quantlab convert``: quantize, repack or dequantize a checkpoint."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantlab.errors import Exit

if TYPE_CHECKING:
    from quantlab.conversion.jobs import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``quantlab convert``."""
    parser.add_argument("source", help="folder or hub id")
    parser.add_argument("output", help="folder to write; must not exist, or be empty")
    what = parser.add_argument_group("what to make")
    what.add_argument("--to", metavar="PRESET", help="a preset, such as fp8, w4a16, gptq, nf4, bf16")
    what.add_argument("--to-format", metavar="ID", help="a format: alone a repack, which never changes numbers")
    what.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change the preset")
    what.add_argument("--requantize", action="store_true", help="allow numbers to change; the error is measured")
    library = parser.add_argument_group("quantizer libraries")
    library.add_argument("--using", metavar="QUANTIZER", help="another library than the preset's")
    library.add_argument("--recipe", metavar="FILE", help="a recipe, handed to the library as it is")
    library.add_argument("--calibration", metavar="SOURCE", help="calibration text: a file or a data set")
    library.add_argument("--samples", type=int, metavar="N", help="number of calibration samples")
    library.add_argument("--sequence-length", type=int, metavar="N", help="tokens of a calibration sample")
    library.add_argument("--chat-template", action="store_true", help="apply the chat template to conversations")
    library.add_argument("--seed", type=int, default=0, metavar="N", help="seed of what is random (default: 0)")
    where = parser.add_argument_group("where it shall run")
    where.add_argument("--gpu", metavar="GPU", help="refuse what the matrix says fails on this gpu")
    where.add_argument("--engine", metavar="ENGINE", help="the engine that shall load it")
    where.add_argument("--force", action="store_true", help="convert although the matrix says that it fails")
    work = parser.add_argument_group("the work")
    work.add_argument("--verify", choices=("decode", "load", "quality", "none"), help="how the output is checked")
    work.add_argument("--dry-run", action="store_true", help="print the plan and stop")
    work.add_argument("--resume", action="store_true", help="go on with an unfinished conversion")
    work.add_argument("--device", default="cpu", metavar="DEVICE", help="torch device to work on (default: cpu)")
    work.add_argument("--threads", type=int, metavar="N", help="worker threads (default: one a core)")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(options: argparse.Namespace) -> int:
    """Convert, or print the plan."""
    from quantlab.conversion.presets import parse_settings

    settings = parse_settings(options.set)
    if options.dry_run:
        return _dry_run(options, settings)
    from quantlab.cli.progress_bar import terminal_observer
    from quantlab.conversion.api import convert

    with terminal_observer() as observe:
        result = convert(
            options.source,
            options.output,
            options.to,
            **_shared(options, settings),
            recipe=options.recipe,
            calibration=options.calibration,
            samples=options.samples,
            sequence_length=options.sequence_length,
            chat_template=options.chat_template,
            seed=options.seed,
            verify=options.verify,
            resume=options.resume,
            device=options.device,
            threads=options.threads,
            observe=observe,
        )
    content = result.to_dict()
    if options.format == "json":
        print(json.dumps(content, indent=1))
    else:
        print(_text(content))
    return int(Exit.YES)


def _shared(options: argparse.Namespace, settings: dict[str, Any]) -> dict[str, Any]:
    names = ("to_format", "using", "gpu", "engine", "force", "requantize")
    return {"settings": settings, **{name: getattr(options, name) for name in names}}


def _dry_run(options: argparse.Namespace, settings: dict[str, Any]) -> int:
    from quantlab.conversion.api import plan_conversion

    plan, _ = plan_conversion(options.source, options.output, options.to, **_shared(options, settings))
    if plan.case == "quantizer":
        plan = _library_plan(plan, options)
    content = plan.to_dict()
    if options.format == "json":
        print(json.dumps(content, indent=1))
    else:
        print(_plan_text(content))
    return int(Exit.YES)


def _library_plan(plan: Plan, options: argparse.Namespace) -> Plan:
    from quantlab.conversion.library import LibraryOptions, with_library_plan

    recipe = None if options.recipe is None else Path(options.recipe)
    chosen = LibraryOptions(
        recipe, options.calibration, options.samples, options.sequence_length, options.seed, options.device
    )
    return with_library_plan(plan, chosen)


def _plan_text(plan: dict[str, Any]) -> str:
    read, written, held = plan["bytes"]["read"], plan["bytes"]["written"], plan["peak_memory_bytes"]
    lines = [
        f"{plan['case']}: {plan['source_format']} -> {plan['target_format']}, {plan['layers']} layers",
        f"reads {_size(read)}, writes about {_size(written)} in {len(plan['shards'])} shard(s)",
        f"holds at most {_size(held)} of tensors at a time",
    ]
    width = max((len(entry["kind"]) for entry in plan["exactness"]), default=0)
    lines += [
        f"  {entry['kind']:<{width}}  {entry['count']:>5} x {entry['action']:<10}  {entry['class']}"
        for entry in plan["exactness"]
    ]
    if plan["condition"]:
        lines.append(f"exact if {plan['condition']}; this is tested on every layer")
    if plan["kept_dense"]:
        lines.append(f"stay dense: {_some(plan['kept_dense'])}")
    if plan["quantizer"]:
        lines = [lines[0], *_library_text(plan["quantizer"])]
    if plan["verdict"]:
        verdict = plan["verdict"]
        lines.append(f"on {verdict['gpu'] or 'any gpu'}, {verdict['engine'] or 'any engine'}: {verdict['outcome']}"
                     f" ({verdict['reason']})")  # fmt: skip
    return "\n".join([*lines, *(f"note: {note}" for note in plan["notes"])])


def _library_text(library: dict[str, Any]) -> list[str]:
    seconds = library["seconds"]
    took = "time not known on this device" if seconds is None else f"about {seconds:.0f} s on two CPU cores"
    return [
        library["call"],
        f"needs about {_size(library['memory_bytes'])} of memory, {_size(library['disk_bytes'])} of disk space; {took}",
        f"calibrated: {'yes' if library['calibrated'] else 'no'}",
        f"if it is interrupted: {library['resume']}",
        *(f"will not work: {o['reason']}" + (f" ({o['fix']})" if o["fix"] else "") for o in library["obstacles"]),
        *(f"warning: {warning}" for warning in library["warnings"]),
    ]


def _text(result: dict[str, Any]) -> str:
    for note in result["notes"]:
        print(f"note: {note}", file=sys.stderr)
    layers = ", ".join(f"{count} {name}" for name, count in result["layers"].items())
    lines = [f"{result['output']}: {result['source_format']} -> {result['target_format']}, "
             f"{_size(result['bytes']['written'])}" + (f", layers: {layers}" if layers else "")]  # fmt: skip
    for again, words in ((True, "quantized again"), (False, "of another scheme than planned")):
        changed = [change for change in result["changed"] if change["requantized"] is again]
        if changed:
            names = [change["name"] for change in changed]
            lines.append(f"{words}: {_some(names)} ({changed[0]['reason']})")
    proof = result["proof"]
    if proof is not None:
        lines.append(_proof_text(proof))
    if result["quantizer"] is not None:
        lines.append(f"made by {result['quantizer']['call']}")
    lines.append("seconds: " + ", ".join(f"{phase} {took:.2f}" for phase, took in result["seconds"].items()))
    return "\n".join(lines)


def _proof_text(proof: dict[str, Any]) -> str:
    text = f"proved: every layer decoded again from the output, {proof['tensors_copied']} tensors byte for byte"
    if proof["worst"] is not None and proof["worst"]["error"] > 0:
        worst = proof["worst"]
        text += f"; relative error {proof['mean_error']:.4f} on average, at most {worst['error']:.4f} ({worst['name']})"
    return text


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
