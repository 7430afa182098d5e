"""AMD Quark's checkpoints: integers of 4 and 8 bits, FP8 and MXFP4, one specification for the model or for layers.

::

    4-bit integers, groups    weight            int32 [in, out / 8]      words run along out
                              weight_scale      bfloat16 [groups, out]
                              weight_zero_point int32 [groups, out / 8]  packed the same, also where symmetric
    4-bit integers, channels  weight            int32 [out, in / 8]      words run along in
                              weight_scale [out], weight_zero_point int32 [out / 8]
      a word, low end first: codes 0 2 4 6 1 3 5 7 (``pack_method: reorder``) or in sequence (``order``);
      int4 fields are two's complement, uint4 fields are offset by their zero point
    8-bit integers            weight int8 [out, in]; groups: [in, out]; weight_zero_point int8 of the scale's shape
    FP8                       weight e4m3 [out, in]; weight_scale [] or [out]
    MXFP4                     weight uint8 [out, in / 2], first code in the low nibble
                              weight_scale uint8 [out, in / 32], exponents

    W[o, i] = (q[o, i] - zero) * scale

Source: amd/Quark: quark/torch/utils/pack.py, quark/torch/export/nn/modules/realquantizer.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from quantlab.checkpoint.facts import CheckpointFacts, TensorInfo
from quantlab.errors import ConversionRefused
from quantlab.formats.headers import dense_dtype, options
from quantlab.formats.interface import Layer, Obstacle
from quantlab.formats.obstacles import common_obstacle
from quantlab.formats.quark_config import quark_config, signature, specification_of
from quantlab.formats.roles import broken, check_dtype, check_rank, check_scales, check_shape, layers_by_role
from quantlab.tensors.number_types import FP4_E2M1, FP8_E4M3FN, INT4, INT8
from quantlab.tensors.quantized import PackedCodes, PackLayout, QuantizedTensor, WeightFormat

if TYPE_CHECKING:
    import torch

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
NIBBLES = PackLayout(4, 8, "in")
SUFFIXES = {
    "codes": ".weight",
    "scales": ".weight_scale",
    "zeros": ".weight_zero_point",
    "input_scale": ".input_scale",
    "input_zero": ".input_zero_point",
}
_STORED = {"int4": ("I32",), "uint4": ("I32",), "int8": ("I8",), "fp8_e4m3": ("F8_E4M3",), "fp4": ("U8",)}
_NUMBERS = {"int4": INT4, "uint4": INT4, "int8": INT8, "fp8_e4m3": FP8_E4M3FN, "fp4": FP4_E2M1}


class Quark:
    """Quark's int4, uint4, int8, fp8_e4m3 and MXFP4 weights."""

    id = "quark"

    def layers(self, facts: CheckpointFacts) -> list[Layer]:
        """Pair each quantized weight with its scales.

        Raises:
            CheckpointError: a scheme that cannot be taken apart, or tensors that do not fit their specification.
        """
        grouped = layers_by_role(facts, SUFFIXES, ("codes",), anchor="scales")
        return [_layer(name, found, facts) for name, found in grouped.items()]

    def decode(self, layer: Layer, tensors: Mapping[str, torch.Tensor]) -> QuantizedTensor:
        """Take a layer apart; packed codes stay in their words."""
        scales = tensors["scales"]
        if layer.format.number == FP4_E2M1:
            words = PackedCodes(tensors["codes"], NIBBLES, layer.shape)
            return self._tensor(layer, tensors, words, scales)
        check_scales(layer.tensors["scales"], scales)
        if layer.format.number == FP8_E4M3FN:
            return self._tensor(layer, tensors, tensors["codes"], _column(scales))
        return self._integers(layer, tensors)

    def _integers(self, layer: Layer, tensors: Mapping[str, torch.Tensor]) -> QuantizedTensor:
        grouped = layer.format.granularity == "group"
        scales = tensors["scales"].mT.contiguous() if grouped else _column(tensors["scales"])
        codes: torch.Tensor | PackedCodes
        if layer.format.number == INT4:
            codes = PackedCodes(tensors["codes"], codes_layout(layer.options), layer.shape)
        else:
            codes = tensors["codes"].mT.contiguous() if grouped else tensors["codes"]
        zeros: torch.Tensor | None = _zeros(layer, tensors, tuple(scales.shape))
        if zeros is not None and layer.format.symmetric and not bool(zeros.any()):
            zeros = None
        made = self._tensor(layer, tensors, codes, scales)
        return replace(made, zeros=zeros, format=replace(layer.format, symmetric=zeros is None))

    def _tensor(
        self,
        layer: Layer,
        tensors: Mapping[str, torch.Tensor],
        codes: torch.Tensor | PackedCodes,
        scales: torch.Tensor,
    ) -> QuantizedTensor:
        kept = {role: tensors[role] for role in ("input_scale", "input_zero") if role in tensors}
        return QuantizedTensor(
            layer.format,
            layer.shape,
            codes,
            scales,
            scale_rule="e8m0" if layer.format.number == FP4_E2M1 else "linear",
            input_scale=tensors.get("input_scale"),
            dtype=dense_dtype(layer, scales),
            extra=kept,
        )

    def obstacle(self, weight: QuantizedTensor) -> Obstacle | None:
        """Say why Quark's layout cannot hold the weight bit for bit."""
        found = common_obstacle(self.id, weight)
        if found is not None:
            return found
        scheme = weight.format
        known = {"int4", "int8", "float8_e4m3fn", "float4_e2m1"}
        if len(weight.shape) != 2 or scheme.number.name not in known:
            return Obstacle(
                "number-type", f"quark holds matrices of {', '.join(sorted(known))}, not {scheme.number.name}"
            )
        if scheme.number == FP4_E2M1 and (weight.scale_rule != "e8m0" or scheme.group_size != 32):
            return Obstacle("scale-rule", "quark's fp4 is written in groups of 32 with e8m0 scales only")
        if scheme.granularity == "block" or (scheme.number == FP8_E4M3FN and scheme.granularity == "group"):
            return Obstacle("granularity", f"quark is not written with {scheme.granularity}s of {scheme.number.name}")
        if scheme.number == INT4:
            return _packed_obstacle(weight)
        return None

    def encode(self, name: str, weight: QuantizedTensor) -> dict[str, torch.Tensor]:
        """Return a module's tensors; integers keep a zero point, as Quark writes one always.

        Raises:
            ConversionRefused: the layout cannot hold the weight; see ``obstacle``.
        """
        from quantlab.formats.quark_tensors import encode_layer

        obstacle = self.obstacle(weight)
        if obstacle is not None:
            raise ConversionRefused(f"{name}: {obstacle.reason} ({obstacle.rule})", hint=obstacle.fix)
        return encode_layer(name, weight)

    def config(
        self, weights: Mapping[str, WeightFormat], ignore: tuple[str, ...], source: CheckpointFacts
    ) -> dict[str, Any]:
        """Return Quark's config with its ``export`` key."""
        return quark_config(weights, ignore, source)


