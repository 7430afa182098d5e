"""What a format is: a codec between named tensors of a checkpoint and quantized weights.

A codec knows tensor names, shapes and dtypes; it opens no file. The driver of ``quantlab.conversion`` asks it
which tensors make one layer (so that they can be read together), hands them over, and writes what comes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from quantlab.checkpoint.facts import CheckpointFacts, TensorInfo
from quantlab.tensors.quantized import QuantizedTensor, WeightFormat

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Layer:
    """One quantized layer of a checkpoint: which tensors hold it.

    Attributes:
        name: module name as a dense checkpoint has it (``model.layers.0.mlp.down_proj``); the dense weight
            is ``name + ".weight"``, except for fused experts, where it is ``weight_name``.
        tensors: role (``qweight``, ``weight_scale``, ...) to full tensor name.
        format: the scheme of this layer as config and headers tell it.
        shape: logical shape of the weight.
        weight_name: full name of the dense tensor that this layer stands for.
    """

    name: str
    tensors: Mapping[str, str]
    format: WeightFormat
    shape: tuple[int, ...]
    weight_name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a format cannot hold a weight as it is.

    Attributes:
        rule: short id, such as ``act-order`` or ``asymmetric``.
        reason: what clashes, with both values.
        fix: what would help.
    """

    rule: str
    reason: str
    fix: str | None = None


class FormatCodec(Protocol):
    """Decode and encode one format."""

    id: str

    def layers(self, facts: CheckpointFacts) -> list[Layer]:
        """Group the checkpoint's tensors into quantized layers; what is in none of them is dense.

        Raises:
            CheckpointError: a layer lacks a tensor or has a wrong shape or dtype (file, tensor, rule named).
        """

    def decode(self, layer: Layer, tensors: Mapping[str, torch.Tensor]) -> QuantizedTensor:
        """Take a layer's tensors (by role) apart, losing nothing."""

    def obstacle(self, weight: QuantizedTensor) -> Obstacle | None:
        """Say why the weight cannot be held bit for bit, or None if it can."""

    def encode(self, name: str, weight: QuantizedTensor) -> dict[str, torch.Tensor]:
        """Return the layer's tensors by full name (``name`` is the module name)."""

    def config(
        self, weights: Mapping[str, WeightFormat], ignore: tuple[str, ...], source: CheckpointFacts
    ) -> dict[str, Any]:
        """Return the ``quantization_config`` of a checkpoint with these layers (module name to scheme)."""


__all__ = ["FormatCodec", "Layer", "Obstacle", "TensorInfo"]
