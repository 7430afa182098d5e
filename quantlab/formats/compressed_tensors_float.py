"""compressed-tensors with one code a byte: float-quantized, int-quantized, naive-quantized and mxfp8-quantized.

vllm-project/compressed-tensors: src/compressed_tensors/compressors/naive_quantized/base.py and mxfp8/base.py::

    M.weight             float8_e4m3fn or int8   [out, in]
    M.weight_scale       the weights' dtype      [1], [out, 1], [out, in / group] or [out / 128, in / 128], rounded up;
                         mxfp8: uint8 exponents  [out, in / 32]
    M.weight_zero_point  int8, shape of the scale (asymmetric integers only)
    M.input_scale        [1], static activations only

The four differ in what the engine does with the inputs, and in the scale of mxfp8. A fused stack of experts ``P`` has
the leading axis and the names ``P``, ``P_scale``, ``P_zero_point``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from quantlab.checkpoint.facts import CheckpointFacts, TensorInfo
from quantlab.formats import headers
from quantlab.formats.compressed_tensors_config import activations_json, config_json, group_of, read_groups
from quantlab.formats.interface import Layer, Obstacle
from quantlab.formats.obstacles import common_obstacle
from quantlab.tensors import fnuz
from quantlab.tensors.dequantize import dense_codes
from quantlab.tensors.number_types import FP8_E4M3FN, FP8_E4M3FNUZ
from quantlab.tensors.quantized import QuantizedTensor, WeightFormat

_ROLES = {
    "weight": "weight",
    "scale": "weight_scale",
    "zero_point": "weight_zero_point",
    "input_scale": "input_scale",
}
_OTHER_SCALES = ("input", "output", "q", "k", "v")
"""What else has a scale: activations, and the KV cache (``self_attn.k_scale``)."""
_DTYPES = {"int8": ("I8",), "float8_e4m3fn": headers.FP8}


class PlainCodec:
    """A format of compressed-tensors whose codes are not packed.

    Args:
        layout: ``float-quantized``, ``int-quantized``, ``naive-quantized`` or ``mxfp8-quantized``.
        kinds: kinds of number types that it holds.
        quantized_inputs: whether the engine rounds the inputs too.
        scale_type: the scale's number type where the layout fixes one.
    """

    def __init__(
        self, layout: str, kinds: tuple[str, ...], *, quantized_inputs: bool, scale_type: str | None = None
    ) -> None:
        self.id = f"compressed-tensors/{layout}"
        self._layout = layout
        self._kinds = kinds
        self._quantized_inputs = quantized_inputs
        self._scale_type = scale_type

    def layers(self, facts: CheckpointFacts) -> list[Layer]:
        """Return the layers that have a scale beside an 8-bit weight (see ``FormatCodec``)."""
        groups = read_groups(facts)
        found = []
        for stem, scale in headers.marked(facts, "_scale"):
            if stem not in facts.tensors and _is_no_weight(facts, stem):
                continue
            module = headers.module_name(stem)
            group = group_of(module, groups)
            if group is None:
                raise headers.wrong(scale, "is the scale of a module that no config group targets")
            if group.format not in (self._layout, ""):
                continue
            found.append(self._layer(facts, module, scale, group.weights))
        return found

    def _layer(self, facts: CheckpointFacts, module: str, scale: TensorInfo, scheme: WeightFormat) -> Layer:
        stem = scale.name.removesuffix("_scale")
        weight = headers.partner(facts, stem, scale)
        headers.expect_matrix(weight)
        shape = weight.shape
        headers.expect_dtype(weight, _DTYPES.get(scheme.number.torch_dtype, ()))
        headers.expect_dtype(scale, ("U8", "F8_E8M0") if scheme.scale_type == "e8m0" else headers.FLOAT_SCALES)
        headers.expect_shape(scale, *scale_shapes(shape, scheme), why=f"{scheme.granularity} scales of {list(shape)}")
        names = headers.role_names(module, shape, _ROLES)
        if not scheme.symmetric:
            zero = headers.partner(facts, names["zero_point"], weight)
            headers.expect_shape(zero, scale.shape)
        present = {role: name for role, name in names.items() if name in facts.tensors}
        if scheme.symmetric:
            present.pop("zero_point", None)
        return Layer(module, present, scheme, shape, weight.name, headers.options(facts))

    def decode(self, layer: Layer, tensors: Mapping[str, torch.Tensor]) -> QuantizedTensor:
        """Take the tensors as they are; scales get their full number of axes."""
        scheme, scale = layer.format, headers.usable_scales(tensors["scale"], layer.tensors["scale"])
        zero = tensors.get("zero_point")
        shape = scale_shapes(layer.shape, scheme)[0]
        return QuantizedTensor(
            scheme,
            layer.shape,
            tensors["weight"],
            scale.view(torch.uint8).reshape(shape) if scheme.scale_type == "e8m0" else scale.reshape(shape),
            zeros=None if zero is None or scheme.symmetric else zero.to(torch.int16).reshape(shape),
            scale_rule="e8m0" if scheme.scale_type == "e8m0" else "linear",
            input_scale=tensors.get("input_scale"),
            dtype=headers.dense_dtype(layer, scale),
            dense_transposed=headers.is_transposed(layer),
        )

    def obstacle(self, weight: QuantizedTensor) -> Obstacle | None:
        """Refuse other number types, MX scales where they do not belong, and what no such file can say."""
        number, scheme = weight.format.number, weight.format
        if number.name == FP8_E4M3FNUZ.name and "float" in self._kinds:
            reason = fnuz.loss(weight, FP8_E4M3FN)
            if reason is not None:
                return Obstacle("fnuz", reason, "requantize")
            number = FP8_E4M3FN
        if number.kind not in self._kinds or number.torch_dtype not in _DTYPES:
            return Obstacle("number-type", f"{self.id} holds {' and '.join(self._kinds)} bytes, not {number.name}")
        exponents = weight.scale_rule == "e8m0"
        if exponents != (self._scale_type == "e8m0"):
            return Obstacle(
                "scale-type", f"{self.id} has {self._scale_type or 'linear'} scales, this weight has others"
            )
        if not exponents and weight.scales.dtype not in (torch.bfloat16, torch.float16, torch.float32):
            return Obstacle("scale-type", f"{self.id} cannot hold {weight.scales.dtype} scales")
        if scheme.granularity == "block" and number.kind == "int":
            return Obstacle("granularity", f"{self.id} holds blocks of floats only")
        return common_obstacle(self.id, weight)

    def encode(self, name: str, weight: QuantizedTensor) -> dict[str, torch.Tensor]:
        """Return weight, scale, zero point and static input scale by full name."""
        if weight.format.number.name == FP8_E4M3FNUZ.name:
            weight = fnuz.converted(weight, FP8_E4M3FN)
        names = headers.role_names(name, weight.shape, _ROLES)
        tensors = {names["weight"]: dense_codes(weight), names["scale"]: _stored(weight.scales, weight.format)}
        if weight.zeros is not None:
            tensors[names["zero_point"]] = weight.zeros.to(torch.int8)
        if weight.input_scale is not None:
            tensors[names["input_scale"]] = weight.input_scale.reshape(1)
        return tensors

    def config(
        self, weights: Mapping[str, WeightFormat], ignore: tuple[str, ...], source: CheckpointFacts
    ) -> dict[str, Any]:
        """Return the config; inputs are dynamic per token unless the source had static scales."""
        schemes = {module: replace(scheme, scale_type=self._scale_type) for module, scheme in weights.items()}
        activations = {module: self._inputs(scheme, source) for module, scheme in schemes.items()}
        return config_json(schemes, activations, ignore, self._layout, source)

    def _inputs(self, scheme: WeightFormat, source: CheckpointFacts) -> dict[str, Any] | None:
        if not self._quantized_inputs:
            return None
        kind, wanted = scheme.number.kind, source.scheme.activations
        if scheme.granularity == "block":
            return activations_json(kind, 8, "group", group_size=(scheme.block or (128, 128))[1])
        if wanted is not None and wanted.dynamic is False and wanted.bits == 8:
            return activations_json(kind, 8, "tensor", dynamic=False, observer="static_minmax")
        return activations_json(kind, 8, "token")


def _is_no_weight(facts: CheckpointFacts, stem: str) -> bool:
    """Say whether a scale belongs to something else: inputs, the KV cache, a packed weight of another group."""
    return stem.rpartition(".")[2] in _OTHER_SCALES or stem.endswith("_global") or f"{stem}_packed" in facts.tensors


def scale_shapes(shape: tuple[int, ...], scheme: WeightFormat) -> list[tuple[int, ...]]:
    """Return the shapes that scales may have on disk, the one with all axes first."""
    *lead, rows, columns = shape
    match scheme.granularity:
        case "tensor":
            full = (*lead, 1, 1)
            return [full, (*lead, 1), tuple(lead)]
        case "channel":
            return [(*lead, rows, 1), (*lead, rows)]
        case "group":
            return [(*lead, rows, -(-columns // (scheme.group_size or columns)))]
        case "block":
            high, wide = scheme.block or (128, 128)
            return [(*lead, -(-rows // high), -(-columns // wide))]


def _stored(scales: torch.Tensor, scheme: WeightFormat) -> torch.Tensor:
    """Drop the axes that one scale a tensor does not have on disk."""
    return scales.reshape(scales.shape[:-1]) if scheme.granularity == "tensor" else scales


FLOAT = CODEC = PlainCodec("float-quantized", ("float",), quantized_inputs=True)
INT = PlainCodec("int-quantized", ("int",), quantized_inputs=True)
NAIVE = PlainCodec("naive-quantized", ("int", "float"), quantized_inputs=False)
MXFP8 = PlainCodec("mxfp8-quantized", ("float",), quantized_inputs=False, scale_type="e8m0")
