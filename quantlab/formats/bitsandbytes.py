"""bitsandbytes as transformers saves it: 4-bit codebook indices in blocks, or int8 rows.

::

    4 bit   <layer>.weight              uint8 [ceil(out * in / 2), 1], first weight in the high nibble
            <layer>.weight.absmax       float32 [blocks]: the factor of each 64 weights, row after row
            <layer>.weight.quant_map    float32 [16]: the codebook (nf4 or fp4)
            <layer>.weight.quant_state.bitsandbytes__nf4   uint8: JSON of block size, dtype, shape

    double quantization: absmax is uint8 [blocks] and
            <layer>.weight.nested_absmax     float32, one for each 256 of them
            <layer>.weight.nested_quant_map  float32 [256]
            factor = nested_quant_map[absmax] * nested_absmax + nested_offset (in the JSON)

    int8    <layer>.weight int8 [out, in], <layer>.SCB float32 [out]      W = q * SCB * (1 / 127)
            <layer>.weight_format uint8: 0, rows

Source: bitsandbytes-foundation/bitsandbytes: bitsandbytes/functional.py (``QuantState``), bitsandbytes/nn/modules.py.
A block runs on from one row into the next where it does not divide the columns, so scales are one-dimensional.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quantlab.checkpoint.facts import CheckpointFacts, TensorInfo
from quantlab.errors import CheckpointError, ConversionRefused
from quantlab.formats.bitsandbytes_state import QuantState, read_state, state_of, state_tensor
from quantlab.formats.interface import Layer, Obstacle
from quantlab.formats.roles import broken, check_dtype, check_rank, check_scales, check_shape, layers_by_role
from quantlab.tensors.number_types import INT8, NUMBER_TYPES
from quantlab.tensors.quantized import PackedCodes, PackLayout, QuantizedTensor, WeightFormat

if TYPE_CHECKING:
    import torch

NIBBLES = PackLayout(4, 8, "in", order=(1, 0))
"""Two indices a byte, the first in the high nibble."""

FOUR_BIT = {
    "codes": ".weight",
    "absmax": ".weight.absmax",
    "map": ".weight.quant_map",
    "nested_absmax": ".weight.nested_absmax",
    "nested_map": ".weight.nested_quant_map",
    "nf4": ".weight.quant_state.bitsandbytes__nf4",
    "fp4": ".weight.quant_state.bitsandbytes__fp4",
}
_ZERO = {"nf4": 7, "fp4": 0}
"""Index of zero, which fills the last byte of an odd number of weights."""
EIGHT_BIT = {"codes": ".weight", "scales": ".SCB", "layout": ".weight_format"}
KEPT = ("absmax", "map", "nested_absmax", "nested_map", "state")
"""What a decoded 4-bit weight keeps of its file, so that it is written back with the same bytes."""


class BitsAndBytes:
    """bitsandbytes nf4, fp4 (double quantization too) and int8."""

    id = "bitsandbytes"

    def layers(self, facts: CheckpointFacts) -> list[Layer]:
        """Group the tensors of 4-bit and int8 layers.

        The shape of a 4-bit layer lies in its JSON blob, so that blob is read from the file.

        Raises:
            CheckpointError: a layer lacks a tensor, has a wrong shape, or was saved after a forward pass on a CPU.
        """
        four = layers_by_role(facts, FOUR_BIT, ("codes", "map"), anchor="absmax")
        eight = layers_by_role(facts, EIGHT_BIT, ("codes",), anchor="scales")
        return [
            *(_four_bit_layer(facts, name, found) for name, found in four.items()),
            *(_eight_bit_layer(name, found) for name, found in eight.items()),
        ]

    def decode(self, layer: Layer, tensors: Mapping[str, torch.Tensor]) -> QuantizedTensor:
        """Take a layer apart.

        Raises:
            CheckpointError: the JSON blob does not fit the layer, or a factor is not finite.
        """
        return _decode_eight(layer, tensors) if layer.format.number == INT8 else _decode_four(layer, tensors)

    def obstacle(self, weight: QuantizedTensor) -> Obstacle | None:
        """Say why bitsandbytes cannot hold the weight bit for bit."""
        name = weight.format.number.name
        if name in {"nf4", "fp4"}:
            if weight.scales.ndim != 1 or weight.scale_rule != "linear":
                return Obstacle("granularity", "bitsandbytes has one factor for each block of the flattened weight")
            return None
        if name != "int8":
            return Obstacle("number-type", f"bitsandbytes holds nf4, fp4 and int8, the weight is {name}")
        if weight.scale_rule != "absmax127" or weight.zeros is not None or weight.scales.shape[-1] != 1:
            return Obstacle(
                "scale-rule", "bitsandbytes int8 keeps each row's largest value and divides by 127, not a scale"
            )
        return None

    def encode(self, name: str, weight: QuantizedTensor) -> dict[str, torch.Tensor]:
        """Return a module's tensors; a weight that came from double quantization keeps it.

        Raises:
            ConversionRefused: bitsandbytes cannot hold the weight; see ``obstacle``.
        """
        obstacle = self.obstacle(weight)
        if obstacle is not None:
            raise ConversionRefused(f"{name}: {obstacle.reason} ({obstacle.rule})", hint=obstacle.fix)
        return _encode_eight(name, weight) if weight.format.number == INT8 else _encode_four(name, weight)

    def config(
        self, weights: Mapping[str, WeightFormat], ignore: tuple[str, ...], source: CheckpointFacts
    ) -> dict[str, Any]:
        """Return transformers' config.

        Raises:
            ConversionRefused: the layers have several number types, which the config cannot say.
        """
        numbers = {scheme.number.name for scheme in weights.values()}
        if len(numbers) != 1:
            raise ConversionRefused(f"bitsandbytes' config has one number type, the layers have {sorted(numbers)}")
        number = numbers.pop()
        before = source.quantization_config or {}
        four = {
            "bnb_4bit_quant_type": number,
            "bnb_4bit_use_double_quant": bool(before.get("bnb_4bit_use_double_quant", False)),
            "bnb_4bit_compute_dtype": before.get("bnb_4bit_compute_dtype", "bfloat16"),
            "bnb_4bit_quant_storage": "uint8",
        }
        return {
            "quant_method": "bitsandbytes",
            "load_in_4bit": number != "int8",
            "load_in_8bit": number == "int8",
            "llm_int8_skip_modules": [module.removeprefix("re:") for module in ignore] or None,
            "llm_int8_threshold": before.get("llm_int8_threshold", 6.0),
            **(four if number != "int8" else {}),
        }


def _four_bit_layer(facts: CheckpointFacts, name: str, found: Mapping[str, TensorInfo]) -> Layer:
    codes, absmax = found["codes"], found["absmax"]
    kind = "nf4" if "nf4" in found else "fp4"
    if kind not in found:
        raise broken(codes, "layer-incomplete", f"{name}.weight.quant_state.bitsandbytes__nf4 is missing beside it")
    check_dtype(codes, ("U8",))
    check_dtype(absmax, ("F32", "U8"))
    if len(absmax.shape) != 1:
        reason = (
            f"shape is {list(absmax.shape)}, expected one dimension: the model was saved after a forward pass on a CPU"
        )
        hint = "its factors lie transposed for one kernel, and it reloads as garbage; quantize again and save first"
        raise broken(absmax, "absmax-shape", reason, hint=hint)
    state = read_state(facts, found[kind])
    count = state.shape[0] * state.shape[1]
    if codes.shape not in {(-(-count // 2), 1), (1, -(-count // 2))}:
        raise broken(
            codes, "tensor-shape", f"shape is {list(codes.shape)}, but {list(state.shape)} needs {-(-count // 2)} bytes"
        )
    check_shape(absmax, (-(-count // state.blocksize),))
    if absmax.dtype == "U8" and not ("nested_absmax" in found and "nested_map" in found):
        raise broken(
            absmax, "layer-incomplete", "is doubly quantized, but nested_absmax or nested_quant_map is missing"
        )
    roles = {("state" if role == kind else role): info.name for role, info in found.items()}
    scheme = WeightFormat(NUMBER_TYPES[kind], "group", state.blocksize)
    return Layer(name, roles, scheme, state.shape, f"{name}.weight", {"double": absmax.dtype == "U8"})


def _eight_bit_layer(name: str, found: Mapping[str, TensorInfo]) -> Layer:
    codes = found["codes"]
    check_dtype(codes, ("I8",))
    check_rank(codes, 2)
    check_dtype(found["scales"], ("F32",))
    check_shape(found["scales"], (codes.shape[0],))
    roles = {role: info.name for role, info in found.items()}
    return Layer(name, roles, WeightFormat(INT8, "channel"), codes.shape, f"{name}.weight")


def _decode_four(layer: Layer, tensors: Mapping[str, torch.Tensor]) -> QuantizedTensor:
    state = state_of(tensors["state"], layer.tensors["state"])
    factors = _factors(tensors, state)
    check_scales(layer.tensors["absmax"], factors)
    out, columns = layer.shape
    octets = tensors["codes"].reshape(-1)
    codes: torch.Tensor | PackedCodes
    if columns % 2 == 0:
        codes = PackedCodes(octets.reshape(out, columns // 2), NIBBLES, layer.shape)
    else:
        codes = _flat_indices(octets, out * columns).reshape(layer.shape)
    kept = {role: tensors[role] for role in KEPT if role in tensors}
    return QuantizedTensor(layer.format, layer.shape, codes, factors, dtype=state.dtype, extra=kept)


def _factors(tensors: Mapping[str, torch.Tensor], state: QuantState) -> torch.Tensor:
    """Return float32 factors ``[blocks]``, the double quantization undone."""
    import torch

    absmax = tensors["absmax"]
    if absmax.dtype == torch.float32:
        return absmax
    wide = tensors["nested_absmax"].repeat_interleave(state.nested_blocksize)[: absmax.numel()]
    return tensors["nested_map"][absmax.to(torch.int64)].mul_(wide).add_(state.nested_offset)


def _flat_indices(octets: torch.Tensor, count: int) -> torch.Tensor:
    import torch

    return torch.stack([octets >> 4, octets & 0xF], dim=-1).reshape(-1)[:count]


def _encode_four(name: str, weight: QuantizedTensor) -> dict[str, torch.Tensor]:
    import torch
    from torch.nn.functional import pad

    from quantlab.tensors.dequantize import dense_codes
    from quantlab.tensors.floats import BNB_FP4_VALUES, NF4_VALUES

    if isinstance(weight.codes, PackedCodes) and weight.codes.layout == NIBBLES:
        octets = weight.codes.words
    else:
        indices = dense_codes(weight).flatten()
        pairs = pad(indices, (0, indices.numel() % 2), value=_ZERO[weight.format.number.name]).reshape(-1, 2)
        octets = (pairs[:, 0] << 4) | pairs[:, 1]
    kind, kept = weight.format.number.name, weight.extra
    values = NF4_VALUES if kind == "nf4" else BNB_FP4_VALUES
    state = QuantState(kind, weight.format.group_size or 64, weight.dtype, (weight.shape[0], weight.shape[1]))
    absmax = kept.get("absmax", weight.scales)
    tensors = {
        f"{name}.weight": octets.reshape(-1, 1),
        f"{name}.weight.absmax": absmax,
        f"{name}.weight.quant_map": kept.get("map", torch.tensor(values, dtype=torch.float32)),
        f"{name}.weight.quant_state.bitsandbytes__{kind}": kept.get("state", state_tensor(state)),
    }
    if absmax.dtype == torch.uint8:
        tensors[f"{name}.weight.nested_absmax"] = kept["nested_absmax"]
        tensors[f"{name}.weight.nested_quant_map"] = kept["nested_map"]
    return tensors


def _decode_eight(layer: Layer, tensors: Mapping[str, torch.Tensor]) -> QuantizedTensor:
    check_scales(layer.tensors["scales"], tensors["scales"])
    if "layout" in tensors and int(tensors["layout"].flatten()[0]) != 0:
        message = (
            f"{layer.tensors['layout']}: weight format {int(tensors['layout'].flatten()[0])} is not rows (int8-layout)"
        )
        raise CheckpointError(
            message, hint="it was written by bitsandbytes before 0.45 for one kernel; load and save it"
        )
    scales = tensors["scales"].reshape(-1, 1)
    return QuantizedTensor(layer.format, layer.shape, tensors["codes"], scales, scale_rule="absmax127")


def _encode_eight(name: str, weight: QuantizedTensor) -> dict[str, torch.Tensor]:
    import torch

    from quantlab.tensors.dequantize import dense_codes

    return {
        f"{name}.weight": dense_codes(weight),
        f"{name}.SCB": weight.scales.reshape(-1),
        f"{name}.weight_format": torch.tensor(0, dtype=torch.uint8),
    }


CODEC = BitsAndBytes()
