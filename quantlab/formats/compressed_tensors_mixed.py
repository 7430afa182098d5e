"""compressed-tensors mixed-precision: several formats of the family in one checkpoint, one a config group.

vllm-project/compressed-tensors: src/compressed_tensors/compressors/format.py (``_flatten_formats``): each group has its
own ``format``, the config's is ``mixed-precision``. Every layer is handed to the codec of its group; what is written
follows from how the codes lie: 32-bit words are pack-quantized, bytes are float- or int-quantized, nibbles are FP4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from quantlab.checkpoint.facts import CheckpointFacts
from quantlab.errors import CheckpointError
from quantlab.formats.compressed_tensors_config import config_json, group_of, read_groups
from quantlab.formats.compressed_tensors_float import FLOAT, INT, MXFP8, NAIVE
from quantlab.formats.compressed_tensors_fp4 import MXFP4, NVFP4
from quantlab.formats.compressed_tensors_packed import CODEC as PACKED
from quantlab.formats.interface import FormatCodec, Layer, Obstacle
from quantlab.tensors.number_types import FP4_E2M1
from quantlab.tensors.quantized import PackedCodes, QuantizedTensor, WeightFormat

_PREFIX = "compressed-tensors/"
_MEMBERS: dict[str, FormatCodec] = {
    codec.id.removeprefix(_PREFIX): codec for codec in (FLOAT, INT, NAIVE, MXFP8, MXFP4, NVFP4, PACKED)
}


class MixedCodec:
    """See the module's text."""

    id = "compressed-tensors/mixed-precision"

    def layers(self, facts: CheckpointFacts) -> list[Layer]:
        """Return the layers of all groups (see ``FormatCodec``).

        Raises:
            CheckpointError: a group has a format that is none of the family.
        """
        groups = read_groups(facts)
        for group in groups:
            if group.format not in _MEMBERS:
                raise CheckpointError(
                    f"{facts.path}: quantization_config.config_groups.{group.name}.format is {group.format!r}, "
                    f"which is none of {', '.join(sorted(_MEMBERS))}"
                )
        found: dict[str, Layer] = {}
        for name in dict.fromkeys(group.format for group in groups):
            for layer in _MEMBERS[name].layers(facts):
                owner = group_of(layer.name, groups)
                if owner is not None and owner.format == name:
                    options = {**layer.options, "member": name}
                    found[layer.name] = Layer(
                        layer.name, layer.tensors, layer.format, layer.shape, layer.weight_name, options
                    )
        return [found[name] for name in sorted(found)]

    def decode(self, layer: Layer, tensors: Mapping[str, torch.Tensor]) -> QuantizedTensor:
        """Decode with the codec of the layer's group."""
        return _MEMBERS[layer.options["member"]].decode(layer, tensors)

    def obstacle(self, weight: QuantizedTensor) -> Obstacle | None:
        """Ask the codec that would write the weight."""
        return _MEMBERS[_member(weight.format, packed=_is_packed(weight))].obstacle(weight)

    def encode(self, name: str, weight: QuantizedTensor) -> dict[str, torch.Tensor]:
        """Write with the codec that fits the codes."""
        return _MEMBERS[_member(weight.format, packed=_is_packed(weight))].encode(name, weight)

    def config(
        self, weights: Mapping[str, WeightFormat], ignore: tuple[str, ...], source: CheckpointFacts
    ) -> dict[str, Any]:
        """Return the config; a mixed source's own formats and input schemes are kept for the layers it had."""
        groups = read_groups(source) if source.format == self.id else []
        layouts, inputs = {}, {}
        for module, scheme in weights.items():
            group = group_of(module, groups) if groups else None
            layouts[module] = group.format if group else _member(scheme, packed=scheme.number.kind == "int")
            inputs[module] = group.activations if group else None
        return config_json(weights, inputs, ignore, layouts, source)


def _is_packed(weight: QuantizedTensor) -> bool:
    return isinstance(weight.codes, PackedCodes) and weight.codes.layout.word_bits == 32


def _member(scheme: WeightFormat, *, packed: bool) -> str:
    """Return the format that writes a scheme."""
    if packed:
        return "pack-quantized"
    if scheme.number.name == FP4_E2M1.name:
        return "mxfp4-pack-quantized" if scheme.group_size == 32 else "nvfp4-pack-quantized"
    if scheme.number.kind == "int":
        return "int-quantized"
    return "mxfp8-quantized" if scheme.scale_type == "e8m0" else "float-quantized"


CODEC = MixedCodec()
