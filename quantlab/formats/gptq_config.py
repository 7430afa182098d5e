"""GPTQ's config: what it says of a checkpoint, and what to write.

Source: ModelCloud/GPTQModel: gptqmodel/quantization/config.py; huggingface/transformers:
src/transformers/utils/quantization_config.py, ``GPTQConfig``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from quantlab.checkpoint.facts import CheckpointFacts
from quantlab.errors import CheckpointError, ConversionRefused
from quantlab.tensors.quantized import WeightFormat

VERSIONS = {"gptq": 1, "gptq_v2": 2}
"""``checkpoint_format`` to the version of the zero points."""


def stated_version(config: Mapping[str, Any], path: str) -> int:
    """Return 1 or 2 from ``checkpoint_format`` (or ``format``); absent means 1.

    Raises:
        CheckpointError: another layout.
    """
    stated = str(config.get("checkpoint_format") or config.get("format") or "gptq").lower()
    if config.get("is_marlin_format"):
        stated = "marlin"
    if stated not in VERSIONS:
        message = f"{path}: quantization_config.checkpoint_format is {stated!r}, a layout that cannot be taken apart"
        raise CheckpointError(message, hint="gptq and gptq_v2 can")
    return VERSIONS[stated]


def written_by_gptqmodel(config: Mapping[str, Any]) -> bool:
    """Say whether GPTQModel wrote the checkpoint (``meta.quantizer``, a word or a list of ``name:version``)."""
    meta = config.get("meta")
    stated = meta.get("quantizer") if isinstance(meta, Mapping) else None
    return any(str(one).lower().startswith("gptqmodel") for one in (stated if isinstance(stated, list) else [stated]))


def commonest(formats: Iterable[WeightFormat]) -> WeightFormat:
    """Return the scheme that most layers have.

    Raises:
        ConversionRefused: there are no layers.
    """
    counted = Counter(formats)
    if not counted:
        raise ConversionRefused("no layer of the model is quantized, so there is nothing to write a config for")
    return counted.most_common(1)[0][0]


def dynamic_rules(
    weights: Mapping[str, WeightFormat], common: WeightFormat, ignore: tuple[str, ...]
) -> dict[str, dict[str, Any]]:
    """Return GPTQModel's per-module rules: ``-:pattern`` leaves a module dense, ``+:pattern`` changes its numbers."""
    rules: dict[str, dict[str, Any]] = {}
    for module in ignore:
        if module == "lm_head":
            continue
        rules[f"-:{module.removeprefix('re:')}" if module.startswith("re:") else f"-:^{re.escape(module)}$"] = {}
    for name, scheme in weights.items():
        if scheme != common:
            rules[f"+:^{re.escape(name)}$"] = numbers(scheme)
    return rules


def numbers(scheme: WeightFormat) -> dict[str, Any]:
    """Return a scheme in GPTQ's keys."""
    size = scheme.group_size if scheme.granularity == "group" else -1
    return {"bits": scheme.number.bits, "group_size": size, "sym": scheme.symmetric}


def has_act_order(source: CheckpointFacts) -> bool:
    """Say whether the source's columns were grouped by activation order, in GPTQ's or compressed-tensors' words."""
    config = source.quantization_config or {}
    groups = config.get("config_groups")
    schemes = groups.values() if isinstance(groups, Mapping) else ()
    orders = [scheme.get("weights", {}).get("actorder") for scheme in schemes if isinstance(scheme, Mapping)]
    return bool(config.get("desc_act")) or "group" in orders
