"""MLX: ``quantization`` (which its loader reads) and ``quantization_config`` (a copy for others).

Module names in the same object override single modules; ``false`` leaves one dense. Where the two copies
contradict each other, only what both say is told, and the contradiction is a finding: which of them describes
the bytes is not settled by the files (ml-explore/mlx-lm: mlx_lm/utils.py, ``load_model``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from quantlab.checkpoint.facts import Finding, Scheme, SchemeGroup, WeightScheme
from quantlab.checkpoint.schemes.interface import Reading, Source
from quantlab.checkpoint.schemes.numbers import combine
from quantlab.checkpoint.values import integer, mapping, text


def read(source: Source) -> Reading:
    """Read an MLX config, comparing its two copies."""
    own, copy = mapping(source.config.get("quantization")), mapping(source.config.get("quantization_config"))
    reading = _read(source.format, own or copy or source.block)
    if not own or not copy or own == copy:
        return reading
    other = _read(source.format, copy)
    if other.scheme == reading.scheme:
        return reading
    finding = Finding(
        "contradiction", "error", "config.json: quantization, quantization_config",
        f"quantization says {_numbers(reading.scheme)}, quantization_config says {_numbers(other.scheme)}",
        "mlx reads quantization; compare with the packed shapes and delete the wrong copy",
    )  # fmt: skip
    return Reading(_agreed(reading.scheme, other.scheme), ignore=reading.ignore, findings=(finding,))


def _read(form: Mapping[str, Any], block: Mapping[str, Any]) -> Reading:
    default = _weights(form, block)
    groups, ignore = [SchemeGroup(default, ("Linear", "Embedding"))], []
    for name, change in block.items():
        if change is False:
            ignore.append(name)
        elif isinstance(change, Mapping) and ("bits" in change or "group_size" in change or "mode" in change):
            weights = _weights(form, {**block, **change})
            if weights != default:
                groups.append(SchemeGroup(weights, (name,)))
    return Reading(combine(groups), ignore=tuple(ignore))


def _weights(form: Mapping[str, Any], block: Mapping[str, Any]) -> WeightScheme:
    modes = mapping(form.get("modes"))
    mode = mapping(modes.get(text(block.get("mode")) or "affine"))
    constants = mapping(mode.get("weights"))
    bits = integer(block.get("bits"))
    return WeightScheme(
        bits=constants.get("bits") or bits,
        type=constants.get("type", "int"),
        granularity="group",
        group_size=integer(block.get("group_size")) or constants.get("group_size"),
        symmetric=constants.get("symmetric"),
        dtype=constants.get("dtype") or (f"uint{bits}" if bits else None),
        scale_dtype=constants.get("scale_dtype"),
    )


def _numbers(scheme: Scheme) -> str:
    return " and ".join(f"{group.weights.bits} bits" for group in scheme.groups)


def _agreed(one: Scheme, other: Scheme) -> Scheme:
    if one.weights is None or other.weights is None:
        return Scheme()
    different = {
        name: None for name in WeightScheme.__slots__ if getattr(one.weights, name) != getattr(other.weights, name)
    }
    weights = replace(one.weights, **different)
    return combine([SchemeGroup(weights, ("Linear", "Embedding"))])
