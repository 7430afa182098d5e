"""Which format a checkpoint has and which numbers, from its JSON files alone.

The config may lie in ``config.json`` under ``quantization_config`` (or an older key), inside a nested text config,
or in a companion file. ``quant_method`` names the format; where it is missing, the keys do. Both are data:
``matrix/formats/<id>.yaml``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from quantlab.checkpoint.architecture import read_architecture, text_configs
from quantlab.checkpoint.companions import contradictions
from quantlab.checkpoint.facts import Architecture, Finding, Scheme
from quantlab.checkpoint.schemes import SCHEME_READERS
from quantlab.checkpoint.schemes.interface import Source
from quantlab.checkpoint.values import integer, mapping, strings, text
from quantlab.matrix.data import read_section

COMPANIONS = (
    "hf_quant_config.json",
    "quantize_config.json",
    "quant_config.json",
    "quantization_config.json",
    "quanto_qmap.json",
    "params.json",
)
"""JSON files that may carry a quantization config, besides ``quant_model_description*.json``."""

_BITS_IN_NAME = re.compile(
    r"(?<![a-z\d])(?:int)?[2348][-_]?bit|(?<![a-z])int[48](?![a-z\d])|[a-z][48]bit", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Recognition:
    """What the JSON files of a checkpoint say.

    Attributes:
        format: format id, ``dense``, or ``unknown`` where something is quantized in a way nobody here knows.
        scheme: the numbers.
        architecture: the model's shape.
        ignore: modules that stay dense, as the config writes them.
        quantization_config: the block that the format was recognised from; None for a dense checkpoint.
        findings: what is wrong with the configs.
        where: file and key of that block, such as ``config.json: text_config.quantization_config``.
    """

    format: str
    scheme: Scheme
    architecture: Architecture
    ignore: tuple[str, ...] = ()
    quantization_config: dict[str, Any] | None = None
    findings: tuple[Finding, ...] = ()
    where: str | None = None


def recognise(config: Mapping[str, Any], companions: Mapping[str, Mapping[str, Any]] | None = None) -> Recognition:
    """Return format, scheme and shape of a checkpoint from its JSON files; never raises on their content.

    Args:
        config: the content of ``config.json`` (empty if there is none).
        companions: other JSON files by file name (``hf_quant_config.json``, ``quantize_config.json``, ...).
    """
    config = mapping(config)
    companions = {name: mapping(content) for name, content in (companions or {}).items()}
    architecture = read_architecture(config)
    findings = list(_wrong_types(config))
    unknown: tuple[str, Mapping[str, Any]] | None = None
    for where, block in _candidates(config, companions):
        if not _says_something(block):
            continue
        form = format_of(block, where)
        if form is None:
            unknown = unknown or (where, block)
            continue
        source = Source(form, _inner(form, block), config, companions)
        reading = SCHEME_READERS[str(form["reader"])](source)
        findings += [*reading.findings, *_placement(form, where, block)]
        findings += contradictions(form, source, reading, where)
        findings += _foreign(form, companions, where)
        return Recognition(
            format=reading.format or str(form["id"]),
            scheme=reading.scheme,
            architecture=architecture,
            ignore=reading.ignore,
            quantization_config=dict(block),
            findings=tuple(findings),
            where=where,
        )
    return _unrecognised(config, architecture, unknown, findings)


def format_of(block: Mapping[str, Any], where: str = "") -> Mapping[str, Any] | None:
    """Return the data of the format that a config block belongs to, or None if no format knows it."""
    formats = read_section("formats")
    method = text(block.get("quant_method")) or text(block.get("quant_library"))
    if method is not None:
        return next((form for form in formats.values() if method.lower() in strings(form.get("quant_methods"))), None)
    file, _, key = where.partition(": ")
    for form in formats.values():
        if key in strings(form.get("top_level")) or file in strings(form.get("companions")):
            if _fits(form, block) or not form.get("signatures"):
                return dict(form)
            if key in strings(form.get("top_level")) and "bits" in block:
                return dict(form)
    return next((form for form in formats.values() if _fits(form, block)), None)


def _fits(form: Mapping[str, Any], block: Mapping[str, Any]) -> bool:
    return any(all(_present(block, key) for key in strings(keys)) for keys in form.get("signatures") or ())


def _present(block: Mapping[str, Any], dotted: str) -> bool:
    value: Any = block
    for key in dotted.split("."):
        value = mapping(value).get(key)
    return value is not None


def _candidates(
    config: Mapping[str, Any], companions: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every block that says something, the most authoritative first."""
    places: list[tuple[str, Mapping[str, Any]]] = [("", config), *text_configs(config)]
    for key in ("quantization_config", "compression_config"):
        for name, place in places:
            yield f"config.json: {name + '.' if name else ''}{key}", mapping(place.get(key))
    yield "config.json: quantization", mapping(config.get("quantization"))
    named = text(config.get("quantize"))
    if named:
        yield "config.json: quantize", {"model_quant_type": named.upper()}
    for name, content in companions.items():
        if name == "params.json":
            yield f"{name}: quantization", mapping(content.get("quantization"))
        elif not name.endswith(".index.json"):
            yield name, content


