"""What an evaluation found, as frozen values; ``Result.to_dict()`` is the JSON of ``quantlab evaluate``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

Quality = Literal["good", "degraded", "ruined", "unknown"]


@dataclass(frozen=True, slots=True)
class CheckpointIdentity:
    """Which checkpoint was measured.

    Attributes:
        path: folder as it was asked for.
        name: last part of the path.
        format: format id.
        scheme: as ``quantlab inspect`` prints it.
        bytes: bytes of the weight files.
        sha256: hash of config, index and each weight file, by file name.
    """

    path: str
    name: str
    format: str
    scheme: dict[str, Any]
    bytes: int
    sha256: dict[str, str]


@dataclass(frozen=True, slots=True)
class Environment:
    """Everything that a figure depends on beside the checkpoint."""

    gpu: str | None = None
    product: str | None = None
    gpus: int = 0
    driver: str | None = None
    cuda: str | None = None
    rocm: str | None = None
    torch: str | None = None
    python: str | None = None
    platform: str | None = None
    threads: int | None = None
    versions: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    attention: str | None = None
    use_kernels: bool = False
    compile: bool = False
    dtype: str | None = None
    device: str | None = None
    random_weights: bool = False
    other_processes_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """The load proof.

    Attributes:
        ok: the engine opened the checkpoint and every weight came from the file.
        seconds: of the engine's load call.
        error: class of the error, where there was one.
        message: its words.
        modules: classes of the modules that carry weight matrices, and how many.
        kernels: what multiplies them, and how many layers each.
        quantized_parameters: parameters that are quantized in the loaded model.
        expected_quantized_parameters: parameters that the config promises to be quantized.
        missing_keys: weights that the file did not hold, so they are random now.
        unexpected_keys: tensors of the file that the model did not take.
        mismatched_keys: tensors of another shape than the model's.
        differing_tensors: dense tensors that differ in the model from what the file holds.
        compared_tensors: dense tensors that were compared.
        file_bytes: bytes of tensors in the file.
        tokenizer_problem: why the tokenizer is another model's.
        dequantized: the weights grew on the device to much more than the file's bytes: not at all, at the load,
            or at the first forward pass.
    """

    ok: bool
    seconds: float | None = None
    error: str | None = None
    message: str | None = None
    modules: dict[str, int] = field(default_factory=dict)
    kernels: dict[str, int] = field(default_factory=dict)
    quantized_parameters: int = 0
    expected_quantized_parameters: int = 0
    missing_keys: tuple[str, ...] = ()
    unexpected_keys: tuple[str, ...] = ()
    mismatched_keys: tuple[str, ...] = ()
    differing_tensors: tuple[str, ...] = ()
    compared_tensors: int = 0
    file_bytes: int = 0
    tokenizer_problem: str | None = None
    dequantized: Literal["no", "at load", "at first forward"] = "no"


@dataclass(frozen=True, slots=True)
class LayerError:
    """One layer's error against what the scheme's arithmetic allows, both relative."""

    layer: str
    relative_error: float | None
    allowed: float
    kernel: str | None = None
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class WeightComparison:
    """The decoded file against the original's weights."""

    layers: int
    worst: LayerError | None
    ok: bool
    bad: tuple[LayerError, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Probe:
    """Each loaded layer against quantlab's own decode of the file.

    Attributes:
        layers: layers probed.
        of: quantized layers in the file.
        worst: the layer with the highest error in units of what it may be.
        bad: layers over their bound, in the file's order.
        by_layer: every layer.
        skipped: layers that could not be probed, with the reason.
        error: why there was no probe at all.
        against_baseline: the second comparison.
    """

    layers: int
    of: int
    ok: bool
    worst: LayerError | None = None
    bad: tuple[LayerError, ...] = ()
    by_layer: tuple[LayerError, ...] = ()
    skipped: dict[str, str] = field(default_factory=dict)
    error: str | None = None
    against_baseline: WeightComparison | None = None


@dataclass(frozen=True, slots=True)
class Perplexity:
    """Token-level perplexity over windows; ``value`` is None where a logit was not finite."""

    value: float | None
    standard_error: float | None
    tokens: int
    windows: int
    window: int
    stride: int
    batch: int
    text: str
    text_sha256: str
    tokenizer_sha256: str | None
    tokens_sha256: str
    beginning: str
    non_finite_positions: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Divergence:
    """Kullback-Leibler divergence of the candidate from the original over the same positions, in nats.

    Attributes:
        kl_error_bound: how much higher the true mean can be: the cache keeps the original's top tokens and the
            mass of the rest only.
        noise_floor: mean divergence of the original from itself in another batch shape.
    """

    kl_mean: float | None
    kl_median: float | None
    kl_p90: float | None
    kl_p99: float | None
    kl_standard_error: float | None
    top1_agreement: float | None
    noise_floor: float | None
    kl_error_bound: float | None
    positions: int


@dataclass(frozen=True, slots=True)
class QualityReference:
    """The original, and the original rounded to nearest in the candidate's scheme, on the same text."""

    baseline_perplexity: float | None
    rounded_perplexity: float | None
    rounded_kl_mean: float | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Continuation:
    """What the model made of one prompt (greedy)."""

    prompt: str
    text: str
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Sanity:
    """Short prompts and generations.

    Attributes:
        short_prompts: lengths in tokens that were tried.
        non_finite_lengths: lengths at which a logit was not finite.
        batch_error: greatest relative difference of the logits of a prompt alone and in a batch.
    """

    short_prompts: tuple[int, ...] = ()
    non_finite_lengths: tuple[int, ...] = ()
    batch_error: float | None = None
    batch_allowed: float | None = None
    continuations: tuple[Continuation, ...] = ()


@dataclass(frozen=True, slots=True)
class SpeedCell:
    """One cell of the speed grid: medians, with the 90th percentiles and all samples."""

    batch: int
    prompt_tokens: int
    new_tokens: int
    first_call_ms: float
    prefill_ms: float
    decode_ms_per_token: float
    decode_tokens_per_second: float
    bandwidth_fraction: float | None = None
    prefill_ms_p90: float | None = None
    decode_ms_per_token_p90: float | None = None
    samples: dict[str, tuple[float, ...]] = field(default_factory=dict)
    clock: str = "host"
    error: str | None = None


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes on one device."""

    weights_bytes: int | None = None
    bytes_after_forward: int | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Damaged or not comes from structure; quality from measurement; ``ok`` from both and the user's thresholds."""

    ok: bool
    damaged: bool
    quality: Quality
    failures: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """One evaluation."""

    checkpoint: CheckpointIdentity
    engine: str
    environment: Environment
    load: Load
    verdict: Verdict
    probe: Probe | None = None
    perplexity: Perplexity | None = None
    divergence: Divergence | None = None
    reference: QualityReference | None = None
    sanity: Sanity | None = None
    speed: tuple[SpeedCell, ...] = ()
    memory: dict[str, DeviceMemory] = field(default_factory=dict)
    worker: dict[str, Any] = field(default_factory=dict)
    quantlab: str = ""
    date: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-able values."""
        return dict(plain(self))


def plain(value: Any) -> Any:
    """Return dataclasses as objects and tuples as lists, as JSON has them."""
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def typed(kind: Any, content: Any) -> Any:
    """Build a frozen value of type ``kind`` from the JSON that ``plain`` made of one."""
    if content is None:
        return None
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return typed(next(part for part in parts if part is not type(None)), content)
    if is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind)
        known = {item.name for item in fields(kind)}
        return kind(**{key: typed(hints[key], item) for key, item in content.items() if key in known})
    if origin is tuple:
        return tuple(typed(parts[0], item) for item in content)
    if origin is dict:
        return {key: typed(parts[1], item) for key, item in content.items()}
    return content
