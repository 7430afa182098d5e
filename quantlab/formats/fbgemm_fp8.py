"""FP8 as FBGEMM takes it (``quant_method: fbgemm_fp8``; Meta's Llama 3.1 405B): rows of e4m3 with float32 scales.

huggingface/transformers: src/transformers/integrations/fbgemm_fp8.py (``FbgemmFp8Linear``)::

    M.weight        e4m3fn   [out, in]
    M.weight_scale  float32  [out, 1]     W = code * scale

Inputs are rounded per token at run time, clipped to ``activation_scale_ub``. Fused experts of Llama 4 are kept
transposed with scales along another axis in this format and are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from quantlab.checkpoint.facts import CheckpointFacts
from quantlab.errors import ConversionRefused
from quantlab.formats import headers
from quantlab.formats.interface import Layer, Obstacle
from quantlab.formats.obstacles import common_obstacle
from quantlab.tensors import fnuz
from quantlab.tensors.dequantize import dense_codes
from quantlab.tensors.number_types import FP8_E4M3FN, FP8_E4M3FNUZ
from quantlab.tensors.quantized import QuantizedTensor, WeightFormat

_SCALE_UPPER_BOUND = 1200.0
"""Default of ``FbgemmFp8Config`` (transformers: utils/quantization_config.py)."""


class FbgemmFp8Codec:
    """See the module's text."""

    id = "fbgemm_fp8"

    def layers(self, facts: CheckpointFacts) -> list[Layer]:
        """Return the layers with a row scale beside FP8 bytes (see ``FormatCodec``)."""
        found = []
        for stem, scale in headers.marked(facts, ".weight_scale"):
            weight = headers.partner(facts, f"{stem}.weight", scale)
            headers.expect_dtype(weight, headers.FP8)
            headers.expect_matrix(weight)
            headers.expect_dtype(scale, headers.FLOAT_SCALES)
            rows = weight.shape[0]
            headers.expect_shape(scale, (rows, 1), (rows,), why="one scale a row")
            scheme = WeightFormat(FP8_E4M3FN, "channel", scale_type="float32")
            names = {"weight": weight.name, "scale": scale.name}
            found.append(Layer(stem, names, scheme, weight.shape, weight.name, headers.options(facts)))
        return found

    def decode(self, layer: Layer, tensors: Mapping[str, torch.Tensor]) -> QuantizedTensor:
        """Keep bytes and scales."""
        scale = headers.usable_scales(tensors["scale"], layer.tensors["scale"]).reshape(-1, 1)
        return QuantizedTensor(
            layer.format, layer.shape, tensors["weight"], scale, dtype=headers.dense_dtype(layer, scale)
        )

    def obstacle(self, weight: QuantizedTensor) -> Obstacle | None:
        """Refuse all but rows of e4m3, and stacks of experts."""
        scheme = weight.format
        if scheme.number.name not in (FP8_E4M3FN.name, FP8_E4M3FNUZ.name):
            return Obstacle("number-type", f"{self.id} holds e4m3 bytes, not {scheme.number.name}")
        if scheme.granularity != "channel" or weight.scale_rule == "e8m0":
            return Obstacle("granularity", f"{self.id} has one float scale a row, not one a {scheme.granularity}")
        if len(weight.shape) != 2:
            return Obstacle("fused-experts", f"{self.id} keeps stacks of experts transposed", "leave them dense")
        reason = fnuz.loss(weight, FP8_E4M3FN)
        return Obstacle("fnuz", reason, "requantize") if reason else common_obstacle(self.id, weight)

    def encode(self, name: str, weight: QuantizedTensor) -> dict[str, torch.Tensor]:
        """Return bytes and float32 scales (wider than 16-bit ones, so equal) by full name."""
        weight = fnuz.converted(weight, FP8_E4M3FN)
        return {f"{name}.weight": dense_codes(weight), f"{name}.weight_scale": weight.scales.float()}

    def config(
        self, weights: Mapping[str, WeightFormat], ignore: tuple[str, ...], source: CheckpointFacts
    ) -> dict[str, Any]:
        """Return the config, with the source's bound of input scales where it had one."""
        bound = (source.quantization_config or {}).get("activation_scale_ub", _SCALE_UPPER_BOUND)
        if not isinstance(bound, int | float) or isinstance(bound, bool):
            raise ConversionRefused(f"{source.path}: quantization_config.activation_scale_ub is {bound!r}, no number")
        return {"quant_method": "fbgemm_fp8", "activation_scale_ub": bound, "modules_to_not_convert": list(ignore)}


CODEC = FbgemmFp8Codec()
