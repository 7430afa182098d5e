"""A result in words, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from quantlab.evaluation.result import Result


def describe(result: Result) -> str:
    """Return the result as text, the verdict first."""
    return "\n".join(_lines(result))


def _lines(result: Result) -> Iterator[str]:
    verdict = result.verdict
    state = "damaged" if verdict.damaged else "not damaged"
    yield f"{'OK' if verdict.ok else 'NOT OK'}: {result.checkpoint.name}: {state}, quality {verdict.quality}"
    yield from (f"  failure: {words}" for words in verdict.failures)
    yield from (f"  warning: {words}" for words in verdict.warnings)
    yield ""
    yield from _load(result)
    yield from _quality(result)
    yield from _speed(result)


def _load(result: Result) -> Iterator[str]:
    environment, load = result.environment, result.load
    yield f"checkpoint  {result.checkpoint.format}, {result.checkpoint.bytes / 1e6:,.1f} MB"
    yield f"device      {environment.gpu} {environment.product or ''}, {result.engine} {_version(result)}"
    if load.error:
        return
    yield f"load        {load.seconds or 0:.2f} s; {_counts(load.modules)}"
    if load.expected_quantized_parameters or load.quantized_parameters:
        yield f"quantized   {load.quantized_parameters:,} of {load.expected_quantized_parameters:,} promised parameters"
    if load.kernels:
        yield f"kernels     {_counts(load.kernels)}"
    probe = result.probe
    if probe is not None and probe.layers:
        worst = probe.worst
        told = (
            ""
            if worst is None or worst.relative_error is None
            else (f"; worst {worst.relative_error:.2e} of allowed {worst.allowed:.2e} ({worst.layer})")
        )
        yield f"probe       {probe.layers} of {probe.of} layers, {len(probe.bad)} bad{told}"
    if probe is not None and probe.against_baseline is not None and probe.against_baseline.worst is not None:
        worst = probe.against_baseline.worst
        error = "not finite" if worst.relative_error is None else f"{worst.relative_error:.2e}"
        yield f"weights     {probe.against_baseline.layers} layers against the original; worst {error} ({worst.layer})"


def _quality(result: Result) -> Iterator[str]:
    if result.perplexity is not None:
        found = result.perplexity
        value = "not finite" if found.value is None else f"{found.value:.4f}"
        error = "" if found.standard_error is None else f" +- {found.standard_error:.4f}"
        yield f"perplexity  {value}{error} on {found.tokens:,} tokens, window {found.window}, {found.text}"
    if result.reference is not None and result.reference.baseline_perplexity is not None:
        rounded = result.reference.rounded_perplexity
        told = "" if rounded is None else f"; rounded to nearest in this scheme {rounded:.4f}"
        yield f"original    {result.reference.baseline_perplexity:.4f}{told}"
    if result.divergence is not None and result.divergence.kl_mean is not None:
        found_kl = result.divergence
        floor = "" if found_kl.noise_floor is None else f", noise floor {found_kl.noise_floor:.2g}"
        yield (
            f"divergence  mean {found_kl.kl_mean:.4f}, median {found_kl.kl_median:.4f}, "
            f"p99 {found_kl.kl_p99:.4f} nats; top-1 agreement {found_kl.top1_agreement:.1%}{floor}"
        )
    if result.sanity is not None:
        for item in result.sanity.continuations[:1]:
            yield f"says        {item.prompt}|{item.text!r}"


def _speed(result: Result) -> Iterator[str]:
    for cell in result.speed:
        shape = f"batch {cell.batch}, prompt {cell.prompt_tokens}"
        if cell.error:
            yield f"speed       {shape}: {cell.error}"
            continue
        share = "" if cell.bandwidth_fraction is None else f", {cell.bandwidth_fraction:.0%} of the bandwidth"
        yield (
            f"speed       {shape}: prefill {cell.prefill_ms:.1f} ms, decode {cell.decode_ms_per_token:.2f} ms a token, "
            f"{cell.decode_tokens_per_second:.1f} tokens/s{share}"
        )
    for device, item in result.memory.items():
        parts = {"weights": item.weights_bytes, "after a forward": item.bytes_after_forward, "peak": item.peak_bytes}
        told = ", ".join(f"{name} {size / 1e6:,.0f} MB" for name, size in parts.items() if size is not None)
        yield f"memory      {device}: {told}"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda item: -item[1])) or "-"


def _version(result: Result) -> str:
    return result.environment.versions.get(result.engine, "")
