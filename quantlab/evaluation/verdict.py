"""Two verdicts: damaged or not from structure; quality from measurement.

Structure is the load proof, the layer probe, the decode against the original, logits that are not finite, answers
that depend on what runs beside them, and errors that ``inspect`` finds in the file. None of these is a matter of
degree: one is enough.

Quality is judged by how much cross-entropy (the logarithm of perplexity) the checkpoint loses against the original,
beside what plain rounding to nearest in the same scheme loses on the same text and windows. A small model may
lose half of its perplexity in any 4-bit grid; that is its nature, a warning and no failure. It is ruined where it
loses more than twice what rounding loses, beyond the errors of both figures, or where its perplexity is one that
only noise has. No method that is worth its name does worse than rounding to nearest by such a factor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quantlab.checkpoint.facts import Finding
from quantlab.evaluation.result import Divergence, Load, Perplexity, Probe, Quality, QualityReference, Sanity, Verdict

NOISE_SHARE = 0.05
"""A perplexity above this share of the vocabulary is noise's: a model that knows word frequencies alone has a few
thousandths of it (English unigrams: about 1,000 of 50,000 words)."""

RUINED_FACTOR = 2.0
"""How many times the loss of rounding to nearest a checkpoint may lose before it counts as ruined."""

FLOOR_NATS = 0.02
"""Loss in nats that counts as none: 2 % of perplexity, the drift of a healthy 8-bit checkpoint."""

NOTABLE_INCREASE = 0.10
"""Relative increase of perplexity that is worth a warning."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What the user demands on top; None demands nothing.

    Attributes:
        max_perplexity: highest perplexity.
        max_perplexity_increase: highest relative increase over the original (0.05 is 5 %).
        max_kl: highest mean divergence in nats.
        min_top1_agreement: lowest share of positions where both prefer the same token.
    """

    max_perplexity: float | None = None
    max_perplexity_increase: float | None = None
    max_kl: float | None = None
    min_top1_agreement: float | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """All that the verdict looks at."""

    load: Load
    probe: Probe | None = None
    perplexity: Perplexity | None = None
    divergence: Divergence | None = None
    reference: QualityReference | None = None
    sanity: Sanity | None = None
    findings: Sequence[Finding] = ()
    vocabulary: int | None = None
    notes: Sequence[str] = ()


def judge(measured: Measured, thresholds: Thresholds) -> Verdict:
    """Return both verdicts with every reason."""
    damage = list(_damage(measured))
    quality, words = _quality(measured)
    failures = [*damage, *(words if quality == "ruined" else ()), *_thresholds(measured, thresholds)]
    warnings = [*_warnings(measured), *(words if quality != "ruined" else ())]
    return Verdict(not failures, bool(damage), quality, tuple(failures), tuple(warnings))


def _damage(measured: Measured) -> Iterator[str]:
    yield from _load_damage(measured.load)
    for finding in measured.findings:
        if finding.severity == "error":
            yield f"{finding.where}: {finding.message} ({finding.rule})"
    yield from _probe_damage(measured.probe)
    if measured.sanity is not None:
        if measured.sanity.non_finite_lengths:
            lengths = ", ".join(map(str, measured.sanity.non_finite_lengths))
            yield f"logits are not finite on short prompts of {lengths} tokens (half-precision overflow?)"
        error, allowed = measured.sanity.batch_error, measured.sanity.batch_allowed
        if error is not None and allowed is not None and error > allowed:
            yield f"a prompt's logits change by {error:.0%} of their spread when other prompts run beside it"
    if measured.perplexity is not None and measured.perplexity.non_finite_positions:
        yield f"logits are not finite at {measured.perplexity.non_finite_positions} positions of the text"


def _load_damage(load: Load) -> Iterator[str]:
    if load.error is not None:
        yield f"does not load: {load.error}: {(load.message or '').strip().splitlines()[0] if load.message else ''}"
    if load.missing_keys:
        yield f"{_count(load.missing_keys)} missing from the file, so random: {_some(load.missing_keys)}"
    if load.mismatched_keys:
        yield f"{_count(load.mismatched_keys)} of another shape than the model's: {_some(load.mismatched_keys)}"
    if load.differing_tensors:
        yield f"{_count(load.differing_tensors)} not what the file holds: {_some(load.differing_tensors)}"
    if load.tokenizer_problem:
        yield f"the tokenizer is another model's: {load.tokenizer_problem}"


def _probe_damage(probe: Probe | None) -> Iterator[str]:
    if probe is None:
        return
    if probe.bad:
        first = probe.bad[0]
        error = "no finite output" if first.relative_error is None else f"{first.relative_error:.3g}"
        yield (
            f"{len(probe.bad)} of {probe.layers} layers compute something else than the file says; first {first.layer} "
            f"({first.kernel}): error {error}, allowed {first.allowed:.3g}; likely cause: {first.cause or 'unknown'}"
        )
    against = probe.against_baseline
    if against is not None and against.bad:
        first = against.bad[0]
        error = "no finite output" if first.relative_error is None else f"{first.relative_error:.3g}"
        yield (
            f"{len(against.bad)} of {against.layers} layers of the file are not the original's; first {first.layer}: "
            f"error {error}, allowed {first.allowed:.3g}; likely cause: {first.cause or 'unknown'}"
        )


def _quality(measured: Measured) -> tuple[Quality, list[str]]:
    perplexity, reference = measured.perplexity, measured.reference
    if perplexity is None:
        return "unknown", []
    if perplexity.value is None:
        return "ruined", ["perplexity is not finite"]
    base = None if reference is None else reference.baseline_perplexity
    ceiling = None if measured.vocabulary is None else NOISE_SHARE * measured.vocabulary
    if ceiling is not None and perplexity.value > ceiling and (base is None or base <= ceiling):
        return "ruined", [f"perplexity {perplexity.value:.4g} is noise's (above {ceiling:.4g})"]
    if base is None or reference is None:
        return "good" if reference is None else "unknown", []
    return _quality_beside(perplexity, perplexity.value, base, reference.rounded_perplexity)


def _quality_beside(
    perplexity: Perplexity, value: float, base: float, rounded: float | None
) -> tuple[Quality, list[str]]:
    """Judge the loss against the original by what rounding to nearest loses, where that is known."""
    loss, noise = math.log(value / base), 2 * _relative_error(perplexity)
    words = f"perplexity {value:.4g} is {math.expm1(loss):+.1%} of the original's {base:.4g}"
    notable = loss > math.log1p(NOTABLE_INCREASE)
    if rounded is None:
        return ("degraded", [words]) if loss > math.log1p(NOTABLE_INCREASE) + noise else ("good", [])
    usual = max(0.0, math.log(rounded / base))
    words = f"{words}; rounding to nearest in the same scheme: {math.expm1(usual):+.1%}"
    if loss > RUINED_FACTOR * usual + FLOOR_NATS + noise:
        return "ruined", [words]
    if loss > usual + FLOOR_NATS + noise:
        return "degraded", [words]
    return "good", [words] if notable else []


def _relative_error(perplexity: Perplexity) -> float:
    """Return the standard error of the logarithm; windows are paired, so this is more than the difference's."""
    if perplexity.standard_error is None or not perplexity.value:
        return 0.0
    return min(0.05, perplexity.standard_error / perplexity.value)


