"""A way out of a verdict that is no: another version of the engine, a conversion, another engine; each asked of
the matrix before it is offered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from quantlab.matrix.data import section
from quantlab.matrix.load import MatrixData
from quantlab.matrix.model import Scalar, Verdict
from quantlab.matrix.query import Query, answer
from quantlab.matrix.subject import complete
from quantlab.matrix.versions import Version, point

_KEPT = (
    "moe", "fused_experts", "tied_embeddings", "multimodal", "hybrid", "linear_attention", "mla", "family",
    "hidden_size", "intermediate_size", "moe_intermediate_size", "tensor_parallel", "expert_parallel",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class WayOut:
    """One proposal and what the matrix says of it."""

    words: str
    verdict: Verdict


def with_way_out(verdict: Verdict, query: Query, data: MatrixData) -> Verdict:
    """Return the verdict with a fix that the matrix itself calls good, beside the statement's own words."""
    if verdict.ok or verdict.outcome == "unknown" or query.operation in {"save", "install", "train"}:
        return verdict
    found = next(ways_out(verdict, query, data), None)
    if found is None:
        return verdict
    words = "; ".join(filter(None, [verdict.fix, found.words]))
    return replace(verdict, fix=words)


def ways_out(verdict: Verdict, query: Query, data: MatrixData) -> Iterator[WayOut]:
    """Yield proposals that work, the smallest change first."""
    if verdict.engine not in data.engines:
        return
    asked = replace(query, engine=verdict.engine, gpus=(verdict.gpu,) if verdict.gpu else (), gpu_stated=True)
    if query.operation not in {"quantize", "convert"}:
        yield from _newer_engine(asked, data)
        yield from _conversions(asked, data)


def _newer_engine(query: Query, data: MatrixData) -> Iterator[WayOut]:
    engine = data.engines[str(query.engine)]
    if engine.package is None or not engine.releases or engine.package not in query.versions:
        return
    newest = engine.releases[-1].version
    if query.versions[engine.package].point >= point(newest):
        return
    versions = {engine.package: Version(newest, point(newest))}
    found = answer(replace(query, versions=versions), data)
    if found.ok:
        yield WayOut(f"checked: {_runs(found)} in {engine.title} {newest}", found)


def _conversions(query: Query, data: MatrixData) -> Iterator[WayOut]:
    kept = {key: value for key, value in query.facts.items() if key in _KEPT}
    for preset, facts in _targets().items():
        if facts.get("format") == query.facts.get("format") and facts.get("scheme") == query.facts.get("scheme"):
            continue
        found = answer(replace(query, facts={**facts, **kept}, operation=None), data)
        if found.ok and found.mode not in {"emulated", "dequantized"}:
            where = data.engines[str(query.engine)].title
            yield WayOut(
                f"checked: convert to {preset} (quantlab convert --to {preset}): {_runs(found)} in {where}", found
            )


def _runs(found: Verdict) -> str:
    word = "works" if found.outcome == "works" else "works with a fallback"
    mode = f", {found.mode}" if found.mode else ""
    kernel = f", through {found.kernel}" if found.kernel else ""
    gpu = f" on {found.gpu}" if found.gpu else ""
    return f"{word}{gpu}{mode}{kernel}"


def _targets() -> Mapping[str, Mapping[str, Scalar]]:
    """Presets worth offering as a way out, with the facts of their output (matrix/words.yaml)."""
    table = section("words")["ways_out"]
    return {str(name): complete(dict(facts)) for name, facts in table.items()}
