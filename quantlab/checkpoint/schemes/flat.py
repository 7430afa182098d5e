"""Configs that give the numbers as plain keys: bits, group size, symmetric or not.

Most formats write them so, each with its own names and defaults. The names are data::

    keys:       {bits: [bits, w_bit], group_size: [group_size], symmetric: [sym], asymmetric: [zero_point]}
    defaults:   {bits: 4, group_size: 128, symmetric: true}
    weights:    {type: int}                      constants of the format
    types:      {mx_fp: {type: float, ...}}      by the value of keys.data_type
    overrides:  {keys: [dynamic], style: signed} other numbers for single modules
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from quantlab.checkpoint.facts import ActivationScheme, Finding, Scheme, SchemeGroup, WeightScheme
from quantlab.checkpoint.schemes.interface import Reading, Source
from quantlab.checkpoint.schemes.numbers import combine, exact_dtype
from quantlab.checkpoint.values import boolean, first, integer, integers, mapping, number, strings, text


def read(source: Source) -> Reading:
    """Read a config of plain keys."""
    weights = weight_scheme(source.format, source.block)
    activations = _activations(source.format, source.block)
    groups = [SchemeGroup(weights, ("Linear",), activations)]
    ignored = list(ignore_list(source.format, source.block))
    for pattern, change in _overrides(source.format, source.block):
        changed = None if change is None else weight_scheme(source.format, {**source.block, **change})
        if changed is None or (changed.bits is not None and changed.bits >= 16):
            ignored.append(pattern)
        elif changed != weights:
            groups.append(SchemeGroup(changed, (pattern,), activations))
    return Reading(combine(groups), ignore=tuple(ignored), findings=tuple(_odd_values(source)))


def nothing(source: Source) -> Reading:
    """Read a config whose numbers cannot be known from the files."""
    return Reading(Scheme(), ignore=ignore_list(source.format, source.block))


def ignore_list(form: Mapping[str, Any], block: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the modules that stay dense, from whichever of the format's ``ignore`` keys is there."""
    return strings(first(block, strings(form.get("ignore"))))


def weight_scheme(form: Mapping[str, Any], block: Mapping[str, Any]) -> WeightScheme:
    """Return the weights' numbers from the block's keys, the format's defaults and its constants."""
    keys, defaults = mapping(form.get("keys")), mapping(form.get("defaults"))
    raw = first(block, strings(keys.get("bits")))
    bits = number(raw) or number(defaults.get("bits"))
    if form.get("fractional") and isinstance(raw, float) and bits is not None:
        bits = raw
    group = integer(first(block, strings(keys.get("group_size"))))
    group = integer(defaults.get("group_size")) if group is None else group
    constants = {**mapping(form.get("weights")), **_by_data_type(form, block)}
    scheme = replace(
        WeightScheme(),
        **{key: constants[key] for key in ("bits", "type", "granularity", "group_size", "symmetric", "dtype",
                                           "scale_dtype") if key in constants},
    )  # fmt: skip
    scheme = replace(
        scheme,
        bits=bits if scheme.bits is None else scheme.bits,
        symmetric=_symmetric(keys, defaults, block) if scheme.symmetric is None else scheme.symmetric,
    )
    if scheme.granularity is None:
        scheme = replace(scheme, granularity=_granularity(group), group_size=_whole_rows(group, form))
    elif scheme.granularity == "block":
        block_size = integers(first(block, strings(keys.get("block")))) or integers(scheme.group_size)
        scheme = replace(scheme, group_size=(block_size[0], block_size[1]) if len(block_size) == 2 else None)
    elif scheme.granularity == "group" and scheme.group_size is None:
        scheme = replace(scheme, group_size=group)
    return scheme if scheme.dtype else replace(scheme, dtype=exact_dtype(scheme.bits, scheme.type))


def _granularity(group: int | None) -> str | None:
    if group is None:
        return None
    return "group" if group > 0 else "channel"


def _whole_rows(group: int | None, form: Mapping[str, Any]) -> int | None:
    """A group of -1 (0 for some) means whole rows; only GPTQ's relatives keep writing the number."""
    if group is not None and group <= 0:
        return -1 if form.get("whole_row_group") else None
    return group


def _symmetric(keys: Mapping[str, Any], defaults: Mapping[str, Any], block: Mapping[str, Any]) -> bool | None:
    asymmetric = boolean(first(block, strings(keys.get("asymmetric"))))
    if asymmetric is not None:
        return not asymmetric
    said = boolean(first(block, strings(keys.get("symmetric"))))
    return boolean(defaults.get("symmetric")) if said is None else said


def _by_data_type(form: Mapping[str, Any], block: Mapping[str, Any]) -> Mapping[str, Any]:
    word = text(first(block, strings(mapping(form.get("keys")).get("data_type"))))
    types = mapping(form.get("types"))
    if word is None or not types:
        return {}
    return mapping(next((types[name] for name in types if word.lower().startswith(str(name))), None))


def _activations(form: Mapping[str, Any], block: Mapping[str, Any]) -> ActivationScheme | None:
    constant = mapping(form.get("activations"))
    if constant:
        return ActivationScheme(**{key: constant[key] for key in constant})
    keys = mapping(form.get("keys"))
    bits = integer(first(block, strings(keys.get("activation_bits"))))
    if bits is None or bits >= 16:
        return None
    constants = _by_data_type({**form, "keys": {"data_type": keys.get("activation_type")}}, block)
    kind = str(constants.get("type", "int"))
    dynamic = boolean(first(block, strings(keys.get("activation_dynamic"))))
    return ActivationScheme(
        bits=bits, type=kind, dtype=exact_dtype(bits, kind), dynamic=True if dynamic is None else dynamic
    )


def _overrides(form: Mapping[str, Any], block: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
    """Yield ``(module pattern, changed keys or None for left dense)``.

    Style ``signed`` is GPTQModel's ``dynamic`` (ModelCloud/GPTQModel: gptqmodel/quantization/config.py):
    ``-:pattern`` leaves a module out, ``+:pattern`` or a bare pattern changes its keys. Style ``plain`` maps
    module to keys.
    """
    rules = mapping(form.get("overrides"))
    for pattern, change in mapping(first(block, strings(rules.get("keys")))).items():
        if rules.get("style") == "signed" and pattern.startswith(("-:", "+:")):
            yield pattern[2:], None if pattern.startswith("-:") else mapping(change)
        else:
            yield pattern, None if change is False or change is None else mapping(change)


def _odd_values(source: Source) -> Iterator[Finding]:
    """A key whose value has a type that no loader can mean."""
    for field, names in mapping(source.format.get("keys")).items():
        if field not in {"bits", "group_size"}:
            continue
        for name in strings(names):
            value = source.block.get(name)
            if value is not None and number(value) is None:
                yield Finding(
                    "config-value", "error", f"quantization_config.{name}", f"{name} is {value!r:.60}, not a number"
                )
