"""The shape of the model, from ``config.json``: the many names of a few sizes are data (matrix/architectures.yaml)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from quantlab.checkpoint.facts import Architecture
from quantlab.checkpoint.values import boolean, first, integer, mapping, strings, text
from quantlab.matrix.data import read_section

_WORDS = frozenset({"torch_dtype"})
_TRUTHS = frozenset({"tied_embeddings"})
_OWN = frozenset({"model_type", "architectures", "multimodal"})


def read_architecture(config: Mapping[str, Any]) -> Architecture:
    """Return the model's shape; what the config does not say stays None.

    The top level is asked first and nested text configs after it, except that a nested size beats a top-level one
    of a multimodal model, whose top level may describe another part.
    """
    data = read_section("architectures")["architectures"]
    nested = list(text_configs(config))
    places = [*(block for _, block in nested), config] if nested else [config]
    values: dict[str, Any] = {}
    for field in fields(Architecture):
        if field.name in _OWN:
            continue
        keys = strings(mapping(data["keys"]).get(field.name))
        values[field.name] = _value(field.name, places, keys)
    if values["tied_embeddings"] is None:
        values["tied_embeddings"] = _tied_by_default(data, config, nested)
    return Architecture(
        model_type=text(config.get("model_type")),
        architectures=strings(config.get("architectures")),
        multimodal=any(config.get(key) for key in strings(data["multimodal_keys"])),
        **values,
    )


def text_configs(config: Mapping[str, Any], *, depth: int = 3) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield nested configs of the language model by dotted name, the deepest last."""
    for key in strings(read_section("architectures")["architectures"]["nested"]):
        inner = mapping(config.get(key))
        if inner and depth:
            yield key, inner
            for name, deeper in text_configs(inner, depth=depth - 1):
                yield f"{key}.{name}", deeper


def _value(name: str, places: list[Mapping[str, Any]], keys: tuple[str, ...]) -> Any:
    for place in places:
        raw = first(place, keys)
        found: Any
        if name in _WORDS:
            found = text(raw)
            found = found.removeprefix("torch.") if found else None
        elif name in _TRUTHS:
            found = boolean(raw)
        else:
            found = integer(raw)
        if found is not None:
            return found
    return None


def _tied_by_default(
    data: Mapping[str, Any], config: Mapping[str, Any], nested: list[tuple[str, Mapping[str, Any]]]
) -> bool | None:
    for block in (config, *(inner for _, inner in nested)):
        kind = text(block.get("model_type"))
        if kind in strings(data.get("tied_by_default")):
            return True
        if kind in strings(data.get("untied_by_default")):
            return False
    return None