def _says_something(block: Mapping[str, Any]) -> bool:
    return any(value not in (None, False, [], {}, "") for key, value in block.items() if not key.startswith("_comment"))


def _inner(form: Mapping[str, Any], block: Mapping[str, Any]) -> Mapping[str, Any]:
    """Some formats nest their keys (HQQ); outer keys stay visible."""
    inner: Any = block
    for key in strings(form.get("within")):
        inner = mapping(inner).get(key)
    return {**block, **mapping(inner)} if form.get("within") else block


def _wrong_types(config: Mapping[str, Any]) -> Iterator[Finding]:
    for key in ("quantization_config", "compression_config"):
        value = config.get(key)
        if value is not None and not isinstance(value, Mapping):
            message = f"{key} is a {type(value).__name__}, not an object"
            yield Finding(
                "config-value", "error", f"config.json: {key}", message, "write the object the loader expects"
            )


def _placement(form: Mapping[str, Any], where: str, block: Mapping[str, Any]) -> Iterator[Finding]:
    if where.startswith("config.json: ") and where.count("."):
        nested = where.split(": ")[1].rpartition(".")[0]
        if nested:
            yield Finding(
                "nested-config", "info", where, f"the quantization config lies inside {nested}",
                "loaders that look only at the top level load the model as a dense one",
            )  # fmt: skip
    if not where.startswith("config.json"):
        yield Finding(
            "companion-only", "info", where, "config.json does not say that the checkpoint is quantized",
            "add quantization_config with quant_method to config.json for loaders that read only that",
        )  # fmt: skip
    elif text(block.get("quant_method")) is None and where.endswith("quantization_config"):
        loads = "transformers" in strings(form.get("read_by"))
        yield Finding(
            "missing-quant-method", "error" if loads else "warning", where, "quant_method is missing",
            f'add "quant_method": "{strings(form.get("quant_methods"))[0]}"' if form.get("quant_methods") else None,
        )  # fmt: skip


def _foreign(form: Mapping[str, Any], companions: Mapping[str, Mapping[str, Any]], where: str) -> Iterator[Finding]:
    """A companion that belongs to another format: engines differ in which of the two they follow."""
    for name, content in companions.items():
        other = None if where.startswith(name) or name == "params.json" else format_of(content, name)
        if other is not None and other["id"] != form["id"] and name not in strings(form.get("companions")):
            yield Finding(
                "companion-contradicts", "warning", name, f"{name} is of format {other['id']}, {where} of {form['id']}",
                "keep the one that fits the tensors and delete the other",
            )  # fmt: skip


def _unrecognised(
    config: Mapping[str, Any],
    architecture: Architecture,
    unknown: tuple[str, Mapping[str, Any]] | None,
    findings: list[Finding],
) -> Recognition:
    block: dict[str, Any] | None = None
    where = None
    if unknown is not None:
        where, block = unknown[0], dict(unknown[1])
        method = text(block.get("quant_method"))
        what = f"quant_method {method!r:.80} is not known" if method else "no known format has these keys"
        findings.append(Finding("unknown-method", "warning", where, what, "only the code that wrote it can load it"))
    named = next((name for name in architecture.architectures if _BITS_IN_NAME.search(name)), None)
    if block is None and (integer(config.get("quantization_bit")) or 0) > 0:
        message = "the model's own code quantizes to this many bits, on disk or while loading"
        findings.append(Finding("remote-quantization", "warning", "config.json: quantization_bit", message))
        block = {"quantization_bit": config["quantization_bit"]}
    elif block is None and named is not None:
        message = f"{named} is quantized by the model's own code; no config says how"
        findings.append(Finding("remote-quantization", "warning", "config.json: architectures", message))
        block = {}
    wrong = any(finding.rule == "config-value" for finding in findings)
    return Recognition(
        format="dense" if block is None and not wrong else "unknown",
        scheme=Scheme(),
        architecture=architecture,
        quantization_config=block or None,
        findings=tuple(findings),
        where=where,
    )
