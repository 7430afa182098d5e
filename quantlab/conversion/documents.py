"""The JSON files of an output: config, index, provenance."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from quantlab.checkpoint.folder import INDEX
from quantlab.conversion.jobs import Plan
from quantlab.conversion.journal import ShardRecord
from quantlab.formats import FORMATS
from quantlab.tensors.number_types import NUMBER_TYPES
from quantlab.tensors.quantized import WeightFormat
from quantlab.version import __version__

PROVENANCE = "quantlab.json"
QUANTIZATION_KEYS = ("quantization_config", "compression_config", "quantization")
"""Where checkpoints keep their format in ``config.json``, at the top or in ``text_config``."""


def output_config(plan: Plan, source: Mapping[str, Any], records: Iterable[ShardRecord]) -> dict[str, Any]:
    """Return the output's ``config.json``: the source's, with nothing left of the old format."""
    config = _without_format(source)
    if plan.preset.dtype is not None:
        config = _with_dtype(config, plan.preset.dtype)
    written = FORMATS[plan.target_format].config(output_schemes(plan, records), plan.kept_dense, _facts(plan))
    if written:
        config["quantization_config"] = written
    return config


def output_schemes(plan: Plan, records: Iterable[ShardRecord]) -> dict[str, WeightFormat]:
    """Return the scheme of each quantized module of the output."""
    schemes = {layer.name: layer.target for job in plan.jobs for layer in job.layers if layer.target is not None}
    for record in records:
        for change in record.changed:
            schemes[change["name"]] = _scheme(change["scheme"])
    return schemes


def write_index(folder: Path, records: list[ShardRecord], metadata: Mapping[str, Any]) -> bool:
    """Write the index of more than one shard; its metadata keeps what the source's said, sizes aside."""
    if len(records) < 2:
        return False
    kept = {key: value for key, value in metadata.items() if key not in ("total_size", "total_parameters")}
    total = sum(size for record in records for size in record.tensors.values())
    weight_map = {name: record.file for record in records for name in record.tensors}
    content = {"metadata": {**kept, "total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    write_json(folder / INDEX, content)
    return True


def provenance(
    plan: Plan,
    *,
    recipe: Mapping[str, Any],
    source: Mapping[str, Any],
    records: list[ShardRecord],
    hashes: Mapping[str, str],
    error: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return what ``quantlab.json`` says: which version made this, how, from what, and what it must hash to.

    Nothing in it depends on when or where the conversion ran, so the same work gives the same bytes.
    """
    return {
        "quantlab": __version__,
        "case": plan.case,
        "recipe": dict(recipe),
        "source": dict(source),
        "format": plan.target_format,
        "exactness": plan.to_dict()["exactness"],
        "changed": [change for record in records for change in record.changed],
        "error": None if error is None else dict(error),
        "sha256": dict(sorted(hashes.items())),
    }


def sha256_of(paths: Mapping[str, Path], threads: int) -> dict[str, str]:
    """Return the sha256 of files by name, several at a time."""
    with ThreadPoolExecutor(threads) as pool:
        return dict(zip(paths, pool.map(_sha256, paths.values()), strict=True))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file as transformers does: two spaces, a newline at the end."""
    path.write_text(json.dumps(dict(content), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _without_format(config: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in config.items() if key not in QUANTIZATION_KEYS}
    if isinstance(kept.get("text_config"), dict):
        kept["text_config"] = _without_format(kept["text_config"])
    return kept


def _with_dtype(config: dict[str, Any], dtype: str) -> dict[str, Any]:
    key = "dtype" if "dtype" in config else "torch_dtype"
    config[key] = dtype
    if isinstance(config.get("text_config"), dict):
        for name in ("dtype", "torch_dtype"):
            if name in config["text_config"]:
                config["text_config"] = {**config["text_config"], name: dtype}
    return config


def _facts(plan: Plan) -> Any:
    """Return the source's facts with the activation scheme that the preset asks for."""
    if plan.case not in ("quantize", "requantize"):
        return plan.facts
    return replace(plan.facts, scheme=replace(plan.facts.scheme, activations=plan.preset.activations))


def _scheme(fields: Mapping[str, Any]) -> WeightFormat:
    block = fields.get("block")
    return WeightFormat(
        NUMBER_TYPES[fields["number"]],
        fields["granularity"],
        fields["group_size"],
        None if block is None else (block[0], block[1]),
        fields["symmetric"],
        fields["scale_type"],
    )