def codes_layout(settings: Mapping[str, Any]) -> PackLayout:
    """Return the layout of 4-bit codes from a layer's options."""
    grouped, signed = settings["grouped"], settings["dtype_word"] == "int4"
    return PackLayout(
        4,
        32,
        "out" if grouped else "in",
        transposed=grouped,
        order=ORDER if settings["reorder"] else None,
        bias=0 if signed else 8,
        dense=True,
        signed=signed,
    )


def _packed_obstacle(weight: QuantizedTensor) -> Obstacle | None:
    out, columns = weight.shape
    if out % 8 or columns % 8:
        return Obstacle("padding", f"quark packs 8 codes a word, and {out} x {columns} is no multiple")
    if weight.format.granularity == "tensor":
        return Obstacle("granularity", "quark's 4-bit integers have one scale a channel or a group")
    return None


def _layer(name: str, found: Mapping[str, TensorInfo], facts: CheckpointFacts) -> Layer:
    codes, scales = found["codes"], found["scales"]
    stage = specification_of(name, facts.quantization_config or {}, codes)
    word, granularity, size = signature(stage)
    if word not in _STORED:
        raise broken(codes, "scheme", f"its specification is {word or 'none'}, which cannot be taken apart")
    check_dtype(codes, _STORED[word])
    check_rank(codes, 2)
    grouped = granularity == "group" and word != "fp4"
    rows, columns = codes.shape if not grouped else codes.shape[::-1]
    if word in {"int4", "uint4"}:
        rows, columns = (rows * 8, columns) if grouped else (rows, columns * 8)
    elif word == "fp4":
        columns *= 2
    _check_scales(scales, granularity, (rows, columns), size, transposed=grouped)
    if word in {"int4", "uint4"} and "zeros" in found:
        check_dtype(found["zeros"], ("I32",))
    scheme = WeightFormat(
        _NUMBERS[word],
        granularity,
        size if granularity == "group" else None,
        symmetric=word == "int4" or bool(stage.get("symmetric", True)),
        scale_type="e8m0" if word == "fp4" else None,
    )
    export = (facts.quantization_config or {}).get("export")
    method = export.get("pack_method", "reorder") if isinstance(export, Mapping) else "reorder"
    settings = {"dtype_word": word, "grouped": grouped, "reorder": method == "reorder", **options(facts)}
    return Layer(
        name, {role: info.name for role, info in found.items()}, scheme, (rows, columns), f"{name}.weight", settings
    )


def _check_scales(scales: TensorInfo, granularity: str, shape: tuple[int, int], size: int, *, transposed: bool) -> None:
    rows, columns = shape
    if granularity == "tensor":
        if scales.shape not in {(), (1,)}:
            check_shape(scales, ())
        return
    if granularity == "channel":
        check_shape(scales, (rows,))
        return
    if size <= 0 or columns % size:
        raise broken(scales, "group-size", f"groups of {size} do not divide {columns} inputs")
    wanted = (rows, columns // size)
    check_shape(scales, wanted[::-1] if transposed else wanted)


def _column(scales: torch.Tensor) -> torch.Tensor:
    return scales.reshape(-1, 1)


def _zeros(layer: Layer, tensors: Mapping[str, torch.Tensor], shape: tuple[int, ...]) -> torch.Tensor | None:
    """Return zero points of the signed code, ``int16`` of the scales' shape, or None where there are none."""
    import torch

    from quantlab.tensors.packing import unpack

    stored = tensors.get("zeros")
    if stored is None:
        return None
    if layer.format.number == INT8:
        zeros = stored.mT if layer.options["grouped"] else stored.reshape(-1, 1)
        return zeros.to(torch.int16)
    layout = codes_layout(layer.options)
    if layer.options["grouped"]:
        words, shape_of = stored, (shape[0], shape[1])
    else:
        layout = replace(layout, axis="in")
        words, shape_of = stored.reshape(1, -1), (1, shape[0])
    fields = unpack(PackedCodes(words, layout, shape_of)).to(torch.int16)
    return fields if layer.options["grouped"] else fields.reshape(-1, 1)


CODEC = Quark()
