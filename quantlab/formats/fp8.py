"""FP8 as DeepSeek, Qwen and AutoFP8 write it (``quant_method: fp8``), and the same for MI300X in fnuz bytes.

deepseek-ai/DeepSeek-V3: inference/kernel.py (``weight_dequant_kernel``); huggingface/transformers:
src/transformers/integrations/finegrained_fp8.py (``Fp8Quantize``); neuralmagic/AutoFP8: auto_fp8/quantize.py::

    M.weight            e4m3fn   [out, in]
    M.weight_scale_inv  float32 (Qwen: bfloat16; ue8m0: exponents)  [out / 128, in / 128], rounded up; in spite of the
                        name it multiplies: W = code * scale; DeepSeek-V4 calls it M.scale
    M.weight_scale      float32  [] or [1]: one scale a tensor; [out, 1]: one a row
    M.input_scale       float32  [] or [1], ``activation_scheme: static`` only; transformers: M.activation_scale

``fp8-fnuz`` is the same with F8_E4M3FNUZ bytes and doubled scales, for gfx942, whose hardware knows no others.
Fused experts ``P`` have the leading axis and ``P_scale_inv``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from quantlab.checkpoint.facts import CheckpointFacts, TensorInfo
from quantlab.errors import ConversionRefused
from quantlab.formats import headers
from quantlab.formats.compressed_tensors_float import scale_shapes
from quantlab.formats.interface import Layer, Obstacle
from quantlab.formats.obstacles import common_obstacle
from quantlab.tensors import fnuz
from quantlab.tensors.dequantize import dense_codes
from quantlab.tensors.number_types import FP8_E4M3FN, FP8_E4M3FNUZ, NumberType
from quantlab.tensors.quantized import QuantizedTensor, WeightFormat

_SCALES = ("_scale_inv", ".weight_scale", ".scale")
_NUMBERS = {"F8_E4M3": FP8_E4M3FN, "F8_E4M3FN": FP8_E4M3FN, "F8_E4M3FNUZ": FP8_E4M3FNUZ}
_INPUTS = ("input_scale", "activation_scale")


class Fp8Codec:
    """``quant_method: fp8`` with one of the two byte types.

    Args:
        format_id: ``fp8`` or ``fp8-fnuz``.
        number: what is written; both are read, told apart by the header's dtype.
    """

    def __init__(self, format_id: str, number: NumberType) -> None:
        self.id = format_id
        self._number = number

    def layers(self, facts: CheckpointFacts) -> list[Layer]:
        """Return the layers that have a scale beside FP8 bytes (see ``FormatCodec``)."""
        block = _block(facts)
        found = []
        for ending in _SCALES:
            for stem, scale in headers.marked(facts, ending):
                weight = _weight_of(facts, stem, ending, scale)
                if weight is not None:
                    found.append(_layer(facts, weight, scale, block))
        return sorted(found, key=lambda layer: layer.name)

    def decode(self, layer: Layer, tensors: Mapping[str, torch.Tensor]) -> QuantizedTensor:
        """Keep bytes and scales; scales get their full number of axes."""
        scheme = layer.format
        scale = headers.usable_scales(tensors["scale"], layer.tensors["scale"])
        exponents = scheme.scale_type == "e8m0"
        scale = (scale.view(torch.uint8) if exponents else scale).reshape(scale_shapes(layer.shape, scheme)[0])
        inputs = tensors.get("input_scale")
        return QuantizedTensor(
            scheme,
            layer.shape,
            tensors["weight"],
            scale,
            scale_rule="e8m0" if exponents else "linear",
            input_scale=inputs,
            dtype=headers.dense_dtype(layer, scale),
            dense_transposed=headers.is_transposed(layer),
        )

    def obstacle(self, weight: QuantizedTensor) -> Obstacle | None:
        """Refuse other numbers, groups, and bytes that the other FP8 cannot say."""
        scheme = weight.format
        if scheme.number.name not in (FP8_E4M3FN.name, FP8_E4M3FNUZ.name):
            return Obstacle("number-type", f"{self.id} holds e4m3 bytes, not {scheme.number.name}")
        if scheme.granularity == "group":
            return Obstacle("granularity", f"{self.id} has scales by block, channel or tensor, not by group")
        if weight.scale_rule == "e8m0" and scheme.granularity != "block":
            return Obstacle("scale-type", f"{self.id} has e8m0 scales for blocks only")
        reason = fnuz.loss(weight, self._number)
        if reason is not None:
            return Obstacle("fnuz", reason, "requantize")
        return common_obstacle(self.id, weight)

    def encode(self, name: str, weight: QuantizedTensor) -> dict[str, torch.Tensor]:
        """Return bytes, scale and static input scale by full name."""
        weight = fnuz.converted(weight, self._number)
        scales, block = weight.scales, weight.format.granularity == "block"
        if weight.scale_rule == "e8m0":
            scales = scales.view(torch.float8_e8m0fnu)
        if weight.format.granularity == "tensor":
            scales = scales.reshape(scales.shape[:-2])
        suffix = "weight_scale_inv" if block else "weight_scale"
        roles = {"weight": "weight", "scale": suffix, "input_scale": "input_scale"}
        names = headers.role_names(name, weight.shape, roles)
        tensors = {names["weight"]: dense_codes(weight), names["scale"]: scales}
        if weight.input_scale is not None:
            tensors[names["input_scale"]] = weight.input_scale
        return tensors

    def config(
        self, weights: Mapping[str, WeightFormat], ignore: tuple[str, ...], source: CheckpointFacts
    ) -> dict[str, Any]:
        """Return the config.

        Raises:
            ConversionRefused: layers differ in their blocks; this config has one block size for all.
        """
        blocks = {scheme.block if scheme.granularity == "block" else None for scheme in weights.values()}
        if len(blocks) > 1:
            raise ConversionRefused(
                f"{self.id} has one weight_block_size for the whole model, but layers have {sorted(map(str, blocks))}",
                hint="take --to-format compressed-tensors/float-quantized",
            )
        block = blocks.pop() if blocks else None
        inputs = source.scheme.activations
        static = block is None and inputs is not None and inputs.dynamic is False
        config: dict[str, Any] = {
            "quant_method": "fp8",
            "fmt": "e4m3" if self._number.name == FP8_E4M3FN.name else "e4m3fnuz",
            "activation_scheme": "static" if static else "dynamic",
            "weight_block_size": list(block) if block else None,
            "modules_to_not_convert": list(ignore),
        }
        if any(scheme.scale_type == "e8m0" for scheme in weights.values()):
            config["scale_fmt"] = "ue8m0"
        return config


def _block(facts: CheckpointFacts) -> tuple[int, int] | None:
    size = (facts.quantization_config or {}).get("weight_block_size")
    if isinstance(size, list | tuple) and len(size) == 2 and all(isinstance(n, int) and n > 0 for n in size):
        return int(size[0]), int(size[1])
    return None


def _weight_of(facts: CheckpointFacts, stem: str, ending: str, scale: TensorInfo) -> TensorInfo | None:
    """Return the weight of a scale, or None where the name means something else (``k_scale``, a norm's ``scale``)."""
    name = stem if ending == "_scale_inv" else f"{stem}.weight"
    if ending == ".scale" and name not in facts.tensors:
        return None
    weight = headers.partner(facts, name, scale)
    if ending == ".scale" and weight.dtype not in _NUMBERS:
        return None
    return weight


def _layer(facts: CheckpointFacts, weight: TensorInfo, scale: TensorInfo, block: tuple[int, int] | None) -> Layer:
    headers.expect_dtype(weight, tuple(_NUMBERS))
    headers.expect_matrix(weight)
    headers.expect_dtype(scale, (*headers.FLOAT_SCALES, "F8_E8M0", "U8"))
    module = headers.module_name(weight.name)
    scheme = _scheme(weight, scale, block)
    names = {"weight": weight.name, "scale": scale.name}
    for suffix in _INPUTS:
        full = headers.role_names(module, weight.shape, {"input_scale": suffix})["input_scale"]
        if full in facts.tensors:
            names["input_scale"] = full
    return Layer(module, names, scheme, weight.shape, weight.name, headers.options(facts))


def _scheme(weight: TensorInfo, scale: TensorInfo, block: tuple[int, int] | None) -> WeightFormat:
    """Tell the granularity from the scale's shape, the block from the config."""
    number = _NUMBERS[weight.dtype]
    kind = {"F32": "float32", "F8_E8M0": "e8m0", "U8": "e8m0"}.get(scale.dtype)
    tensor = WeightFormat(number, "tensor", scale_type=kind)
    channel = WeightFormat(number, "channel", scale_type=kind)
    if scale.shape in scale_shapes(weight.shape, tensor):
        return tensor
    if block is not None:
        scheme = WeightFormat(number, "block", block=block, scale_type=kind)
        why = f"blocks of {block[0]}x{block[1]} of {list(weight.shape)}, or one scale a tensor"
        headers.expect_shape(scale, *scale_shapes(weight.shape, scheme), why=why)
        return scheme
    headers.expect_shape(
        scale,
        *scale_shapes(weight.shape, tensor),
        *scale_shapes(weight.shape, channel),
        why="the config has no weight_block_size",
    )
    return channel


CODEC = Fp8Codec("fp8", FP8_E4M3FN)
FNUZ = Fp8Codec("fp8-fnuz", FP8_E4M3FNUZ)
