"""MXFP4 as gpt-oss ships it: all experts of a layer in one tensor, blocks and scales apart.

::

    <experts>.gate_up_proj_blocks  uint8 [E, rows, groups, 16]   16 bytes: 32 e2m1 codes, the first in the low nibble
    <experts>.gate_up_proj_scales  uint8 [E, rows, groups]       e8m0 exponents, 2^(s - 127)
    <experts>.gate_up_proj_bias    bfloat16 [E, rows]            dense
    (down_proj the same; rows of gate_up_proj are gate and up in turn)

    W[e, o, i] = e2m1(code[e, o, i // 32, i % 32]) * 2^(scale[e, o, i // 32] - 127)

The dense parameter is the transpose, ``gate_up_proj [E, in, out]``.
Source: openai/gpt-oss: gpt_oss/torch/weights.py; huggingface/transformers: src/transformers/integrations/mxfp4.py,
``convert_moe_packed_tensors``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quantlab.checkpoint.facts import CheckpointFacts, TensorInfo
from quantlab.errors import ConversionRefused
from quantlab.formats.interface import Layer, Obstacle
from quantlab.formats.roles import broken, check_dtype, check_rank, check_shape, layers_by_role
from quantlab.tensors.number_types import FP4_E2M1
from quantlab.tensors.quantized import PackedCodes, PackLayout, QuantizedTensor, WeightFormat

if TYPE_CHECKING:
    import torch

GROUP = 32
NIBBLES = PackLayout(4, 8, "in")
"""Two codes a byte, the first in the low nibble."""
SUFFIXES = {"codes": "_blocks", "scales": "_scales"}
SCHEME = WeightFormat(FP4_E2M1, "group", GROUP, scale_type="e8m0")
DENSE_PARTS = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
"""What gpt-oss lists as not converted (openai/gpt-oss-20b: config.json)."""


class Mxfp4:
    """gpt-oss' MXFP4."""

    id = "mxfp4"

    def layers(self, facts: CheckpointFacts) -> list[Layer]:
        """Pair blocks and scales.

        Raises:
            CheckpointError: a pair is incomplete or its shapes do not belong together.
        """
        grouped = layers_by_role(facts, SUFFIXES, ("scales",), anchor="codes")
        return [_layer(name, found, facts.architecture.torch_dtype) for name, found in grouped.items()]

    def decode(self, layer: Layer, tensors: Mapping[str, torch.Tensor]) -> QuantizedTensor:
        """Take experts apart; the codes stay in their bytes."""
        *lead, columns = layer.shape
        words = tensors["codes"].reshape(*lead, columns // 2)
        return QuantizedTensor(
            layer.format,
            layer.shape,
            PackedCodes(words, NIBBLES, layer.shape),
            tensors["scales"],
            scale_rule="e8m0",
            dtype=layer.options["dtype"],
            dense_transposed=True,
        )

    def obstacle(self, weight: QuantizedTensor) -> Obstacle | None:
        """Say why this format cannot hold the weight bit for bit."""
        scheme = weight.format
        if scheme.number != FP4_E2M1 or scheme.group_size != GROUP or weight.scale_rule != "e8m0":
            return Obstacle(
                "number-type", f"mxfp4 holds e2m1 in groups of 32 with e8m0 scales, not {scheme.number.name}"
            )
        if len(weight.shape) != 3:
            return Obstacle("rank", f"mxfp4 holds fused experts, the weight has shape {list(weight.shape)}")
        if weight.shape[-1] % GROUP or weight.global_scale is not None:
            return Obstacle("granularity", f"mxfp4 holds whole groups of {GROUP} and no other scale")
        return None

    def encode(self, name: str, weight: QuantizedTensor) -> dict[str, torch.Tensor]:
        """Return blocks and scales of a fused parameter (``name`` is the parameter's full name).

        Raises:
            ConversionRefused: this format cannot hold the weight; see ``obstacle``.
        """
        from quantlab.tensors.packing import pack, relayout

        obstacle = self.obstacle(weight)
        if obstacle is not None:
            raise ConversionRefused(f"{name}: {obstacle.reason} ({obstacle.rule})", hint=obstacle.fix)
        codes = weight.codes
        packed = relayout(codes, NIBBLES) if isinstance(codes, PackedCodes) else pack(codes, NIBBLES)
        *lead, columns = weight.shape
        return {
            f"{name}_blocks": packed.words.reshape(*lead, columns // GROUP, GROUP // 2),
            f"{name}_scales": weight.scales,
        }

    def config(
        self, weights: Mapping[str, WeightFormat], ignore: tuple[str, ...], source: CheckpointFacts
    ) -> dict[str, Any]:
        """Return gpt-oss' config."""
        return {"quant_method": "mxfp4", "modules_to_not_convert": list(ignore) or DENSE_PARTS}


def _layer(name: str, found: Mapping[str, TensorInfo], dtype: str | None) -> Layer:
    codes, scales = found["codes"], found["scales"]
    check_dtype(codes, ("U8",))
    check_dtype(scales, ("U8", "F8_E8M0"))
    check_rank(codes, 4)
    experts, rows, groups, octets = codes.shape
    if octets != GROUP // 2:
        raise broken(codes, "tensor-shape", f"blocks of {octets} bytes, expected {GROUP // 2}")
    check_shape(scales, (experts, rows, groups))
    names = {role: info.name for role, info in found.items()}
    named = (dtype or "bfloat16").removeprefix("torch.")
    return Layer(name, names, SCHEME, (experts, rows, groups * GROUP), name, {"dtype": named})


CODEC = Mxfp4()
