"""What the output says of its own making: ``quantlab.json`` and the model card."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quantlab.version import __version__

PROVENANCE = "quantlab.json"
CARD = "README.md"

_COMPANIONS = (
    "tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "added_tokens.json", "spiece.model",
    "sentencepiece*", "chat_template*", "generation_config.json", "preprocessor_config.json", "LICENSE*", "NOTICE*",
)  # fmt: skip


def copy_companions(source: Path, output: Path) -> list[str]:
    """Copy tokenizer, chat template, generation config and license byte for byte; return their names.

    A library's own copies are written over: some add padding tokens or drop templates.
    """
    copied = []
    for path in sorted({path for pattern in _COMPANIONS for path in source.glob(pattern) if path.is_file()}):
        if path.suffix not in {".safetensors", ".bin", ".pt", ".py"}:
            shutil.copyfile(path, output / path.name)
            copied.append(path.name)
    return copied


def file_hashes(folder: Path) -> dict[str, str]:
    """Return the sha256 of config and weights by file name."""
    names = sorted([*folder.glob("*.safetensors"), *folder.glob("*.index.json"), folder / "config.json"])
    return {path.name: _sha256(path) for path in names if path.is_file()}


def write_provenance(output: Path, content: Mapping[str, Any]) -> None:
    """Write ``quantlab.json``: version, command, source, quantizer, calibration, check, output hashes."""
    whole = {
        "quantlab": __version__,
        "python": platform.python_version(),
        **content,
        "output": {"files": file_hashes(output)},
    }
    (output / PROVENANCE).write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")


def write_card(output: Path, *, name: str, title: str, load: str, content: Mapping[str, Any]) -> None:
    """Write the model card: what it is, how to load it, how it was made.

    Args:
        output: the checkpoint.
        name: folder name that the how-to-load uses.
        title: what was made by whom.
        load: Python that loads it, with ``{name}`` for the folder.
        content: the provenance.
    """
    check = content.get("check") or {}
    lines = ["---", "library_name: transformers", "tags: [quantlab, quantized]", "---", "", f"# {name}", "", title, ""]
    lines += ["## How to load it", "", "```python", load.replace("{name}", name).strip(), "```", ""]
    lines += ["## How it was made", "", "| | |", "|---|---|", *_rows(content), ""]
    if check.get("perplexity") is not None:
        lines += ["## How good it is", "", _quality(check), ""]
    lines += ["Everything about its making, with all hashes, is in `quantlab.json`.", ""]
    (output / CARD).write_text("\n".join(lines), encoding="utf-8")


def _quality(check: Mapping[str, Any]) -> str:
    before = check.get("source_perplexity")
    beside = "" if before is None else f"; the source has {before:.3f} on the same windows"
    return (
        f"Perplexity {check['perplexity']:.3f} on {check['tokens']} tokens of the built-in evaluation text{beside}. "
        "This is a check that nothing broke, not a benchmark; `quantlab evaluate` measures in full."
    )


def _rows(content: Mapping[str, Any]) -> Sequence[str]:
    quantizer, calibration = content["quantizer"], content.get("calibration")
    libraries = ", ".join(f"{name} {version}" for name, version in quantizer["library"].items())
    rows = [("source", content["source"]["name"]), ("libraries", libraries)]
    rows.append(("options", ", ".join(f"{k}={v}" for k, v in quantizer["options"].items())))
    if calibration:
        words = f"{calibration['samples']} samples, {calibration['tokens']} tokens of {calibration['text']}"
        rows.append(("calibration", words))
    rows.append(("seconds", f"{quantizer['seconds']:.0f}"))
    if content.get("dense_share") is not None:
        rows.append(("weights left in 16 bit", f"{100 * content['dense_share']:.1f} %"))
    return [f"| {key} | {str(value).replace('|', '/')} |" for key, value in rows]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
