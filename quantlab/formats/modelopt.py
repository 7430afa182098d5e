"""NVIDIA ModelOpt's FP8 and NVFP4 (``quant_method: modelopt``).

NVIDIA/Model-Optimizer: modelopt/torch/export/quant_utils.py (``to_quantized_weight``), unified_export_hf.py and
modelopt/torch/quantization/qtensor/nvfp4_tensor.py::

    FP8     M.weight          e4m3fn   [out, in]
            M.weight_scale    float32  []  (FP8)   [out]  (FP8_PER_CHANNEL_PER_TOKEN)
            M.input_scale     float32  []  (FP8)
    NVFP4   M.weight          uint8    [out, in / 2]   byte k: code 2k in bits 0..3, code 2k + 1 in bits 4..7
            M.weight_scale    e4m3     [out, in / 16]
            M.weight_scale_2  float32  []   a factor: W = code * (weight_scale * weight_scale_2)
            M.input_scale     float32  []   (W4A16_NVFP4 has none)

compressed-tensors stores the reciprocal of the last two, so the way there and back rounds once. Layers of both kinds
may stand in one checkpoint; the header's dtype tells them apart. ``M.pre_quant_scale`` (the AWQ variants) scales the
inputs first; no other format has a place for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from quantlab.checkpoint.facts import CheckpointFacts, TensorInfo
from quantlab.errors import ConversionRefused
from quantlab.formats import headers
from quantlab.formats.compressed_tensors_fp4 import NIBBLES
from quantlab.formats.interface import Layer, Obstacle
from quantlab.formats.obstacles import common_obstacle
from quantlab.tensors import fnuz
from quantlab.tensors.dequantize import dense_codes
from quantlab.tensors.number_types import FP4_E2M1, FP8_E4M3FN, FP8_E4M3FNUZ
from quantlab.tensors.packing import pack, relayout
from quantlab.tensors.quantized import PackedCodes, QuantizedTensor, WeightFormat

_GROUP = 16
_ROLES = {
    "weight": "weight",
    "scale": "weight_scale",
    "scale_2": "weight_scale_2",
    "input_scale": "input_scale",
    "pre_quant_scale": "pre_quant_scale",
}


class ModelOptCodec:
    """See the module's text."""

    id = "modelopt"

    def layers(self, facts: CheckpointFacts) -> list[Layer]:
        """Return the FP8 and NVFP4 layers (see ``FormatCodec``)."""
        found = []
        for stem, scale in headers.marked(facts, "weight_scale"):
            if not stem.endswith("."):
                continue
            module = stem.removesuffix(".")
            weight = headers.partner(facts, f"{module}.weight", scale)
            headers.expect_dtype(weight, ("U8", *headers.FP8))
            headers.expect_matrix(weight)
            packed = weight.dtype == "U8"
            shape = (*weight.shape[:-1], weight.shape[-1] * (2 if packed else 1))
            scheme = _nvfp4(facts, module, shape, scale) if packed else _fp8(shape, scale)
            names = {role: f"{module}.{suffix}" for role, suffix in _ROLES.items()}
            present = {role: name for role, name in names.items() if name in facts.tensors}
            found.append(Layer(module, present, scheme, shape, weight.name, headers.options(facts)))
        return found

    def decode(self, layer: Layer, tensors: Mapping[str, torch.Tensor]) -> QuantizedTensor:
        """Keep bytes, scales and factors.

        Raises:
            ConversionRefused: the layer scales its inputs first (AWQ variants).
        """
        if "pre_quant_scale" in tensors:
            raise ConversionRefused(
                f"{layer.tensors['pre_quant_scale']} scales the inputs before the layer; no other format can say that",
                hint="fold it into the layer before with modelopt, then export again",
            )
        scheme = layer.format
        scale = headers.usable_scales(tensors["scale"], layer.tensors["scale"])
        inputs, packed = tensors.get("input_scale"), scheme.number.name == FP4_E2M1.name
        factor = headers.usable_scales(tensors["scale_2"], layer.tensors["scale_2"]) if packed else None
        weight: torch.Tensor | PackedCodes = tensors["weight"]
        if packed:
            weight = PackedCodes(tensors["weight"], NIBBLES, layer.shape)
        elif scheme.granularity == "tensor":
            scale = scale.reshape(1, 1)
        elif scheme.granularity == "channel":
            scale = scale.reshape(-1, 1)
        return QuantizedTensor(
            scheme,
            layer.shape,
            weight,
            scale,
            global_scale=factor,
            global_scale_stored=factor,
            input_scale=inputs,
            dtype=headers.dense_dtype(layer, scale),
        )

    def obstacle(self, weight: QuantizedTensor) -> Obstacle | None:
        """Refuse other numbers and groups, and FP8 by tensor without the static input scale that engines expect."""
        scheme = weight.format
        if len(weight.shape) != 2:
            return Obstacle("fused-experts", f"{self.id} has its experts one by one", "split them first")
        if scheme.number.name == FP4_E2M1.name:
            if scheme.group_size != _GROUP or weight.scales.dtype != torch.float8_e4m3fn:
                return Obstacle("scale-type", f"{self.id} has e4m3 scales for groups of {_GROUP}")
            return common_obstacle(self.id, weight, global_scale=True)
        if scheme.number.name not in (FP8_E4M3FN.name, FP8_E4M3FNUZ.name):
            return Obstacle("number-type", f"{self.id} holds e4m3 and e2m1, not {scheme.number.name}")
        return self._fp8_obstacle(weight)

    def _fp8_obstacle(self, weight: QuantizedTensor) -> Obstacle | None:
        scheme = weight.format
        if scheme.granularity not in ("tensor", "channel") or weight.scale_rule == "e8m0":
            return Obstacle(
                "granularity", f"{self.id} has FP8 scales by tensor or channel, not by {scheme.granularity}"
            )
        if scheme.granularity == "tensor" and weight.input_scale is None:
            return Obstacle(
                "input-scale",
                f"{self.id} FP8 has static input scales, this checkpoint rounds its inputs dynamically",
                "calibrate with modelopt, or keep compressed-tensors",
            )
        reason = fnuz.loss(weight, FP8_E4M3FN)
        return Obstacle("fnuz", reason, "requantize") if reason else common_obstacle(self.id, weight)

    def encode(self, name: str, weight: QuantizedTensor) -> dict[str, torch.Tensor]:
        """Return the layer's tensors by full name; a stored divisor becomes its reciprocal."""
        names = {role: f"{name}.{suffix}" for role, suffix in _ROLES.items()}
        tensors: dict[str, torch.Tensor]
        if weight.format.number.name == FP4_E2M1.name:
            codes = weight.codes
            packed = relayout(codes, NIBBLES) if isinstance(codes, PackedCodes) else pack(codes, NIBBLES)
            tensors = {names["weight"]: packed.words, names["scale"]: weight.scales, names["scale_2"]: _factor(weight)}
        else:
            weight = fnuz.converted(weight, FP8_E4M3FN)
            shape = () if weight.format.granularity == "tensor" else (-1,)
            tensors = {names["weight"]: dense_codes(weight), names["scale"]: weight.scales.float().reshape(shape)}
        if weight.input_scale is not None:
            tensors[names["input_scale"]] = weight.input_scale.float().reshape(())
        return tensors

    def config(
        self, weights: Mapping[str, WeightFormat], ignore: tuple[str, ...], source: CheckpointFacts
    ) -> dict[str, Any]:
        """Return the config as ModelOpt writes it into config.json (modelopt/torch/export/convert_hf_config.py)."""
        algorithms = {module: _algorithm(scheme, source) for module, scheme in weights.items()}
        config: dict[str, Any] = {"quant_method": "modelopt", "ignore": list(ignore), "producer": {"name": "quantlab"}}
        kinds = sorted(set(algorithms.values()))
        if len(kinds) == 1:
            config |= {"quant_algo": kinds[0], "config_groups": {"group_0": _group(kinds[0], ["Linear"])}}
            return config
        modules = {kind: sorted(module for module in algorithms if algorithms[module] == kind) for kind in kinds}
        config["quant_algo"] = "MIXED_PRECISION"
        config["config_groups"] = {f"group_{n}": _group(kind, modules[kind]) for n, kind in enumerate(kinds)}
        config["quantized_layers"] = {
            module: {"quant_algo": kind, **({"group_size": _GROUP} if "NVFP4" in kind else {})}
            for module, kind in sorted(algorithms.items())
        }
        return config


