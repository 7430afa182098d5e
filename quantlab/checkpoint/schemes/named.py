"""Configs that name the weight's number type in one word: ``weights: int8``, ``forward_dtype: mxfp4``."""

from __future__ import annotations

from dataclasses import replace

from quantlab.checkpoint.facts import ActivationScheme, SchemeGroup, WeightScheme
from quantlab.checkpoint.schemes.flat import ignore_list
from quantlab.checkpoint.schemes.interface import Reading, Source
from quantlab.checkpoint.schemes.numbers import combine, number_type
from quantlab.checkpoint.values import first, mapping, strings, text


def read(source: Source) -> Reading:
    """Read a config whose weight type is one word; the format's ``words`` give what else follows from it."""
    keys, defaults = mapping(source.format.get("keys")), mapping(source.format.get("defaults"))
    word = text(first(source.block, strings(keys.get("weights")))) or text(defaults.get("weights"))
    constants = {
        **mapping(source.format.get("weights")),
        **mapping(mapping(source.format.get("words")).get(word or "")),
    }
    weights = replace(WeightScheme(), **{key: constants[key] for key in constants if key in WeightScheme.__slots__})
    found = number_type(word)
    if found is not None:
        weights = replace(
            weights,
            bits=weights.bits or found.bits,
            type=weights.type or found.type,
            dtype=weights.dtype or found.dtype,
        )
    activation = number_type(first(source.block, strings(keys.get("activations"))))
    activations = None
    if activation is not None:
        activations = ActivationScheme(activation.bits, activation.type, "tensor", None, False, activation.dtype)
    groups = [SchemeGroup(weights, ("Linear",), activations)]
    return Reading(combine(groups), ignore=ignore_list(source.format, source.block))
