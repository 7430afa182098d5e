"""compressed-tensors pack-quantized: integers of 2 to 8 bits in 32-bit words.

vllm-project/compressed-tensors: src/compressed_tensors/compressors/pack_quantized/{base,helpers}.py::

    M.weight_packed      int32  [out, in * bits / 32], rounded up; codes q + 2^(bits-1) from the low end
    M.weight_scale       float  [out, in / group] or [out, 1]
    M.weight_shape       int64  [2]: out, in
    M.weight_zero_point  int32  [out * bits / 32, in / group], packed down the rows the same way (asymmetric only)
    M.weight_g_idx       int32  [in]: group of each column; written before 0.19 for act order, no longer read

Words of 3, 5, 6 and 7 bits wasted their odd bits up to 0.17 and are one dense stream since 0.19; the packed width
tells which (576 columns of 3 bits: 58 words, then 54). Written is the dense stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from quantlab.checkpoint.facts import CheckpointFacts, TensorInfo
from quantlab.errors import CheckpointError
from quantlab.formats import headers
from quantlab.formats.compressed_tensors_config import Group, config_json, group_of, read_groups
from quantlab.formats.interface import Layer, Obstacle
from quantlab.formats.obstacles import common_obstacle
from quantlab.tensors.packing import dense_layout, pack, packed_shape, relayout, unpack, wasting, words_along
from quantlab.tensors.quantized import PackedCodes, PackLayout, QuantizedTensor, WeightFormat

_ROLES = {
    "packed": "weight_packed",
    "scale": "weight_scale",
    "shape": "weight_shape",
    "zero_point": "weight_zero_point",
    "g_idx": "weight_g_idx",
}


class PackedCodec:
    """See the module's text."""

    id = "compressed-tensors/pack-quantized"

    def layers(self, facts: CheckpointFacts) -> list[Layer]:
        """Return the layers that have packed int32 words (see ``FormatCodec``)."""
        groups = read_groups(facts)
        found = []
        for stem, packed in headers.marked(facts, "_packed"):
            if packed.dtype == "U8":  # FP4 of another group
                continue
            module = headers.module_name(stem)
            group = group_of(module, groups)
            if group is None:
                raise headers.wrong(packed, "is packed, but no config group targets its module")
            found.append(self._layer(facts, module, packed, group))
        return found

    def _layer(self, facts: CheckpointFacts, module: str, packed: TensorInfo, group: Group) -> Layer:
        headers.expect_dtype(packed, headers.INTEGER_WORDS)
        headers.expect_matrix(packed)
        scheme, stem = group.weights, packed.name.removesuffix("_packed")
        if scheme.number.kind != "int":
            raise headers.wrong(packed, f"holds 32-bit words, but group {group.name} says {scheme.number.name}")
        scale = headers.partner(facts, f"{stem}_scale", packed)
        headers.expect_dtype(scale, headers.FLOAT_SCALES)
        shape = _logical_shape(packed, scale, scheme)
        names = headers.role_names(module, shape, _ROLES)
        if not scheme.symmetric:
            _expect_zero_point(headers.partner(facts, names["zero_point"], packed), shape, scale, scheme)
        present = {role: name for role, name in names.items() if name in facts.tensors}
        if scheme.symmetric:
            present.pop("zero_point", None)
        return Layer(module, present, scheme, shape, headers.weight_name(module, shape), headers.options(facts))

    def decode(self, layer: Layer, tensors: Mapping[str, torch.Tensor]) -> QuantizedTensor:
        """Keep the weight's words as they are; take the few zero points apart."""
        scheme, scale = layer.format, headers.usable_scales(tensors["scale"], layer.tensors["scale"])
        shape = _stored_shape(layer, tensors)
        words = tensors["packed"].view(torch.int32)
        layout = _layout_of(words.shape[-1], shape[-1], scheme.number.bits, layer.tensors["packed"])
        zeros = tensors.get("zero_point")
        if zeros is not None:
            down = _layout_of(zeros.shape[-2], shape[-2], scheme.number.bits, layer.tensors["zero_point"])
            grid = (*shape[:-1], scale.shape[-1])
            zeros = unpack(PackedCodes(zeros.view(torch.int32), replace(down, axis="out"), grid)).to(torch.int16)
        return QuantizedTensor(
            scheme,
            shape,
            PackedCodes(words, layout, shape),
            scale,
            zeros=zeros,
            group_map=tensors.get("g_idx"),
            dtype=headers.dense_dtype(layer, scale),
            dense_transposed=headers.is_transposed(layer),
        )

    def obstacle(self, weight: QuantizedTensor) -> Obstacle | None:
        """Refuse floats, blocks, act order and zero points beyond the codes' range."""
        scheme = weight.format
        if scheme.number.kind != "int":
            return Obstacle("number-type", f"{self.id} holds integers, not {scheme.number.name}")
        if scheme.granularity not in ("group", "channel"):
            return Obstacle("granularity", f"{self.id} has scales by group or channel, not by {scheme.granularity}")
        if weight.scale_rule == "e8m0" or weight.scales.dtype not in (torch.bfloat16, torch.float16, torch.float32):
            return Obstacle("scale-type", f"{self.id} has 16-bit or float32 scales, not {weight.scales.dtype}")
        size = _group_size(weight)
        if scheme.granularity == "group" and (size is None or weight.shape[-1] % size):
            return Obstacle(
                "group-size", f"{self.id} needs whole groups; {weight.shape[-1]} columns are not a multiple of {size}"
            )
        if weight.zeros is not None:
            low, high = int(scheme.number.minimum), int(scheme.number.maximum)
            smallest, largest = (int(value) for value in torch.aminmax(weight.zeros))
            if smallest < low or largest > high:
                return Obstacle(
                    "zero-point", f"zero points {smallest} to {largest} leave the codes' range {low} to {high}"
                )
        return common_obstacle(self.id, weight)

    def encode(self, name: str, weight: QuantizedTensor) -> dict[str, torch.Tensor]:
        """Return words, scale, shape and packed zero points by full name."""
        names = headers.role_names(name, weight.shape, _ROLES)
        bits = weight.format.number.bits
        layout = dense_layout(bits)
        codes = weight.codes
        packed = relayout(codes, layout) if isinstance(codes, PackedCodes) else pack(codes, layout)
        tensors = {
            names["packed"]: packed.words,
            names["scale"]: weight.scales,
            names["shape"]: torch.tensor(weight.shape, dtype=torch.int64),
        }
        if weight.zeros is not None:
            down = pack(weight.zeros.to(torch.int8), dense_layout(bits, axis_out=True))
            tensors[names["zero_point"]] = down.words
        return tensors

    def config(
        self, weights: Mapping[str, WeightFormat], ignore: tuple[str, ...], source: CheckpointFacts
    ) -> dict[str, Any]:
        """Return the config: weight only, unless the source is compressed-tensors with quantized inputs."""
        groups = read_groups(source) if source.format == self.id else []
        inputs = {}
        for module in weights:
            group = group_of(module, groups) if groups else None
            inputs[module] = None if group is None else group.activations
        return config_json(
            {module: _named(scheme) for module, scheme in weights.items()}, inputs, ignore, "pack-quantized", source
        )


