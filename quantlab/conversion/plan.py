"""From a checkpoint's headers to the jobs of a conversion; no weight is read."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from quantlab.checkpoint.facts import CheckpointFacts, TensorInfo
from quantlab.conversion.edges import Edge, Exactness, find_edge
from quantlab.conversion.jobs import Action, Job, LayerPlan, Plan, ShardPlan
from quantlab.conversion.presets import Preset, dense_patterns, fused_names, table_patterns
from quantlab.conversion.target import DENSE, Target, check_readable, decide
from quantlab.errors import CheckpointError, ConversionRefused
from quantlab.formats import FORMATS
from quantlab.formats.interface import Layer
from quantlab.tensors.quantized import WeightFormat

DTYPE_WORDS = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
GROUP_SIZES = (128, 64, 32, 16)
"""What is offered where a group size does not divide the columns."""

BULK = 0.1
"""Share of the weights in fused experts from which leaving them dense is worth a note."""


def make_plan(
    facts: CheckpointFacts,
    output: Path,
    preset: Preset | None,
    *,
    to_format: str | None = None,
    requantize: bool = False,
) -> Plan:
    """Plan a conversion from headers alone.

    Args:
        facts: the source, headers of all tensors included.
        output: folder to write.
        preset: what ``--to`` names.
        to_format: what ``--to-format`` names.
        requantize: whether numbers may change.

    Raises:
        ConversionRefused: the target cannot hold the source, or the numbers would change.
        CheckpointError: the source lacks weights, or its headers contradict each other.
    """
    if not facts.tensors:
        raise CheckpointError(f"{facts.path} has no weights in safetensors files", hint="fetch them first")
    check_readable(facts)
    layers = [] if facts.format == DENSE else FORMATS[facts.format].layers(facts)
    target = decide(facts, layers, preset, to_format, requantize=requantize)
    edge = _edge(facts, target)
    if target.case == "quantizer":
        return Plan(facts.path, output, target.case, facts, target.preset, target.format, edge, ())
    planner = _Planner(facts, target, edge, {layer.name: layer for layer in layers})
    return Plan(
        facts.path,
        output,
        target.case,
        facts,
        target.preset,
        target.format,
        edge,
        planner.shards(),
        kept_dense=planner.kept_dense(),
        requantize=requantize,
        notes=planner.notes(),
    )


def _edge(facts: CheckpointFacts, target: Target) -> Edge:
    promised: dict[str, Exactness] = {
        "cast": "rounded",
        "dequantize": "rounded",
        "quantize": "requantize",
        "requantize": "requantize",
        "quantizer": "requantize",
    }
    if target.case in promised:
        return Edge(facts.format, target.format, promised[target.case])
    return find_edge(facts.format, target.format)


@dataclass(frozen=True)
class _Planner:
    """The steps of one plan."""

    facts: CheckpointFacts
    target: Target
    edge: Edge
    layers: dict[str, Layer]

    def shards(self) -> tuple[ShardPlan, ...]:
        """Return one output file for each source file that has jobs of its own."""
        by_file: dict[str, list[Job]] = {}
        for file, job in self._jobs():
            by_file.setdefault(file, []).append(job)
        count = len(by_file)
        names = (
            ["model.safetensors"]
            if count == 1
            else [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]
        )
        return tuple(ShardPlan(name, tuple(by_file[file])) for name, file in zip(names, sorted(by_file), strict=True))

    def kept_dense(self) -> tuple[str, ...]:
        """Return the linear layers of the output that stay dense, the output head always among them."""
        if self.target.format == DENSE:
            return ()
        quantized = set(self.layers) | {layer.name for layer in self._dense_layers()}
        names = [name for name in map(_module, self._loose()) if name is not None and name not in quantized]
        tables = table_patterns()
        kept = [name for name in names if not _matches(name, tables)]
        return tuple(kept if "lm_head" in kept or "lm_head" in quantized else ["lm_head", *kept])

    def notes(self) -> tuple[str, ...]:
        """Return what stays dense although a user may expect otherwise."""
        if self.target.case != "quantize":
            return ()
        fused = [info for info in self.facts.tensors.values() if len(info.shape) == 3 and ".experts." in info.name]
        size = sum(info.end - info.start for info in fused)
        total = sum(info.end - info.start for info in self.facts.tensors.values())
        if size < BULK * total:
            return ()
        return (f"{100 * size / total:.0f} % of the weights are fused experts (3-D tensors) and stay dense",)

    def _jobs(self) -> Iterator[tuple[str, Job]]:
        """Yield ``(source file, job)`` in the order in which the source holds its tensors."""
        owner = {name: layer for layer in self.layers.values() for name in layer.tensors.values()}
        groups = self._groups()
        done: set[str] = set()
        for info in sorted(self.facts.tensors.values(), key=lambda info: (info.file, info.start, info.name)):
            layer = owner.get(info.name)
            name = info.name if layer is None else layer.name
            if name in done:
                continue
            members = groups.get(name)
            if members is not None:
                done.update(member.weight_name for member in members)
                yield info.file, self._quantize_job(members)
            elif layer is not None:
                done.add(name)
                yield info.file, self._layer_job(layer)
            else:
                yield info.file, self._loose_job(info)

    def _loose(self) -> Iterator[TensorInfo]:
        """Yield the tensors that no quantized layer owns."""
        owned = {name for layer in self.layers.values() for name in layer.tensors.values()}
        return (info for name, info in self.facts.tensors.items() if name not in owned)

    def _groups(self) -> dict[str, list[LayerPlan]]:
        """Return the dense layers to quantize by weight name; layers that share a scale share a list."""
        shared = _shares_scale(self.target.preset.weights)
        groups: dict[tuple[str, int], list[LayerPlan]] = {}
        for layer in self._dense_layers():
            parent, _, last = layer.name.rpartition(".")
            number = next((place for place, names in enumerate(fused_names()) if last in names), -1)
            key = (parent, number) if shared and number >= 0 else (layer.name, -1)
            groups.setdefault(key, []).append(layer)
        return {layer.weight_name: members for members in groups.values() for layer in members}

    def _dense_layers(self) -> list[LayerPlan]:
        """Return the dense layers that will be quantized, after checking that the scheme fits them all."""
        scheme = self.target.preset.weights
        if self.target.case != "quantize" or scheme is None:
            return []
        skip = (*dense_patterns(), *table_patterns(), *map(re.compile, self.target.preset.keep_dense))
        found = []
        for info in self._loose():
            name = _module(info)
            if name is not None and info.dtype in DTYPE_WORDS.values() and not _matches(name, skip):
                found.append(LayerPlan(name, info.name, info.shape, None, scheme))
        if not found:
            raise ConversionRefused(f"{self.facts.path} has no layer that {self.target.preset.name} would quantize")
        check_groups([(layer.name, layer.shape[-1]) for layer in found], scheme)
        return found

    def _quantize_job(self, members: Sequence[LayerPlan]) -> Job:
        read = sum(_size(self.facts.tensors[layer.weight_name]) for layer in members)
        written = sum(encoded_bytes(layer.shape, layer.target, self._dense_dtype()) for layer in members)
        largest = max(math.prod(layer.shape) for layer in members)
        names = tuple(layer.weight_name for layer in members)
        return Job("quantize", names, tuple(members), "requantize", read, written, read + written + 4 * largest)

    def _layer_job(self, layer: Layer) -> Job:
        action: Action = "repack"
        scheme: WeightFormat | None = layer.format
        if self.target.case == "dequantize":
            action, scheme = "dequantize", None
        elif self.target.case == "requantize":
            scheme = self.target.preset.weights
            assert scheme is not None
            action = "repack" if layer.format == scheme else "requantize"
            check_groups([(layer.name, layer.shape[-1])], scheme)
        tensors = tuple(dict.fromkeys(layer.tensors.values()))
        read = sum(_size(self.facts.tensors[name]) for name in tensors)
        written = encoded_bytes(layer.shape, scheme, self._dense_dtype())
        between = 8 * math.prod(layer.shape) if action == "requantize" else 4 * math.prod(layer.shape)
        plan = LayerPlan(layer.name, layer.weight_name, layer.shape, layer, scheme)
        exactness = find_edge(self.facts.format, self.target.format).exactness if action == "repack" else None
        return Job(action, tensors, (plan,), exactness or self.edge.exactness, read, written, read + written + between)

    def _loose_job(self, info: TensorInfo) -> Job:
        size, dtype = _size(info), self.target.preset.dtype
        same = dtype is not None and info.dtype == DTYPE_WORDS[dtype]
        if dtype is None or same or info.dtype not in DTYPE_WORDS.values() or not _is_weight(info):
            return Job("copy", (info.name,), (), "identical", size, size, 0)
        written = math.prod(info.shape) * DTYPE_BYTES[dtype]
        layer = LayerPlan(_module(info) or info.name, info.name, info.shape, None, None)
        return Job("cast", (info.name,), (layer,), "rounded", size, written, size + written)

    def _dense_dtype(self) -> str:
        named = self.target.preset.dtype or self.facts.architecture.torch_dtype or "bfloat16"
        return named.removeprefix("torch.") if named.removeprefix("torch.") in DTYPE_BYTES else "bfloat16"


def check_groups(columns: Sequence[tuple[str, int]], scheme: WeightFormat) -> None:
    """Refuse a group size that does not divide every layer's columns.

    Raises:
        ConversionRefused: names the first such layer and offers sizes that divide all.
    """
    size = scheme.group_size
    if scheme.granularity != "group" or size is None or size <= 0:
        return
    bad = [(name, width) for name, width in columns if width % size]
    if not bad:
        return
    fitting = [str(offer) for offer in GROUP_SIZES if all(width % offer == 0 for _, width in columns)]
    name, width = bad[0]
    others = f" (and {len(bad) - 1} more layers)" if len(bad) > 1 else ""
    if scheme.scale_type is not None:
        hint = "this scheme has no other group size; --set keep_dense=REGEX leaves layers dense"
    elif fitting:
        hint = f"--set group_size={fitting[0]}" + (f" or {fitting[1]}" if len(fitting) > 1 else "")
    else:
        hint = "take a preset with channel scales, such as fp8 or w8a16"
    raise ConversionRefused(f"group size {size} does not divide the {width} columns of {name}{others}", hint=hint)


def encoded_bytes(shape: tuple[int, ...], scheme: WeightFormat | None, dtype: str) -> int:
    """Return about how many bytes a layer has on disk."""
    count = math.prod(shape)
    if scheme is None:
        return count * DTYPE_BYTES[dtype]
    *lead, rows, columns = shape
    match scheme.granularity:
        case "tensor":
            scales = 1
        case "channel":
            scales = rows
        case "group":
            size = scheme.group_size or columns
            scales = rows * -(-columns // (size if size > 0 else columns))
        case "block":
            high, wide = scheme.block or (128, 128)
            scales = -(-rows // high) * -(-columns // wide)
    width = {"e8m0": 1, "float8_e4m3fn": 1, "float32": 4}.get(scheme.scale_type or "", 2)
    zeros = 0 if scheme.symmetric else -(-scales * scheme.number.bits // 8)
    return -(-count * scheme.number.bits // 8) + math.prod(lead) * (scales * width + zeros) + 32


def _shares_scale(scheme: WeightFormat | None) -> bool:
    """Say whether a scheme has a global scale, which fused layers must share (NVFP4)."""
    return scheme is not None and scheme.scale_type == "float8_e4m3fn"


def _module(info: TensorInfo) -> str | None:
    """Return the module of a matrix that may be a linear layer's weight."""
    return info.name.removesuffix(".weight") if info.name.endswith(".weight") and len(info.shape) == 2 else None


def _is_weight(info: TensorInfo) -> bool:
    """Leave scales and buffers in their own dtype: only weights and biases follow the model's."""
    return info.name.endswith((".weight", ".bias")) or len(info.shape) == 3


def _size(info: TensorInfo) -> int:
    return info.end - info.start


def _matches(name: str, patterns: Sequence[re.Pattern[str]]) -> bool:
    return any(pattern.search(name) for pattern in patterns)
