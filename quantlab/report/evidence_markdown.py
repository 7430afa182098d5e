"""docs/results.md: what was measured, from the evidence files, one section a gpu."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quantlab.evaluation.evidence import read_folder
from quantlab.evaluation.result_row import Row, SpeedPoint, read_row
from quantlab.report.comparison_text import complaints, verdict_words
from quantlab.report.figures import MISSING, number, size, with_error

QUALITY = ("checkpoint", "format", "scheme", "kernels", "perplexity", "KL", "same top token", "worst layer", "verdict")
SPEED = ("checkpoint", "kernels", "on disk", "peak memory", "prefill", "decode", "bandwidth")


def evidence_markdown(folder: Path) -> str:
    """Return the page; every figure in it stands in an evidence file of ``folder``."""
    found = [content for _, content in read_folder(folder)] if folder.is_dir() else []
    lines = ["# Results", "", "Generated from `matrix/evidence`; nothing here is typed by hand."]
    if not found:
        return "\n".join([*lines, "", "No evidence yet.", ""])
    for gpu in sorted({str(content["statement"]["gpu"]) for content in found}):
        lines += _section(gpu, [content for content in found if content["statement"]["gpu"] == gpu])
    return "\n".join([*lines, ""])


def _section(gpu: str, found: Sequence[Mapping[str, Any]]) -> list[str]:
    results = sorted((content["result"] for content in found), key=lambda item: str(item["checkpoint"].get("name")))
    lines = ["", f"## {gpu}", "", *_environments(results)]
    measured = [item for item in results if (item.get("perplexity") or {}).get("value") is not None]
    if measured:
        lines += [
            "",
            f"### Quality and load proof ({_measure(measured[0])})",
            "",
            *_table(QUALITY, map(_quality, measured)),
        ]
    shaped = [item for item in results if item.get("speed") and item not in measured]
    timed = [*shaped, *(item for item in measured if item.get("speed"))]
    if timed:
        lines += ["", "### Speed and memory", "", *_table(SPEED, (row for item in timed for row in _speeds(item)))]
    failed = [item for item in results if not (item.get("verdict") or {}).get("ok")]
    if failed:
        lines += ["", "### What failed", ""]
        for item in failed:
            row = read_row(item, _name(item))
            lines += [f"- **{row.name}** ({row.format}): {words}" for _, words in complaints(row)[:3]]
    return lines


def _environments(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say on what it was measured; the same machine is told once."""
    told = []
    for item in results:
        environment = item.get("environment") or {}
        versions = environment.get("versions") or {}
        words = [
            str(environment.get("product") or environment.get("gpu")),
            f"driver {environment['driver']}" if environment.get("driver") else "",
            f"CUDA {environment['cuda']}" if environment.get("cuda") else "",
            f"ROCm {environment['rocm']}" if environment.get("rocm") else "",
            f"torch {environment.get('torch')}",
            *(f"{name} {version}" for name, version in sorted(versions.items()) if name != "torch"),
        ]
        told.append(f"{str(item.get('date', ''))[:10]}: {', '.join(word for word in words if word)}")
    return [f"- {line}" for line in dict.fromkeys(told)]


def _measure(item: Mapping[str, Any]) -> str:
    perplexity = item["perplexity"]
    return (
        f"text {perplexity.get('text')}, sha256 {str(perplexity.get('text_sha256'))[:12]}, "
        f"{perplexity.get('tokens')} tokens, windows of {perplexity.get('window')}"
    )


def _name(item: Mapping[str, Any]) -> str:
    return str(item["checkpoint"].get("name") or item["checkpoint"].get("format"))


def _kernels(row: Row) -> str:
    kernels = row.kernels or row.modules
    return ", ".join(f"{name} ({count})" for name, count in kernels.items()) or MISSING


def _quality(item: Mapping[str, Any]) -> tuple[str, ...]:
    row = read_row(item, _name(item))
    worst = (item.get("probe") or {}).get("worst") or {}
    error, allowed = worst.get("relative_error"), worst.get("allowed")
    probed = MISSING if error is None else f"{error:.2g} of {allowed:.2g}"
    top = MISSING if row.top1_agreement is None else f"{100 * row.top1_agreement:.1f} %"
    value = with_error(row.perplexity, row.perplexity_error)
    return (
        row.name,
        row.format,
        row.scheme,
        _kernels(row),
        value,
        number(row.kl_mean, 4),
        top,
        probed,
        verdict_words(row),
    )


def _speeds(item: Mapping[str, Any]) -> list[tuple[str, ...]]:
    row = read_row(item, _name(item))
    first = (row.name, _kernels(row), size(row.bytes_on_disk), size(row.peak_bytes))
    return [(*(first if place == 0 else ("", "", "", "")), *_point(point)) for place, point in enumerate(row.speed)]


def _point(point: SpeedPoint) -> tuple[str, str, str]:
    fraction = MISSING if point.bandwidth_fraction is None else f"{100 * point.bandwidth_fraction:.0f} %"
    prefill = f"{number(point.prefill_ms, 1)} ms at {point.batch} x {point.prompt_tokens}"
    decode = f"{number(point.decode_ms_per_token, 2)} ms a step, {number(point.decode_tokens_per_second, 0)} tok/s"
    return prefill, decode, fraction


def _table(headers: Sequence[str], rows: Any) -> list[str]:
    lines = [f"| {' | '.join(headers)} |", f"|{'---|' * len(headers)}"]
    return [*lines, *(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)]
