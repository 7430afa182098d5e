"""Dense weights, as every model has them before quantizing: ``M.weight`` in bfloat16, float16 or float32.

Decoding has nothing to take apart; encoding multiplies a quantized weight out in the dtype that the model's dense
weights have, with the arithmetic of the libraries (``quantlab.tensors.dequantize``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from quantlab.checkpoint.facts import CheckpointFacts
from quantlab.errors import ConversionRefused
from quantlab.formats import headers
from quantlab.formats.interface import Layer, Obstacle
from quantlab.tensors.dequantize import dense_weight
from quantlab.tensors.quantized import QuantizedTensor, WeightFormat


class DenseCodec:
    """See the module's text."""

    id = "dense"

    def layers(self, facts: CheckpointFacts) -> list[Layer]:
        """Return no layers: nothing is quantized."""
        return []

    def decode(self, layer: Layer, tensors: Mapping[str, torch.Tensor]) -> QuantizedTensor:
        """Refuse: a dense weight has no codes.

        Raises:
            ConversionRefused: always.
        """
        raise ConversionRefused(f"{layer.name} is dense and has no codes to decode", hint="quantize it")

    def obstacle(self, weight: QuantizedTensor) -> Obstacle | None:
        """Return None: every weight can be multiplied out."""
        return None

    def encode(self, name: str, weight: QuantizedTensor) -> dict[str, torch.Tensor]:
        """Return the dense weight in ``weight.dtype``, rounded once from float32."""
        dense = dense_weight(weight, getattr(torch, weight.dtype))
        return {headers.weight_name(name, weight.shape): dense}

    def config(
        self, weights: Mapping[str, WeightFormat], ignore: tuple[str, ...], source: CheckpointFacts
    ) -> dict[str, Any]:
        """Return an empty config: a dense model has none."""
        return {}


CODEC = DenseCodec()
