"""The facts of a GGUF checkpoint: its metadata keys stand where a config does elsewhere."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quantlab.checkpoint.facts import (
    Architecture,
    CheckpointFacts,
    Scheme,
    SchemeGroup,
    TensorInfo,
    WeightScheme,
)
from quantlab.checkpoint.folder import Listing
from quantlab.checkpoint.gguf_header import ArrayLength, GgufHeader, read_gguf_header
from quantlab.checkpoint.layers import Layout
from quantlab.checkpoint.open import Opened
from quantlab.checkpoint.recognition import Recognition
from quantlab.checkpoint.schemes.numbers import combine, exact_dtype
from quantlab.checkpoint.sizes import kind_of
from quantlab.checkpoint.values import integer, text
from quantlab.errors import CheckpointError
from quantlab.matrix.data import read_section

_PART = re.compile(r"^(.*)-(\d{5})-of-(\d{5})\.gguf$")


def open_gguf(paths: list[Path], target: str) -> Opened:
    """Return the facts of one GGUF file, or of the parts of a split one.

    Raises:
        CheckpointError: a file is malformed, a part is missing, or the folder holds several models.
    """
    parts = _parts(paths, target)
    headers = [read_gguf_header(path, path.name) for path in parts]
    tensors: dict[str, TensorInfo] = {}
    for header in headers:
        for name, tensor in header.tensors.items():
            if name in tensors:
                raise CheckpointError(f"{tensor.file}: tensor {name!r:.120} is also in {tensors[name].file}")
            tensors[name] = tensor
    scheme, layout = _scheme(tensors), Layout({}, {}, tensors)
    architecture = _architecture(headers[0], tensors)
    parameters, sizes = _measure(tensors)
    facts = CheckpointFacts(
        path=target,
        format="gguf",
        scheme=scheme,
        architecture=architecture,
        tensors=tensors,
        parameters=parameters,
        bytes=sizes,
        experts=_experts(architecture, tensors),
        tied_embeddings=architecture.tied_embeddings,
        config=_plain(headers[0].metadata),
    )
    listing = Listing({}, tuple(path.name for path in parts), {path.name: path.stat().st_size for path in parts})
    recognition = Recognition("gguf", scheme, architecture)
    return Opened(facts, listing, layout, {}, recognition, parts[0].parent)


def _parts(paths: list[Path], target: str) -> list[Path]:
    """Return the files of one model in order."""
    first = _PART.match(paths[0].name)
    if first is None:
        if len(paths) > 1:
            names = ", ".join(path.name for path in paths[:6])
            raise CheckpointError(f"{target} holds {len(paths)} GGUF files: {names}", hint="name one of them")
        return paths
    total = int(first[3])
    found = [paths[0].with_name(f"{first[1]}-{part + 1:05d}-of-{first[3]}.gguf") for part in range(min(total, 9999))]
    missing = [path.name for path in found if not path.is_file()]
    if missing:
        raise CheckpointError(f"{target}: part {missing[0]} of {total} is missing", hint="download all parts")
    return found


def _scheme(tensors: Mapping[str, TensorInfo]) -> Scheme:
    """One group a quantized type; the main one holds most weights (F16 and BF16 count as dense)."""
    types = {str(kind["name"]): kind for kind in read_section("formats")["gguf"]["types"].values()}
    weights: Counter[str] = Counter()
    kinds: dict[str, set[str]] = {}
    for tensor in tensors.values():
        if "bits" in types.get(tensor.dtype, {}):
            weights[tensor.dtype] += math.prod(tensor.shape)
            kinds.setdefault(tensor.dtype, set()).add(_pattern(tensor.name))
    groups = [SchemeGroup(_weight_scheme(types[name]), tuple(sorted(kinds[name]))) for name, _ in weights.most_common()]
    return combine(groups)


def _weight_scheme(kind: Mapping[str, Any]) -> WeightScheme:
    return WeightScheme(
        bits=kind["bits"],
        type=str(kind["type"]),
        granularity="group",
        group_size=int(kind["group"]),
        symmetric=bool(kind["symmetric"]),
        dtype=kind.get("dtype") or exact_dtype(kind["bits"], kind["type"]),
        scale_dtype=kind.get("scale_dtype"),
    )


def _pattern(name: str) -> str:
    return re.sub(r"\bblk\.\d+\.", "blk.*.", name).removesuffix(".weight")


def _architecture(header: GgufHeader, tensors: Mapping[str, TensorInfo]) -> Architecture:
    metadata = header.metadata
    family = text(metadata.get("general.architecture")) or ""

    def size(key: str) -> int | None:
        value = metadata.get(f"{family}.{key}")
        return integer(max(value, default=None)) if isinstance(value, list) else integer(value)

    vocabulary = metadata.get("tokenizer.ggml.tokens")
    length = vocabulary.length if isinstance(vocabulary, ArrayLength) else None
    embedding = tensors.get("token_embd.weight")
    return Architecture(
        model_type=family or None,
        hidden_size=size("embedding_length"),
        intermediate_size=size("feed_forward_length"),
        moe_intermediate_size=size("expert_feed_forward_length"),
        num_hidden_layers=size("block_count"),
        num_attention_heads=size("attention.head_count"),
        num_key_value_heads=size("attention.head_count_kv"),
        head_dim=size("attention.key_length"),
        vocab_size=size("vocab_size") or length or (embedding.shape[0] if embedding else None),
        num_experts=size("expert_count"),
        experts_per_token=size("expert_used_count"),
        tied_embeddings=None if embedding is None else "output.weight" not in tensors,
        sliding_window=size("attention.sliding_window"),
        max_position_embeddings=size("context_length"),
        kv_lora_rank=size("attention.kv_lora_rank"),
        multimodal=bool(metadata.get("clip.has_vision_encoder")),
    )


def _measure(tensors: Mapping[str, TensorInfo]) -> tuple[dict[str, int], dict[str, int]]:
    dense = {"F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64"}
    parameters: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for tensor in tensors.values():
        kind, length = kind_of(tensor.name), tensor.end - tensor.start
        parameters.update({kind: math.prod(tensor.shape), "total": math.prod(tensor.shape)})
        sizes.update({kind: length, "total": length, "dense" if tensor.dtype in dense else "codes": length})
    return dict(parameters), dict(sizes)


def _experts(architecture: Architecture, tensors: Mapping[str, TensorInfo]) -> dict[str, Any] | None:
    if not architecture.num_experts:
        return None
    fused = [tensor for name, tensor in tensors.items() if "_exps." in name]
    quantized = any(tensor.dtype not in {"F32", "F16", "BF16"} for tensor in fused)
    return {
        "count": architecture.num_experts,
        "per_token": architecture.experts_per_token,
        "fused": bool(fused),
        "quantized": quantized,
    }


def _plain(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in metadata.items() if not isinstance(value, ArrayLength)}
