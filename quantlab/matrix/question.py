"""Turns the JSON of one question into a Query: device, engine, versions, operation, and the checkpoint's facts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from quantlab.errors import UnknownNameError
from quantlab.matrix.data import section
from quantlab.matrix.gpus import find_gpu
from quantlab.matrix.load import MatrixData, load
from quantlab.matrix.model import OPERATIONS
from quantlab.matrix.query import Query
from quantlab.matrix.subject import Facts, from_words
from quantlab.matrix.versions import History, Version, read_version

_LONGEST = 200


def read_question(words: Mapping[str, Any], data: MatrixData | None = None, *, facts: Facts | None = None) -> Query:
    """Read one line of ``--queries``; whatever is not understood is left out and named in ``unread``."""
    data = load() if data is None else data
    unread: list[str] = []
    subject = from_words(words) if facts is None else facts
    gpus, stated = _device(words.get("device"), data, unread)
    subject = _instructions(subject, words.get("device"))
    engine = _engine(words.get("engine"), data, unread)
    operation = _operation(words.get("operation"), unread)
    versions = _versions(words.get("software"), data)
    return Query(subject, engine, gpus, stated, versions, operation, tuple(unread))


def _device(raw: Any, data: MatrixData, unread: list[str]) -> tuple[tuple[str, ...], bool]:
    device: Mapping[str, Any] = raw if isinstance(raw, Mapping) else {"product": raw} if isinstance(raw, str) else {}
    found: list[str] = []
    for word in _strings(device.get("arch")):
        architecture = data.gpus.architecture(word)
        if architecture is None:
            unread.append(f"gpu {word!r}")
        else:
            found.append(architecture)
    if not found:
        found = _products(_strings(device.get("product")), data)
    if found:
        return tuple(dict.fromkeys(found)), True
    vendor = str(device.get("vendor") or "any").lower()[:_LONGEST]
    group = data.gpus.vendors.get(vendor, vendor)
    return data.gpus.typical.get(group, data.gpus.typical["any"] if vendor == "any" else ()), False


def _instructions(facts: Facts, raw: Any) -> Facts:
    """Add what the device's words say of a CPU's vector instructions (matrix/words.yaml)."""
    device: Mapping[str, Any] = raw if isinstance(raw, Mapping) else {}
    said = " ".join([*_strings(device.get("arch")), *_strings(device.get("product"))]).lower()
    for rule in section("words").get("instructions") or ():
        if re.search(rule["match"], said):
            return {**facts, **rule["set"]}
    return facts


def _products(words: list[str], data: MatrixData) -> list[str]:
    found = []
    for word in words:
        try:
            found.append(find_gpu(data.gpus, word))
        except UnknownNameError:
            continue
    return found


def _strings(value: Any) -> list[str]:
    items = value if isinstance(value, list) else [value]
    return [item[:_LONGEST] for item in items[:64] if isinstance(item, str) and item.strip()]


def engine_id(word: str, data: MatrixData) -> str | None:
    """Return the id of an engine as people write it, or None."""
    plain = word.strip().lower()[:_LONGEST]
    if plain in data.engines:
        return plain
    squeezed = re.sub(r"[\s_.\-]+", "", plain)
    for engine in data.engines.values():
        if squeezed in {re.sub(r"[\s_.\-]+", "", name.lower()) for name in (engine.id, engine.title, *engine.aliases)}:
            return engine.id
    return None


def _engine(raw: Any, data: MatrixData, unread: list[str]) -> str | None:
    if not isinstance(raw, str) or not raw.strip():
        return None
    found = engine_id(raw, data)
    if found is None:
        unread.append(f"engine {raw[:_LONGEST]!r}")
        return raw.strip()[:_LONGEST]
    return found


def _operation(raw: Any, unread: list[str]) -> str | None:
    if not isinstance(raw, str) or not raw.strip():
        return None
    aliases = section("words")["operations"]
    word = raw.strip().lower()[:_LONGEST]
    word = aliases.get(word, word)
    if word not in OPERATIONS:
        unread.append(f"operation {raw[:_LONGEST]!r}")
        return None
    return str(word)


def package_name(word: str) -> str:
    """Return the distribution name that statements use for a package as people write it."""
    aliases = section("words")["packages"]
    plain = word.strip().lower().replace("_", "-")[:_LONGEST]
    return str(aliases.get(plain, plain))


def _versions(raw: Any, data: MatrixData) -> dict[str, Version]:
    found: dict[str, Version] = {}
    for name, value in raw.items() if isinstance(raw, Mapping) else ():
        package = package_name(str(name))
        version = read_version(value, data.packages.get(package, History()))
        if version is None and isinstance(value, str) and value.strip():
            version = Version(value.strip()[:_LONGEST], (), approximate=True, placed=False)
        if version is not None:
            found[package] = version
    return found