def _thresholds(measured: Measured, wanted: Thresholds) -> Iterator[str]:
    perplexity, divergence, reference = measured.perplexity, measured.divergence, measured.reference
    value = None if perplexity is None else perplexity.value
    base = None if reference is None else reference.baseline_perplexity
    increase = None if value is None or base is None else value / base - 1
    limits = [
        ("perplexity", value, wanted.max_perplexity),
        ("increase of perplexity", increase, wanted.max_perplexity_increase),
        ("mean divergence", None if divergence is None else divergence.kl_mean, wanted.max_kl),
    ]
    for name, found, limit in limits:
        if limit is not None and (found is None or found > limit):
            yield f"{name} is {'not known' if found is None else f'{found:.4g}'}, the limit is {limit:g}"
    if wanted.min_top1_agreement is not None:
        agreement = None if divergence is None else divergence.top1_agreement
        if agreement is None or agreement < wanted.min_top1_agreement:
            found_words = "not known" if agreement is None else f"{agreement:.2%}"
            yield f"top-1 agreement is {found_words}, the limit is {wanted.min_top1_agreement:.2%}"


def _warnings(measured: Measured) -> Iterator[str]:
    load, probe = measured.load, measured.probe
    yield from measured.notes
    if load.unexpected_keys:
        yield f"{_count(load.unexpected_keys)} not taken by the model: {_some(load.unexpected_keys)}"
    if load.dequantized != "no":
        yield f"the weights are dequantized {load.dequantized}: they use a dense model's memory"
    promised, found = load.expected_quantized_parameters, load.quantized_parameters
    if load.error is None and found < 0.9 * promised and load.dequantized != "at load":
        yield f"{found:,} parameters are quantized, the config promises {promised:,}: secretly dense"
    if probe is not None and probe.error is not None:
        yield f"the layers were not probed: {probe.error}"
    if probe is not None and probe.skipped:
        name, reason = next(iter(probe.skipped.items()))
        yield f"{len(probe.skipped)} layers were not probed; first {name}: {reason}"
    if measured.sanity is not None:
        for item in measured.sanity.continuations:
            if item.problem:
                yield f"the continuation of {item.prompt!r}: {item.problem}"
    for finding in measured.findings:
        if finding.severity == "warning":
            yield f"{finding.where}: {finding.message} ({finding.rule})"


def _count(found: Sequence[str]) -> str:
    more = found[-1].startswith("... and") if found else False
    number = len(found) - 1 + int(found[-1].split()[2]) if more else len(found)
    return f"{number} tensor{'s are' if number != 1 else ' is'}"


def _some(found: Sequence[str]) -> str:
    return ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
