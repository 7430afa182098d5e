"""Which of the things that ``--to`` can mean applies to a source.

====================  =======================================  ====================================
source                asked for                                outcome
====================  =======================================  ====================================
dense                 a preset that quantlab makes itself      ``quantize``
dense                 a preset of a library                    ``quantizer``
dense                 ``bf16``, ``fp16``                       ``cast``
quantized             ``bf16``, ``fp16``                       ``dequantize``
quantized             a preset of the same scheme              ``repack``
quantized             a format id, or a preset named as one    ``repack``
quantized             a preset of another scheme               ``requantize``, refused unless asked
====================  =======================================  ====================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from quantlab.checkpoint.facts import CheckpointFacts
from quantlab.conversion.jobs import Case
from quantlab.conversion.presets import NATIVE, Preset
from quantlab.errors import CheckpointError, ConversionRefused, UnknownNameError, UsageError
from quantlab.formats import FORMATS
from quantlab.formats.interface import Layer
from quantlab.tensors.quantized import WeightFormat

DENSE = "dense"


@dataclass(frozen=True, slots=True)
class Target:
    """What will be done, before the layers are looked at."""

    case: Case
    preset: Preset
    format: str


def decide(
    facts: CheckpointFacts, layers: Sequence[Layer], preset: Preset | None, to_format: str | None, *, requantize: bool
) -> Target:
    """Return what ``--to`` and ``--to-format`` mean for this source.

    Raises:
        UsageError: neither is given, or they cannot be meant for this source.
        ConversionRefused: the numbers would change and ``requantize`` is false.
    """
    if preset is None:
        return _format_alone(facts, layers, to_format)
    if facts.format == DENSE:
        return _from_dense(preset, to_format)
    if preset.format == DENSE:
        return Target("dequantize", preset, DENSE)
    format_id = resolve_format(to_format or preset.format, [layer.format for layer in layers])
    if preset.name == preset.format or preset.weights is None:
        return Target("repack", preset, format_id)
    schemes = {layer.format for layer in layers}
    if schemes == {preset.weights}:
        return Target("repack", preset, format_id)
    if requantize:
        return Target("requantize", preset, format_id)
    have, wanted = _words(schemes), _words({preset.weights})
    raise ConversionRefused(
        f"{facts.path} holds {have}, and {preset.name} is {wanted}: the numbers would change",
        hint=f"{_exact_way(preset, layers)}--requantize changes them and measures the error",
    )


def check_readable(facts: CheckpointFacts) -> None:
    """Refuse a source whose format no codec reads.

    Raises:
        CheckpointError: names the format, and the config's own word for it.
    """
    if facts.format in FORMATS:
        return
    method = (facts.quantization_config or {}).get("quant_method")
    own = f" (quant_method {method!r:.80})" if method and method != facts.format else ""
    raise CheckpointError(
        f"{facts.path} has the format {facts.format!r}{own}, which cannot be read",
        hint=f"readable are {', '.join(FORMATS)}",
    )


def resolve_format(name: str, schemes: Sequence[WeightFormat]) -> str:
    """Return a format id; ``compressed-tensors`` alone means its format that is made for the scheme.

    Raises:
        UnknownNameError: no format has that name.
    """
    if name in FORMATS:
        return name
    members = [format_id for format_id in FORMATS if format_id.startswith(f"{name}/")]
    if not members:
        raise UnknownNameError("format", name, FORMATS)
    return next((f"{name}/{kind}" for kind in _kinds(schemes) if f"{name}/{kind}" in members), members[0])


def _kinds(schemes: Sequence[WeightFormat]) -> list[str]:
    """Return the names of compressed-tensors formats that hold a scheme, the usual one first."""
    if not schemes:
        return []
    scheme = schemes[0]
    if scheme.number.kind == "int":
        return ["pack-quantized", "int-quantized"]
    if scheme.number.bits == 8:
        return ["mxfp8-quantized"] if scheme.scale_type == "e8m0" else ["float-quantized"]
    return ["mxfp4-pack-quantized"] if scheme.group_size == 32 else ["nvfp4-pack-quantized"]


def _format_alone(facts: CheckpointFacts, layers: Sequence[Layer], to_format: str | None) -> Target:
    if to_format is None:
        raise UsageError("neither --to nor --to-format is given", hint="--to fp8, for example")
    if facts.format == DENSE:
        raise UsageError(
            f"{facts.path} is dense, and --to-format never quantizes", hint="name a preset with --to, such as w4a16"
        )
    if to_format == DENSE:
        dtype = (facts.architecture.torch_dtype or "bfloat16").removeprefix("torch.")
        return Target("dequantize", Preset(DENSE, "multiplied out", DENSE, dtype=dtype), DENSE)
    format_id = resolve_format(to_format, [layer.format for layer in layers])
    return Target("repack", Preset(to_format, f"the same numbers as {format_id}", format_id), format_id)


def _from_dense(preset: Preset, to_format: str | None) -> Target:
    if preset.format == DENSE:
        return Target("cast", preset, DENSE)
    if preset.using != NATIVE:
        if to_format is not None and to_format != preset.format:
            raise UsageError(
                f"{preset.using} writes {preset.format}; --to-format {to_format} needs a second conversion"
            )
        return Target("quantizer", preset, preset.format)
    if preset.weights is None:
        raise UsageError(f"{preset.name} only repacks, and the source is dense", hint="name a preset that quantizes")
    format_id = resolve_format(to_format or preset.format, [preset.weights])
    return Target("quantize", replace(preset, format=format_id), format_id)


def _exact_way(preset: Preset, layers: Sequence[Layer]) -> str:
    """Return the hint that keeps the numbers in the family of formats that was asked for, if there is one."""
    family = preset.format.partition("/")[0]
    if family == preset.format:
        return ""
    return f"--to-format {resolve_format(family, [layer.format for layer in layers])} keeps the numbers; "


def _words(schemes: set[WeightFormat]) -> str:
    return " and ".join(sorted(scheme_text(scheme) for scheme in schemes)) or "no quantized layer"


def scheme_text(scheme: WeightFormat) -> str:
    """Return a scheme in words, such as ``int4 in groups of 128, symmetric``."""
    match scheme.granularity:
        case "group":
            where = f"in groups of {scheme.group_size}"
        case "block":
            where = "in blocks of " + "x".join(str(size) for size in scheme.block or ())
        case granularity:
            where = f"with one scale a {granularity}"
    return f"{scheme.number.name} {where}, {'symmetric' if scheme.symmetric else 'asymmetric'}"