def _nvfp4(facts: CheckpointFacts, module: str, shape: tuple[int, ...], scale: TensorInfo) -> WeightFormat:
    headers.expect_dtype(scale, headers.FP8)
    headers.expect_shape(scale, (*shape[:-1], shape[-1] // _GROUP), why=f"groups of {_GROUP}")
    factor = headers.partner(facts, f"{module}.weight_scale_2", scale)
    headers.expect_dtype(factor, ("F32",))
    headers.expect_shape(factor, (), (1,), why="one factor a tensor")
    return WeightFormat(FP4_E2M1, "group", _GROUP, scale_type="float8_e4m3fn")


def _fp8(shape: tuple[int, ...], scale: TensorInfo) -> WeightFormat:
    headers.expect_dtype(scale, headers.FLOAT_SCALES)
    rows = shape[-2]
    headers.expect_shape(scale, (), (1,), (rows,), (rows, 1), why="one scale a tensor or a row")
    return WeightFormat(FP8_E4M3FN, "tensor" if scale.shape in ((), (1,)) else "channel", scale_type="float32")


def _factor(weight: QuantizedTensor) -> torch.Tensor:
    """Return the global scale as a factor, a float32 scalar: the file's bits where it was one."""
    if weight.global_scale_inverse and weight.global_scale_stored is not None:
        return (1.0 / weight.global_scale_stored.float()).reshape(())
    factor = weight.global_scale if weight.global_scale is not None else torch.ones(1, device=weight.scales.device)
    return factor.float().reshape(())


def _algorithm(scheme: WeightFormat, source: CheckpointFacts) -> str:
    if scheme.number.name == FP4_E2M1.name:
        inputs = source.scheme.activations
        return "NVFP4" if inputs is not None and inputs.bits == 4 else "W4A16_NVFP4"
    return "FP8" if scheme.granularity == "tensor" else "FP8_PER_CHANNEL_PER_TOKEN"


def _group(algorithm: str, targets: list[str]) -> dict[str, Any]:
    bits = 4 if "NVFP4" in algorithm else 8
    numbers: dict[str, Any] = {"dynamic": False, "num_bits": bits, "type": "float"}
    if bits == 4:
        numbers["group_size"] = _GROUP
    group = {"weights": numbers, "targets": targets}
    if algorithm == "FP8_PER_CHANNEL_PER_TOKEN":
        group["input_activations"] = {**numbers, "dynamic": True}
    elif not algorithm.startswith("W4A16"):
        group["input_activations"] = dict(numbers)
    return group


CODEC = ModelOptCodec()
