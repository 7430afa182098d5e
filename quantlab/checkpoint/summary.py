"""A checkpoint's facts as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from quantlab.checkpoint.facts import ActivationScheme, CheckpointFacts, Finding, SchemeGroup, WeightScheme

_STORED = ("codes", "scales", "dense")
_MARKS = {"error": "error  ", "warning": "warning", "info": "note   "}


def summary(facts: CheckpointFacts) -> str:
    """Return the text of ``quantlab inspect``, about one screen, findings last and the worst of them first."""
    return "\n".join([*_head(facts), *_scheme(facts), *_sizes(facts), *_findings(facts.findings)])


def _head(facts: CheckpointFacts) -> Iterator[str]:
    shape = facts.architecture
    model = ", ".join(shape.architectures) or shape.model_type
    yield f"checkpoint   {facts.path}"
    if model:
        layers = f", {shape.num_hidden_layers} layers" if shape.num_hidden_layers else ""
        hidden = f", hidden {shape.hidden_size}" if shape.hidden_size else ""
        yield f"model        {model}{layers}{hidden}"
    yield f"format       {facts.format}"


def _scheme(facts: CheckpointFacts) -> Iterator[str]:
    scheme = facts.scheme
    if scheme.weights is not None:
        yield f"weights      {words(scheme.weights)}{', mixed:' if scheme.mixed else ''}"
    if scheme.mixed:
        yield from (f"             - {_group(group)}" for group in scheme.groups)
    if scheme.weights is not None:
        yield f"activations  {activation_words(scheme.activations)}"
    if scheme.kv_cache is not None:
        yield f"KV cache     {scheme.kv_cache.dtype or scheme.kv_cache.type}"
    if facts.experts:
        state = {True: "quantized", False: "not quantized", None: "unknown until headers are read"}
        per_token = facts.experts.get("per_token")
        used = f", {per_token} a token" if per_token else ""
        yield f"experts      {facts.experts['count']}{used}, {state[facts.experts.get('quantized')]}"
    if facts.ignore:
        shown = ", ".join(facts.ignore[:4])
        yield f"left dense   {shown}{f' and {len(facts.ignore) - 4} more' if len(facts.ignore) > 4 else ''}"


def words(weights: WeightScheme) -> str:
    """Return a weight scheme as a phrase: ``4-bit int, groups of 128, symmetric``."""
    size = weights.group_size
    sharing = {
        "tensor": "one scale a tensor",
        "channel": "one scale a channel",
        "group": f"groups of {size}" if size else "groups",
        "block": f"blocks of {size[0]}x{size[1]}" if isinstance(size, tuple) else f"blocks of {size}",
    }.get(weights.granularity or "", weights.granularity)
    symmetry = {True: "symmetric", False: "with zero points", None: None}[weights.symmetric]
    number = f"{weights.bits}-bit {weights.type}" if weights.bits else weights.type or "unknown numbers"
    exact = f"({weights.dtype})" if weights.type == "float" and weights.dtype else None
    return ", ".join(part for part in (f"{number} {exact}" if exact else number, sharing, symmetry) if part)


def activation_words(activations: ActivationScheme | None) -> str:
    """Return the activations' scheme as a phrase."""
    if activations is None:
        return "16 bit (weight-only)"
    when = {True: "dynamic", False: "static", None: None}[activations.dynamic]
    sharing = f"by {activations.granularity}" if activations.granularity else None
    number = activations.dtype or (f"{activations.bits}-bit {activations.type}" if activations.bits else "unknown")
    return ", ".join(part for part in (number, when, sharing) if part)


def _group(group: SchemeGroup) -> str:
    shown = ", ".join(group.targets[:2]) + (f" and {len(group.targets) - 2} more" if len(group.targets) > 2 else "")
    return f"{words(group.weights)}: {shown}"


def _sizes(facts: CheckpointFacts) -> Iterator[str]:
    if not facts.bytes and not facts.parameters:
        yield "sizes        unknown: no weights beside the config"
        return
    total, size = facts.parameters.get("total"), facts.bytes.get("total")
    yield f"parameters   {_count(total)}" if total else "parameters   unknown"
    if size:
        each = f", {size * 8 / total:.2f} bits a weight" if total else ""
        yield f"bytes        {_gibibytes(size)}{each}"
    kinds = [kind for kind in facts.bytes if kind not in {*_STORED, "total"}]
    for kind in sorted(kinds, key=lambda kind: -facts.bytes[kind]):
        yield f"             {kind:<11}{_gibibytes(facts.bytes[kind]):>11}{_count(facts.parameters.get(kind, 0)):>10}"
    stored = [f"{kind} {_gibibytes(facts.bytes[kind])}" for kind in _STORED if facts.bytes.get(kind)]
    if stored:
        yield f"stored as    {', '.join(stored)}"


def _findings(findings: tuple[Finding, ...]) -> Iterator[str]:
    if not findings:
        yield "findings     none"
        return
    yield "findings"
    for finding in sorted(findings, key=lambda finding: list(_MARKS).index(finding.severity)):
        yield f"  {_MARKS[finding.severity]} {finding.rule}: {finding.message}"
        yield f"          at {finding.where}"
        if finding.fix:
            yield f"          fix: {finding.fix}"


def _count(count: int | None) -> str:
    if count is None:
        return ""
    for unit, name in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if count >= unit:
            return f"{count / unit:.2f} {name}"
    return str(count)


def _gibibytes(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