def _named(scheme: WeightFormat) -> WeightFormat:
    """Call GPTQ's whole-row groups what compressed-tensors calls them: channels."""
    if scheme.granularity == "group" and (scheme.group_size is None or scheme.group_size < 1):
        return replace(scheme, granularity="channel", group_size=None)
    return scheme


def _group_size(weight: QuantizedTensor) -> int | None:
    size = weight.format.group_size
    return weight.shape[-1] if size == -1 else size


def _logical_shape(packed: TensorInfo, scale: TensorInfo, scheme: WeightFormat) -> tuple[int, ...]:
    """Return the logical shape as far as headers tell; a channel's odd columns come from ``weight_shape``."""
    *lead, rows, width = packed.shape
    bits = scheme.number.bits
    if scheme.granularity == "channel":
        headers.expect_shape(scale, (*lead, rows, 1), (*lead, rows), why="one scale a channel")
        return (*lead, rows, width * 32 // bits)
    if scheme.granularity != "group" or scheme.group_size is None:
        raise headers.wrong(packed, f"is packed with one scale a {scheme.granularity}, which cannot be")
    if len(scale.shape) != len(packed.shape) or scale.shape[:-1] != packed.shape[:-1]:
        raise headers.wrong(scale, f"has shape {list(scale.shape)} beside packed words {list(packed.shape)}")
    columns = scale.shape[-1] * scheme.group_size
    if width not in _widths(columns, bits):
        raise headers.wrong(
            packed,
            f"has {width} words a row, but {columns} columns of {bits} bits "
            f"({scale.shape[-1]} groups of {scheme.group_size}) need {' or '.join(map(str, _widths(columns, bits)))}",
        )
    return (*lead, rows, columns)


def _widths(length: int, bits: int) -> list[int]:
    dense = dense_layout(bits)
    return list(dict.fromkeys([words_along(length, dense), words_along(length, wasting(dense))]))


def _expect_zero_point(zero: TensorInfo, shape: tuple[int, ...], scale: TensorInfo, scheme: WeightFormat) -> None:
    headers.expect_dtype(zero, headers.INTEGER_WORDS)
    down = dense_layout(scheme.number.bits, axis_out=True)
    grid = (*shape[:-1], scale.shape[-1])
    headers.expect_shape(zero, packed_shape(grid, down), packed_shape(grid, wasting(down)), why="packed down the rows")


def _layout_of(width: int, length: int, bits: int, name: str) -> PackLayout:
    """Tell the dense stream from whole fields by the number of words."""
    dense = dense_layout(bits)
    if width == words_along(length, dense):
        return dense
    if width == words_along(length, wasting(dense)):
        return wasting(dense)
    raise CheckpointError(f"{name} has {width} words, but {length} codes of {bits} bits need {_widths(length, bits)}")


def _stored_shape(layer: Layer, tensors: Mapping[str, torch.Tensor]) -> tuple[int, ...]:
    """Return ``weight_shape`` if it agrees with the words, else what the headers told."""
    stored = tensors.get("shape")
    if stored is None:
        return layer.shape
    shape = tuple(int(size) for size in stored.flatten().tolist())
    if len(shape) == len(layer.shape) - 1:
        shape = (layer.shape[0], *shape)
    exact = layer.format.granularity == "group"
    if shape[:-1] != layer.shape[:-1] or (exact and shape != layer.shape) or shape[-1] > layer.shape[-1]:
        raise CheckpointError(
            f"{layer.tensors['shape']} says {list(shape)}, but the packed words and scales say {list(layer.shape)}"
        )
    return shape


CODEC = PackedCodec()
