"""AutoRound's own method name over other formats' tensors: ``packing_format`` says whose.

::

    auto_round:auto_gptq, auto_round:gptq      GPTQ version 1 (zero points minus one), no g_idx
    auto_round, auto_round:gptqmodel,          GPTQ version 2 (zero points as they are)
    auto_round:exllamav2, auto_round:tritonv2
    auto_round:auto_awq, auto_round:awq        AWQ gemm

Scales are in the model's dtype (bfloat16 too), unlike GPTQ's own. AutoRound itself writes symmetric weights as
``auto_round:auto_gptq``; so does ``encode``.
Source: intel/auto-round: auto_round/export/export_to_autoround/export.py
(``dynamic_import_quant_linear_for_packing``), auto_round_extension/torch/qlinear_torch.py and qlinear_torch_zp.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quantlab.checkpoint.facts import CheckpointFacts
from quantlab.errors import CheckpointError
from quantlab.formats import awq, gptq
from quantlab.formats.gptq_config import commonest, numbers
from quantlab.formats.interface import Layer, Obstacle
from quantlab.formats.roles import layers_by_role
from quantlab.tensors.quantized import QuantizedTensor, WeightFormat

if TYPE_CHECKING:
    import torch

PACKINGS = {
    "auto_gptq": "gptq-v1",
    "gptq": "gptq-v1",
    "": "gptq-v2",
    "gptqmodel": "gptq-v2",
    "exllamav2": "gptq-v2",
    "tritonv2": "gptq-v2",
    "auto_awq": "awq",
    "awq": "awq",
}


class AutoRound:
    """AutoRound checkpoints that hold GPTQ or AWQ words."""

    id = "auto-round"

    def layers(self, facts: CheckpointFacts) -> list[Layer]:
        """Group the tensors as the packing demands.

        Raises:
            CheckpointError: another packing (fp8, mxfp4, ...), or a broken layer.
        """
        config = facts.quantization_config or {}
        packing = stated_packing(config, facts.path)
        if packing == "awq":
            grouped = layers_by_role(facts, awq.SUFFIXES, ("zeros", "scales"), anchor="codes")
            return [awq.awq_layer(name, found, facts, "gemm", symmetric=True) for name, found in grouped.items()]
        version = 1 if packing == "gptq-v1" else 2
        grouped = layers_by_role(facts, gptq.SUFFIXES, ("zeros", "scales"), anchor="codes")
        return [gptq.gptq_layer(name, found, facts, version, by_word=False) for name, found in grouped.items()]

    def decode(self, layer: Layer, tensors: Mapping[str, torch.Tensor]) -> QuantizedTensor:
        """Take a layer apart; its codes stay in their words."""
        return awq.CODEC.decode(layer, tensors) if "layout" in layer.options else gptq.decode_gptq(layer, tensors)

    def obstacle(self, weight: QuantizedTensor) -> Obstacle | None:
        """Say why the GPTQ version 1 packing cannot hold the weight bit for bit."""
        if weight.group_map is not None:
            return Obstacle("act-order", "AutoRound has no group map, and the columns are grouped by act order")
        return gptq.V1.obstacle(weight)

    def encode(self, name: str, weight: QuantizedTensor) -> dict[str, torch.Tensor]:
        """Return qweight, qzeros and scales in GPTQ's version 1 packing.

        Raises:
            ConversionRefused: the packing cannot hold the weight; see ``obstacle``.
        """
        tensors = gptq.V1.encode(name, weight)
        del tensors[f"{name}.g_idx"]
        return tensors

    def config(
        self, weights: Mapping[str, WeightFormat], ignore: tuple[str, ...], source: CheckpointFacts
    ) -> dict[str, Any]:
        """Return AutoRound's config; layers that differ, and dense ones, go into ``extra_config``."""
        common = commonest(weights.values())
        extra: dict[str, dict[str, Any]] = {
            module.removeprefix("re:"): {"bits": 16, "data_type": "float"} for module in ignore if module != "lm_head"
        }
        extra |= {name: numbers(scheme) for name, scheme in weights.items() if scheme != common}
        return {
            "quant_method": "auto-round",
            "packing_format": "auto_round:auto_gptq",
            "data_type": "int",
            **numbers(common),
            **({"extra_config": extra} if extra else {}),
        }


def stated_packing(config: Mapping[str, Any], path: str) -> str:
    """Return ``gptq-v1``, ``gptq-v2`` or ``awq`` from ``packing_format`` (or ``backend``, its older name).

    Raises:
        CheckpointError: another packing.
    """
    stated = str(config.get("packing_format") or config.get("backend") or "auto_round:auto_gptq").lower()
    family, _, rest = stated.replace("auto-round", "auto_round").partition(":")
    if family != "auto_round" or rest not in PACKINGS:
        message = f"{path}: quantization_config.packing_format is {stated!r}, a packing that cannot be taken apart"
        raise CheckpointError(message, hint="auto_round with gptq or awq words can")
    return PACKINGS[rest]


CODEC = AutoRound()
