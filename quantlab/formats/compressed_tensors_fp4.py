"""compressed-tensors nvfp4-pack-quantized and mxfp4-pack-quantized: two e2m1 codes a byte.

vllm-project/compressed-tensors: src/compressed_tensors/compressors/nvfp4/{base,helpers}.py and mxfp4/base.py::

    M.weight_packed        uint8    [out, in / 2]   byte k: code 2k in bits 0..3, code 2k + 1 in bits 4..7
    M.weight_scale         e4m3     [out, in / 16]  (nvfp4)    uint8 exponents [out, in / 32]  (mxfp4)
    M.weight_global_scale  float32  [1]             (nvfp4)    a divisor: W = code * (scale / global_scale)
    M.input_global_scale   float32  [1]             (nvfp4 with quantized inputs) a divisor too

A fused stack of experts ``P`` has the leading axis, the names ``P_packed``, ``P_scale`` and so on, and one global
scale an expert.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from quantlab.checkpoint.facts import CheckpointFacts, TensorInfo
from quantlab.formats import headers
from quantlab.formats.compressed_tensors_config import Group, activations_json, config_json, group_of, read_groups
from quantlab.formats.interface import Layer, Obstacle
from quantlab.formats.obstacles import common_obstacle
from quantlab.tensors.number_types import FP4_E2M1
from quantlab.tensors.packing import pack, relayout
from quantlab.tensors.quantized import PackedCodes, PackLayout, QuantizedTensor, WeightFormat

NIBBLES = PackLayout(4, 8, "in")
"""Two codes a byte, the first in the low half."""
_ROLES = {
    "packed": "weight_packed",
    "scale": "weight_scale",
    "global_scale": "weight_global_scale",
    "input_global_scale": "input_global_scale",
}


class Fp4Codec:
    """A format of compressed-tensors with 4-bit floats.

    Args:
        layout: ``nvfp4-pack-quantized`` or ``mxfp4-pack-quantized``.
        group_size: columns that share a scale.
        scale_type: number type of the scales.
    """

    def __init__(self, layout: str, group_size: int, scale_type: str) -> None:
        self.id = f"compressed-tensors/{layout}"
        self._layout = layout
        self._group_size = group_size
        self._scale_type = scale_type

    @property
    def _has_global(self) -> bool:
        return self._scale_type != "e8m0"

    def layers(self, facts: CheckpointFacts) -> list[Layer]:
        """Return the layers with two codes a byte and this format's groups (see ``FormatCodec``)."""
        groups = read_groups(facts)
        found = []
        for stem, packed in headers.marked(facts, "_packed"):
            module = headers.module_name(stem)
            group = group_of(module, groups)
            if group is None:
                raise headers.wrong(packed, "is packed, but no config group targets its module")
            if group.weights.number.name == FP4_E2M1.name and group.weights.scale_type == self._scale_type:
                found.append(self._layer(facts, module, packed, group))
        return found

    def _layer(self, facts: CheckpointFacts, module: str, packed: TensorInfo, group: Group) -> Layer:
        headers.expect_dtype(packed, ("U8",))
        headers.expect_matrix(packed)
        *lead, rows, width = packed.shape
        shape = (*lead, rows, width * 2)
        stem = packed.name.removesuffix("_packed")
        scale = headers.partner(facts, f"{stem}_scale", packed)
        headers.expect_dtype(scale, headers.FP8 if self._has_global else ("U8", "F8_E8M0"))
        size = group.weights.group_size or self._group_size
        if shape[-1] % size:
            raise headers.wrong(packed, f"holds {shape[-1]} columns, which groups of {size} do not divide")
        headers.expect_shape(scale, (*lead, rows, shape[-1] // size), why=f"groups of {size}")
        if self._has_global:
            factor = headers.partner(facts, f"{stem}_global_scale", packed)
            headers.expect_dtype(factor, ("F32",))
            headers.expect_shape(factor, (1,), (), *([tuple(lead), (*lead, 1)] if lead else []), why="a global scale")
        names = headers.role_names(module, shape, _ROLES)
        present = {role: name for role, name in names.items() if name in facts.tensors}
        return Layer(module, present, group.weights, shape, headers.weight_name(module, shape), headers.options(facts))

    def decode(self, layer: Layer, tensors: Mapping[str, torch.Tensor]) -> QuantizedTensor:
        """Keep the bytes; a global scale keeps the bits of the file beside its reciprocal."""
        scale = headers.usable_scales(tensors["scale"], layer.tensors["scale"])
        stored = tensors.get("global_scale") if self._has_global else None
        if stored is not None:
            stored = headers.usable_scales(stored.reshape(-1), layer.tensors["global_scale"])
        inputs = tensors.get("input_global_scale")
        return QuantizedTensor(
            layer.format,
            layer.shape,
            PackedCodes(tensors["packed"], NIBBLES, layer.shape),
            scale if self._has_global else scale.view(torch.uint8),
            global_scale=None if stored is None else 1.0 / stored,
            global_scale_stored=stored,
            global_scale_inverse=stored is not None,
            scale_rule="linear" if self._has_global else "e8m0",
            input_scale=None if inputs is None else 1.0 / inputs.float(),
            dtype=headers.dense_dtype(layer, scale),
            dense_transposed=headers.is_transposed(layer),
            extra={} if inputs is None else {"input_global_scale": inputs},
        )

    def obstacle(self, weight: QuantizedTensor) -> Obstacle | None:
        """Refuse other number types, group sizes and scales; a factor is rounded once to its reciprocal (rescaled)."""
        scheme = weight.format
        if scheme.number.name != FP4_E2M1.name:
            return Obstacle("number-type", f"{self.id} holds {FP4_E2M1.name}, not {scheme.number.name}")
        if scheme.granularity != "group" or scheme.group_size != self._group_size:
            return Obstacle("group-size", f"{self.id} has groups of {self._group_size}, not {scheme.group_size}")
        if (weight.scale_rule == "e8m0") == self._has_global:
            return Obstacle("scale-type", f"{self.id} has {self._scale_type} scales, this weight has others")
        if self._has_global and weight.scales.dtype != torch.float8_e4m3fn:
            return Obstacle("scale-type", f"{self.id} has {self._scale_type} scales, not {weight.scales.dtype}")
        return common_obstacle(self.id, weight, global_scale=self._has_global)

    def encode(self, name: str, weight: QuantizedTensor) -> dict[str, torch.Tensor]:
        """Return bytes, scales and global scales by full name; a factor becomes its reciprocal."""
        names = headers.role_names(name, weight.shape, _ROLES)
        codes = weight.codes
        packed = relayout(codes, NIBBLES) if isinstance(codes, PackedCodes) else pack(codes, NIBBLES)
        tensors = {names["packed"]: packed.words, names["scale"]: weight.scales}
        if self._has_global:
            tensors[names["global_scale"]] = divisor(weight)
            inputs = input_divisor(weight)
            if inputs is not None:
                tensors[names["input_global_scale"]] = inputs
        return tensors

    def config(
        self, weights: Mapping[str, WeightFormat], ignore: tuple[str, ...], source: CheckpointFacts
    ) -> dict[str, Any]:
        """Return the config: weight only, unless the source rounds its inputs to 4-bit floats too."""
        schemes = {module: replace(scheme, scale_type=self._scale_type) for module, scheme in weights.items()}
        inputs = dict.fromkeys(schemes, self._inputs(source))
        return config_json(schemes, inputs, ignore, self._layout, source)

    def _inputs(self, source: CheckpointFacts) -> dict[str, Any] | None:
        wanted = source.scheme.activations
        if wanted is None or wanted.bits != 4 or wanted.type != "float":
            return None
        if self._has_global:
            scale = "torch.float8_e4m3fn"
            more = {"dynamic": "local", "observer": "static_minmax", "scale_dtype": scale, "zp_dtype": scale}
            return activations_json("float", 4, "tensor_group", group_size=self._group_size, **more)
        scale = "torch.uint8"
        return activations_json("float", 4, "group", group_size=self._group_size, scale_dtype=scale, zp_dtype=scale)


def divisor(weight: QuantizedTensor) -> torch.Tensor:
    """Return the global scale as a divisor, float32 ``[1]`` or one an expert: the file's bits where it had one."""
    if weight.global_scale_inverse and weight.global_scale_stored is not None:
        return weight.global_scale_stored.float().reshape(-1)
    factor = weight.global_scale if weight.global_scale is not None else torch.ones(1, device=weight.scales.device)
    return 1.0 / factor.float().reshape(-1)


def input_divisor(weight: QuantizedTensor) -> torch.Tensor | None:
    """Return the inputs' global scale as a divisor, or None where inputs stay in 16 bits."""
    if "input_global_scale" in weight.extra:
        return weight.extra["input_global_scale"]
    return None if weight.input_scale is None else 1.0 / weight.input_scale.float().reshape(-1)


NVFP4 = Fp4Codec("nvfp4-pack-quantized", 16, "float8_e4m3fn")
MXFP4 = Fp4Codec("mxfp4-pack-quantized", 32, "e8m0")
