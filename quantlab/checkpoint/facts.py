"""What a checkpoint says of itself, as plain frozen values that every other part understands.

One reading for all: ``inspect`` prints these facts, the matrix judges them, the converter plans from them and
the evaluator checks the loaded model against them. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal

Granularity = Literal["tensor", "channel", "group", "block"]
Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True, slots=True)
class WeightScheme:
    """Which numbers a weight is made of.

    Attributes:
        bits: bits of one code (fractional for exl3 and the like).
        type: ``int``, ``float`` or a codebook's name such as ``nf4``.
        granularity: what shares one scale.
        group_size: elements of a group; ``(rows, columns)`` of a block; -1 for GPTQ's whole-row groups; None
            for tensor and channel.
        symmetric: no zero points; None where the files do not settle it.
        dtype: the exact number type where known, such as ``float8_e4m3fn``, ``float4_e2m1``.
        scale_dtype: dtype of the (block) scales where known.
    """

    bits: float | int | None = None
    type: str | None = None
    granularity: str | None = None
    group_size: int | tuple[int, int] | None = None
    symmetric: bool | None = None
    dtype: str | None = None
    scale_dtype: str | None = None


@dataclass(frozen=True, slots=True)
class SchemeGroup:
    """One weight scheme of a checkpoint and the modules it covers.

    Attributes:
        weights: the scheme.
        targets: module names, class names or ``re:`` patterns as the config writes them.
        activations: the input activations' scheme of these modules, or None where they stay in 16 bit.
    """

    weights: WeightScheme
    targets: tuple[str, ...] = ()
    activations: ActivationScheme | None = None


@dataclass(frozen=True, slots=True)
class ActivationScheme:
    """Which numbers the inputs of quantized layers are rounded to at run time."""

    bits: int | None = None
    type: str | None = None
    granularity: str | None = None
    group_size: int | None = None
    dynamic: bool | None = None
    dtype: str | None = None


@dataclass(frozen=True, slots=True)
class KvCacheScheme:
    """Which numbers the KV cache is kept in, and whether its scales come with the checkpoint."""

    bits: int | None = None
    type: str | None = None
    dtype: str | None = None
    static_scales: bool | None = None


@dataclass(frozen=True, slots=True)
class Scheme:
    """All schemes of a checkpoint.

    Attributes:
        mixed: more than one weight scheme occurs among quantized modules.
        weights: the scheme of most parameters, or None for a dense checkpoint.
        groups: every scheme that occurs.
    """

    mixed: bool = False
    weights: WeightScheme | None = None
    groups: tuple[SchemeGroup, ...] = ()
    activations: ActivationScheme | None = None
    kv_cache: KvCacheScheme | None = None


@dataclass(frozen=True, slots=True)
class Architecture:
    """The shape of the model, from ``config.json`` (``text_config`` is looked into)."""

    model_type: str | None = None
    architectures: tuple[str, ...] = ()
    hidden_size: int | None = None
    intermediate_size: int | None = None
    moe_intermediate_size: int | None = None
    num_hidden_layers: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    vocab_size: int | None = None
    num_experts: int | None = None
    experts_per_token: int | None = None
    tied_embeddings: bool | None = None
    sliding_window: int | None = None
    max_position_embeddings: int | None = None
    kv_lora_rank: int | None = None
    qk_rope_head_dim: int | None = None
    torch_dtype: str | None = None
    multimodal: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong, or worth knowing, in a checkpoint or on a machine."""

    rule: str
    severity: Severity
    where: str
    message: str
    fix: str | None = None


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a safetensors or GGUF header: nothing of its data is read.

    Attributes:
        name: full tensor name.
        dtype: safetensors' word for it (``BF16``, ``F8_E4M3``, ``I32``, ``U8``) or GGUF's type (``Q4_1``).
        shape: dimensions, outermost first.
        file: file inside the checkpoint folder.
        start: offset of the first byte in the file.
        end: offset behind the last byte in the file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """Everything that is known of a checkpoint without reading its weights.

    Attributes:
        path: folder, file or hub id as it was asked for.
        format: format id (``gptq``, ``compressed-tensors/pack-quantized``, ``dense``, ``unknown``, ...).
        scheme: the numbers.
        architecture: the model's shape.
        quantization_config: the raw config that the format was recognised from, merged from all files.
        ignore: modules that stay dense, as the config writes them.
        tensors: headers by tensor name; empty where the folder has config files only.
        parameters: logical parameter count (packed codes unpacked), by kind; ``total`` always where known.
        bytes: bytes on disk, by kind; ``total`` always where known.
        experts: ``{"count", "per_token", "fused", "quantized"}`` or None for a dense model.
        findings: what is wrong.
        config: the whole ``config.json`` (GGUF: its metadata); not printed.
    """

    path: str
    format: str
    scheme: Scheme
    architecture: Architecture
    quantization_config: dict[str, Any] | None = None
    ignore: tuple[str, ...] = ()
    tensors: dict[str, TensorInfo] = field(default_factory=dict)
    parameters: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    experts: dict[str, Any] | None = None
    tied_embeddings: bool | None = None
    findings: tuple[Finding, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of ``quantlab inspect``: tensor headers and config left out, groups flat, tuples as lists."""
        content = {
            field.name: _plain(getattr(self, field.name))
            for field in fields(self)
            if field.name not in {"tensors", "config"}
        }
        content["scheme"]["groups"] = [{**group.pop("weights"), **group} for group in content["scheme"]["groups"]]
        return content


def _plain(value: Any) -> Any:
    """Return dataclasses as objects and tuples as lists, as JSON has them."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
