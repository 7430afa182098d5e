"""What ``--to NAME`` means, read from ``matrix/presets.yaml``, with ``--set KEY=VALUE`` applied."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from quantlab.checkpoint.facts import ActivationScheme
from quantlab.errors import DataError, UnknownNameError, UsageError
from quantlab.matrix.data import read_section
from quantlab.tensors.number_types import NUMBER_TYPES
from quantlab.tensors.quantized import WeightFormat

NATIVE = "native"
NATIVE_SETTINGS = ("clip", "group_size", "keep_dense", "symmetric")
"""What ``--set`` can change where quantlab quantizes itself."""


@dataclass(frozen=True, slots=True)
class Preset:
    """One entry of the presets.

    Attributes:
        name: what the user types.
        title: one line for people.
        format: id of the output's format.
        using: ``native`` or a quantizer's id.
        weights: scheme of the weights, or None for dense output and for libraries.
        activations: scheme of the activations at run time, or None for 16 bit.
        dtype: torch dtype name of a dense output.
        clip: search for the range with the least error (``mse``) instead of the full one.
        keep_dense: patterns of further modules to leave dense.
        options: options of the quantizer library.
    """

    name: str
    title: str
    format: str
    using: str = NATIVE
    weights: WeightFormat | None = None
    activations: ActivationScheme | None = None
    dtype: str | None = None
    clip: str | None = None
    keep_dense: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


def preset_names() -> tuple[str, ...]:
    """Return the names of all presets."""
    return tuple(_section()["presets"])


def find_preset(name: str, settings: Mapping[str, Any] | None = None, *, using: str | None = None) -> Preset:
    """Return a preset with settings applied.

    Args:
        name: the preset.
        settings: ``--set`` as a mapping.
        using: quantizer instead of the preset's own.

    Raises:
        UnknownNameError: no preset, or no setting of a native preset, has that name; offers the nearest.
        UsageError: a setting has a value that cannot be meant.
    """
    known = _section()["presets"]
    if name not in known:
        raise UnknownNameError("preset", name, known, hint=f"known presets: {', '.join(known)}")
    preset = _preset(name, known[name])
    if using is not None:
        preset = replace(preset, using=using)
    return _with_settings(preset, settings or {})


def parse_settings(words: list[str]) -> dict[str, Any]:
    """Parse ``KEY=VALUE`` words; values are YAML scalars.

    Raises:
        UsageError: a word has no ``=``.
    """
    import yaml

    settings: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UsageError(f"--set {word!r} is not KEY=VALUE")
        try:
            settings[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise UsageError(f"--set {key}: {value!r} is not a value") from error
    return settings


def dense_patterns() -> tuple[re.Pattern[str], ...]:
    """Return the patterns of modules that native quantizing leaves dense."""
    return tuple(re.compile(pattern) for pattern in _section()["keep_dense"])


def table_patterns() -> tuple[re.Pattern[str], ...]:
    """Return the patterns of lookup tables (embeddings), which are no linear layers."""
    return tuple(re.compile(pattern) for pattern in _section()["tables"])


def fused_names() -> tuple[tuple[str, ...], ...]:
    """Return the last parts of module names that engines fuse into one layer."""
    return tuple(tuple(group) for group in _section()["fused"])


def _section() -> dict[str, Any]:
    return dict(read_section("presets")["presets"])


def _preset(name: str, entry: Mapping[str, Any]) -> Preset:
    try:
        activations = entry.get("activations")
        return Preset(
            name,
            entry["title"],
            entry["format"],
            entry.get("using", NATIVE),
            None if entry.get("weights") is None else weight_format(entry["weights"]),
            None if activations is None else ActivationScheme(**activations),
            entry.get("dtype"),
            options=entry.get("options", {}),
        )
    except (KeyError, TypeError) as error:
        raise DataError(f"presets.yaml: preset {name!r}: {error}") from error


def weight_format(entry: Mapping[str, Any]) -> WeightFormat:
    """Read a scheme as presets and recipes write it."""
    block = entry.get("block")
    return WeightFormat(
        NUMBER_TYPES[entry["number"]],
        entry["granularity"],
        entry.get("group_size"),
        None if block is None else (block[0], block[1]),
        entry.get("symmetric", True),
        entry.get("scale_type"),
    )


def _with_settings(preset: Preset, settings: Mapping[str, Any]) -> Preset:
    if preset.using != NATIVE:
        return replace(preset, options={**preset.options, **settings})
    for key, value in settings.items():
        if key not in NATIVE_SETTINGS:
            raise UnknownNameError("setting", key, NATIVE_SETTINGS, hint=f"settings: {', '.join(NATIVE_SETTINGS)}")
        preset = _with_setting(preset, key, value)
    return preset


def _with_setting(preset: Preset, key: str, value: Any) -> Preset:
    if key == "clip":
        if value not in (None, "mse"):
            raise UsageError(f"clip is {value!r}", hint="clip=mse searches for the range with the least error")
        return replace(preset, clip=value)
    if key == "keep_dense":
        patterns = value if isinstance(value, list) else [value]
        return replace(preset, keep_dense=tuple(_pattern(pattern) for pattern in patterns))
    if preset.weights is None:
        raise UsageError(f"{preset.name} has no {key}: its output is dense")
    if key == "symmetric":
        if not isinstance(value, bool):
            raise UsageError(f"symmetric is {value!r}", hint="symmetric=true or symmetric=false")
        return replace(preset, weights=replace(preset.weights, symmetric=value))
    if preset.weights.granularity != "group":
        raise UsageError(f"{preset.name} has no group_size: its scales are per {preset.weights.granularity}")
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(f"group_size is {value!r}", hint="a positive number, such as 128, 64 or 32")
    return replace(preset, weights=replace(preset.weights, group_size=value))


def _pattern(pattern: object) -> str:
    try:
        re.compile(str(pattern))
    except re.error as error:
        raise UsageError(f"keep_dense {pattern!r} is not a regular expression: {error}") from error
    return str(pattern)
