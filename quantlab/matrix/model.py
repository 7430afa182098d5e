"""The typed model of a statement: one sourced claim about engine, format, gpus, versions and conditions.

Plain frozen dataclasses, so that a query imports no pydantic; ``quantlab.matrix.schema`` validates the same
classes and writes the JSON schema from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from quantlab.matrix.versions import Range

Outcome = Literal["works", "works-with-fallback", "fails", "silent-wrong-result", "unknown"]
Mode = Literal["native", "dequantized", "weight-only", "emulated"]
Confidence = Literal["verified", "declared", "claimed", "disputed", "unknown"]
Operation = Literal["load", "inference", "perplexity", "quantize", "convert", "save", "install", "train"]
Scalar = str | int | float | bool

OUTCOMES: tuple[str, ...] = get_args(Outcome)
MODES: tuple[str, ...] = get_args(Mode)
CONFIDENCES: tuple[str, ...] = get_args(Confidence)
OPERATIONS: tuple[str, ...] = get_args(Operation)
RUNNING: frozenset[str] = frozenset({"load", "inference", "perplexity"})
"""Operations that a statement speaks of unless it names others."""

GOOD: frozenset[str] = frozenset({"works", "works-with-fallback"})
BAD: frozenset[str] = frozenset({"fails", "silent-wrong-result"})

FACTS: dict[str, str] = {
    "method": "method id, as people say it",
    "format": "format id of the checkpoint on disk, up to the slash",
    "variant": "format id behind the slash, such as pack-quantized",
    "target_format": "format id that a conversion writes",
    "scheme": "class of numbers, from matrix/schemes.yaml",
    "bits": "bits of a weight",
    "type": "int, float or a codebook's name",
    "dtype": "exact number type of the weights",
    "granularity": "tensor, channel, group or block",
    "group_size": "elements that share a scale; -1 for whole rows",
    "block_rows": "rows of a two-dimensional block",
    "symmetric": "no zero points",
    "desc_act": "GPTQ act order with a group map",
    "activation_bits": "bits that inputs are rounded to; absent where they stay in 16 bit",
    "activation_type": "int or float",
    "activation_dynamic": "input scales computed at run time",
    "kv_cache": "int or float where the checkpoint asks for a quantized KV cache",
    "kv_scales": "the checkpoint brings KV-cache scales",
    "layout": "variant of the packing: gemm, gemv, marlin, gptq_v2, tile_packed_to_4d, ...",
    "saved_by": "library or exporter that wrote the checkpoint, where its files show it",
    "mixed": "more than one weight scheme",
    "partial": "only some modules are quantized and the config does not list them",
    "sparse": "weights are stored 2:4 sparse",
    "quantized_head": "the output head is quantized",
    "quantized_embeddings": "the input embeddings are quantized",
    "class_target": "config groups target a module class such as Linear",
    "wildcard_ignore": "ignore entries that are shell patterns, which loaders do not expand",
    "ignore_router": "the router is kept dense through an ignore entry only",
    "decompress": "asked to decompress at load (run_compressed false)",
    "compute_dtype": "dtype of activations that was asked for",
    "gguf_type": "quantization type of a GGUF file",
    "double_quant": "scales of scales (bitsandbytes)",
    "damage": "rule of inspect that says the files cannot be loaded rightly",
    "missing_scales": "scales that the loader needs are not in the checkpoint",
    "incomplete_ignore": "a layer is stored dense and not in the ignore list",
    "source_dense": "the checkpoint is dense, and a method for quantized ones was asked for",
    "projection_rows": "rows of a projection that divide badly",
    "projection_columns": "columns of a projection that divide badly",
    "scale_e8m0": "scales are powers of two",
    "vocabulary": "size of the vocabulary",
    "expert_fp4": "the experts are FP4 while the rest is FP8",
    "quant_method_missing": "quantization_config has no quant_method",
    "calibration_samples": "number of calibration samples",
    "instructions": "widest vector instructions of a CPU that the question names: avx2, avx512, amx",
    "attention": "attention implementation that was asked for",
    "feature": "something beside the weights: tunableop, codecarbon, use-kernels, continuous-batching",
    "moe": "mixture of experts",
    "fused_experts": "experts are kept as 3-D parameters",
    "tied_embeddings": "input embeddings and head share a tensor",
    "multimodal": "has a vision or audio tower",
    "hybrid": "mixes attention with convolution or state-space layers",
    "linear_attention": "has linear-attention layers",
    "mla": "multi-head latent attention",
    "family": "model family id, from matrix/families.yaml",
    "hidden_size": "width of the model",
    "intermediate_size": "width of the dense MLP",
    "moe_intermediate_size": "width of one expert",
    "tensor_parallel": "gpus that each layer is split over",
    "expert_parallel": "experts are spread over gpus",
    "transformers_backend": "vLLM runs the model through transformers' own class",
}
"""Every fact that a condition may name."""


@dataclass(frozen=True, slots=True)
class Test:
    """A condition on one fact; an absent fact meets only ``present: false`` and pure exclusions.

    Attributes:
        values: allowed values; None allows all.
        excluded: values that do not meet it.
        minimum: smallest allowed number.
        maximum: largest allowed number.
        multiple_of: the number must divide by this.
        present: whether the fact must be known at all.
    """

    values: frozenset[Scalar] | None = None
    excluded: frozenset[Scalar] = frozenset()
    minimum: float | None = None
    maximum: float | None = None
    multiple_of: int | None = None
    present: bool = True

    def holds(self, value: Scalar | None) -> bool:
        """Return whether the fact meets the condition."""
        if value is None:
            return not self.present or self._only_excludes
        if not self.present or value in self.excluded:
            return False
        if self.values is not None and value not in self.values:
            return False
        return self._number_fits(value)

    @property
    def _only_excludes(self) -> bool:
        bounds = (self.minimum, self.maximum, self.multiple_of)
        return bool(self.excluded) and self.values is None and bounds == (None, None, None)

    def _number_fits(self, value: Scalar) -> bool:
        if self.minimum is None and self.maximum is None and self.multiple_of is None:
            return True
        if not isinstance(value, int | float):
            return False
        if self.minimum is not None and value < self.minimum:
            return False
        if self.maximum is not None and value > self.maximum:
            return False
        return self.multiple_of is None or value % self.multiple_of == 0

    def overlaps(self, other: Test) -> bool:
        """Return whether some value meets both (numbers between two bounds are assumed to exist)."""
        if self.present != other.present:
            return False
        for one, two in ((self, other), (other, self)):
            if one.values is not None:
                return any(two.holds(value) for value in one.values)
        low = max((bound for bound in (self.minimum, other.minimum) if bound is not None), default=None)
        high = min((bound for bound in (self.maximum, other.maximum) if bound is not None), default=None)
        return low is None or high is None or low <= high

    def words(self) -> str:
        """Return the condition in a few words."""
        if not self.present:
            return "not stated"
        parts = []
        if self.values is not None:
            parts.append(" or ".join(sorted(map(str, self.values))))
        if self.excluded:
            parts.append(f"not {' or '.join(sorted(map(str, self.excluded)))}")
        if self.minimum is not None:
            parts.append(f"at least {self.minimum:g}")
        if self.maximum is not None:
            parts.append(f"at most {self.maximum:g}")
        if self.multiple_of is not None:
            parts.append(f"a multiple of {self.multiple_of}")
        return ", ".join(parts) or "any"


@dataclass(frozen=True, slots=True)
class Division:
    """A dimension that has to divide: ``dimension / after`` must be a multiple of ``by`` (facts or a number)."""

    dimension: str
    by: str | int
    after: str | None = None


@dataclass(frozen=True, slots=True)
class When:
    """What a statement holds for; every part must hold.

    Attributes:
        gpus: architecture ids (groups already expanded); None for every device.
        versions: package to range; the engine's own package included.
        operations: what is being done.
        facts: conditions on the checkpoint and the model.
        undivided: a dimension that does *not* divide, so that the statement applies.
    """

    gpus: frozenset[str] | None = None
    versions: Mapping[str, Range] = field(default_factory=dict)
    operations: frozenset[str] = RUNNING
    named_operations: bool = False
    facts: Mapping[str, Test] = field(default_factory=dict)
    undivided: Division | None = None

    @property
    def specificity(self) -> int:
        """Number of conditions: the statement with more of them wins."""
        narrow = (self.gpus is not None) + self.named_operations + (self.undivided is not None)
        return narrow + len(self.versions) + len(self.facts)


@dataclass(frozen=True, slots=True)
class Statement:
    """One sourced claim.

    Attributes:
        id: unique, kebab-case; the way to cite it.
        engines: engine ids, or ``any``.
        when: what it holds for.
        outcome: what happens.
        mode: how the numbers are computed with; None where nothing runs or it does not apply.
        kernel: kernel or code path that carries it.
        reason: why, in one sentence that names the rule.
        fix: a way out, in words; ways out that the matrix can check are found by the query itself.
        limits: facts that must meet a test for the outcome to hold; a violated one makes it fail.
        divides: dimensions that must divide for the outcome to hold.
        requires: packages and ranges that must be installed.
        environment: environment variables and flags that the outcome depends on.
        confidence: ``declared`` (source code, issues settled by maintainers) or ``claimed`` (documents).
        sources: ids of matrix/sources.yaml.
        precedence: decides between statements of equal specificity, higher wins.
        file: data file, for error messages.
    """

    id: str
    engines: tuple[str, ...]
    when: When
    outcome: Outcome
    reason: str
    sources: tuple[str, ...]
    mode: Mode | None = None
    kernel: str | None = None
    fix: str | None = None
    limits: Mapping[str, Test] = field(default_factory=dict)
    divides: tuple[Division, ...] = ()
    requires: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    confidence: Confidence = "declared"
    precedence: int = 0
    file: str = ""

    @property
    def rank(self) -> tuple[int, int]:
        """What decides between statements that apply to one query."""
        return (self.precedence, self.when.specificity)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to one query.

    Attributes:
        outcome: what will happen.
        mode: native, dequantized, weight-only, emulated, or None.
        kernel: what carries it.
        reason: the rule and the values that clash.
        fix: a way out that was checked where it could be.
        confidence: how sure, and why: ``verified`` has evidence of our own.
        sources: source ids.
        statement: id of the statement that decided, or None.
        engine: engine id that it speaks of.
        gpu: architecture id that it speaks of.
    """

    outcome: Outcome
    reason: str
    mode: Mode | None = None
    kernel: str | None = None
    fix: str | None = None
    confidence: Confidence = "unknown"
    sources: tuple[str, ...] = ()
    statement: str | None = None
    engine: str | None = None
    gpu: str | None = None

    @property
    def ok(self) -> bool:
        """Whether it runs and computes the right thing."""
        return self.outcome in GOOD

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of ``quantlab check``."""
        return {
            "outcome": self.outcome,
            "mode": self.mode,
            "kernel": self.kernel,
            "reason": self.reason,
            "fix": self.fix,
            "confidence": self.confidence,
            "sources": list(self.sources),
            "statement": self.statement,
            "engine": self.engine,
            "gpu": self.gpu,
        }
