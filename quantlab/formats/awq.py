"""AWQ as AutoAWQ and GPTQModel store it, in three layouts that ``version`` (or ``format``) tells apart.

::

    gemm       qweight [in, out / 8] int32        words run along out, codes in the order 0 2 4 6 1 3 5 7
               qzeros  [groups, out / 8] int32    the same
               scales  [groups, out] float16
    gemv       qweight [out, in / 8] int32        words run along in, codes in sequence
               qzeros  [out, groups / 8] int32    padded with zeros, the same
               scales  [out, padded groups] float16
    gemv_fast  qweight [out / 4, in] int16        see ``awq_fast``
               qzeros  [padded groups, out] f16   already multiplied: -(zero * scale)
               scales  [padded groups, out] f16

    W[o, i] = (q[o, i] - zero[o, g]) * scale[o, g]          gemm word, low end first: codes 0 2 4 6 1 3 5 7

Other widths than 4 bit (GPTQModel's gemm) are a plain stream. Only gemm is written.
Source: casper-hansen/AutoAWQ: awq/modules/linear/gemm.py, gemv.py, gemv_fast.py; ModelCloud/GPTQModel:
gptqmodel/quantization/awq/utils/packing_utils.py, gptqmodel/nn_modules/qlinear/gemv_awq.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from quantlab.checkpoint.facts import CheckpointFacts, TensorInfo
from quantlab.errors import CheckpointError, ConversionRefused
from quantlab.formats.gptq_config import commonest
from quantlab.formats.headers import dense_dtype, options
from quantlab.formats.integer_words import integer_obstacle
from quantlab.formats.interface import Layer, Obstacle
from quantlab.formats.roles import broken, check_dtype, check_rank, check_scales, check_shape, layers_by_role
from quantlab.tensors.number_types import signed_int
from quantlab.tensors.quantized import PackedCodes, PackLayout, QuantizedTensor, WeightFormat

if TYPE_CHECKING:
    import torch

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
SUFFIXES = {"codes": ".qweight", "zeros": ".qzeros", "scales": ".scales"}
LAYOUTS = ("gemm", "gemv", "gemv_fast")


def gemm_layout(bits: int, *, bias: int) -> PackLayout:
    """Return the layout of gemm's ``qweight`` (and, with bias 0, of the raw fields of ``qzeros``)."""
    order = ORDER if bits == 4 else None
    return PackLayout(bits, 32, "out", transposed=True, order=order, bias=bias, dense=True)


def gemv_layout(bits: int, *, bias: int) -> PackLayout:
    """Return the layout of gemv's ``qweight`` and ``qzeros``."""
    return PackLayout(bits, 32, "in", bias=bias, dense=True)


class Awq:
    """AWQ; decodes three layouts, encodes gemm."""

    id = "awq"

    def layers(self, facts: CheckpointFacts) -> list[Layer]:
        """Group qweight, qzeros and scales.

        Raises:
            CheckpointError: a layout that is not known, or a broken layer.
        """
        config = facts.quantization_config or {}
        layout = stated_layout(config, facts.path)
        grouped = layers_by_role(facts, SUFFIXES, ("zeros", "scales"), anchor="codes")
        return [awq_layer(name, found, facts, layout, symmetric=False) for name, found in grouped.items()]

    def decode(self, layer: Layer, tensors: Mapping[str, torch.Tensor]) -> QuantizedTensor:
        """Take a layer apart."""
        check_scales(layer.tensors["scales"], tensors["scales"])
        match layer.options["layout"]:
            case "gemv":
                return _decode_gemv(layer, tensors)
            case "gemv_fast":
                from quantlab.formats.awq_fast import decode_fast

                return decode_fast(layer, tensors)
            case _:
                return decode_gemm(layer, tensors)

    def obstacle(self, weight: QuantizedTensor) -> Obstacle | None:
        """Say why AWQ cannot hold the weight bit for bit."""
        found = integer_obstacle(weight, "AWQ", (4,))
        if found is not None:
            return found
        if weight.group_map is not None:
            return Obstacle("act-order", "AWQ has no group map, and the weight's columns are grouped by act order")
        columns, groups = weight.shape[-1], weight.scales.shape[-1]
        if columns % groups:
            return Obstacle("padding", f"AWQ needs whole groups, and {groups} do not divide {columns} columns")
        return None

    def encode(self, name: str, weight: QuantizedTensor) -> dict[str, torch.Tensor]:
        """Return a module's qweight, qzeros and scales in the gemm layout.

        Raises:
            ConversionRefused: AWQ cannot hold the weight; see ``obstacle``.
        """
        obstacle = self.obstacle(weight)
        if obstacle is not None:
            raise ConversionRefused(f"{name}: {obstacle.reason} ({obstacle.rule})", hint=obstacle.fix)
        return encode_gemm(name, weight)

    def config(
        self, weights: Mapping[str, WeightFormat], ignore: tuple[str, ...], source: CheckpointFacts
    ) -> dict[str, Any]:
        """Return AutoAWQ's config.

        Raises:
            ConversionRefused: the layers have several schemes, which the config cannot say.
        """
        common = commonest(weights.values())
        for name, scheme in weights.items():
            if _group(scheme) != _group(common):
                message = (
                    f"{name} has groups of {_group(scheme)}, others of {_group(common)}; AWQ's config has one size"
                )
                raise ConversionRefused(message, hint="--to-format gptq can say both")
        return {
            "quant_method": "awq",
            "version": "gemm",
            "bits": common.number.bits,
            "group_size": _group(common),
            "zero_point": True,
            "sym": all(scheme.symmetric for scheme in weights.values()),
            "modules_to_not_convert": [module.removeprefix("re:") for module in ignore] or None,
        }


def _group(scheme: WeightFormat) -> int:
    return scheme.group_size or -1 if scheme.granularity == "group" else -1


def stated_layout(config: Mapping[str, Any], path: str) -> str:
    """Return ``gemm``, ``gemv`` or ``gemv_fast`` from ``version`` (or ``format``); absent means gemm.

    Raises:
        CheckpointError: another layout.
    """
    stated = str(config.get("version") or config.get("checkpoint_format") or config.get("format") or "gemm").lower()
    if stated not in LAYOUTS:
        message = f"{path}: quantization_config.version is {stated!r}, a layout that cannot be taken apart"
        raise CheckpointError(message, hint=f"known layouts: {', '.join(LAYOUTS)}")
    return stated


def awq_layer(
    name: str, found: Mapping[str, TensorInfo], facts: CheckpointFacts, layout: str, *, symmetric: bool
) -> Layer:
    """Check a layer's headers and describe it.

    Args:
        name: module name.
        found: role to header.
        facts: the checkpoint.
        layout: one of ``LAYOUTS``.
        symmetric: what a config without ``sym`` means.

    Raises:
        CheckpointError: shapes or dtypes that do not belong together.
    """
    config = facts.quantization_config or {}
    codes, zeros, scales = found["codes"], found["zeros"], found["scales"]
    check_dtype(codes, ("I16",) if layout == "gemv_fast" else ("I32",))
    check_dtype(zeros, ("F16",) if layout == "gemv_fast" else ("I32",))
    check_dtype(scales, ("F16", "BF16"))
    for info in (codes, zeros, scales):
        check_rank(info, 2)
    bits = int(config.get("bits") or config.get("w_bit") or 4)
    stated = config.get("group_size", config.get("q_group_size", 128))
    size = stated if isinstance(stated, int) and stated > 0 else 0
    shape, groups = _SHAPES[layout](found, _Stated(bits, size))
    out, columns = shape
    width = columns // groups
    scheme = WeightFormat(
        signed_int(bits),
        "channel" if groups == 1 and size != columns else "group",
        None if groups == 1 and size != columns else width,
        symmetric=bool(config.get("sym", symmetric)) or config.get("zero_point") is False,
    )
    names = {role: info.name for role, info in found.items()}
    return Layer(
        name, names, scheme, (out, columns), f"{name}.weight", {"layout": layout, "groups": groups, **options(facts)}
    )


@dataclass(frozen=True, slots=True)
class _Stated:
    """What the config says of every layer; a group size of 0 means whole rows."""

    bits: int
    group_size: int


def _gemm_shape(found: Mapping[str, TensorInfo], stated: _Stated) -> tuple[tuple[int, int], int]:
    codes, zeros, scales = found["codes"], found["zeros"], found["scales"]
    columns, (groups, out) = codes.shape[0], scales.shape
    words = -(-out * stated.bits // 32)
    check_shape(codes, (columns, words))
    check_shape(zeros, (groups, words))
    if columns % groups:
        raise broken(scales, "tensor-shape", f"{groups} groups do not divide {columns} inputs")
    return (out, columns), groups


def _gemv_shape(found: Mapping[str, TensorInfo], stated: _Stated) -> tuple[tuple[int, int], int]:
    codes, zeros, scales = found["codes"], found["zeros"], found["scales"]
    out, words = codes.shape
    columns = words * 32 // stated.bits
    groups = columns // (stated.group_size or columns)
    width = zeros.shape[1]
    check_shape(zeros, (out, width))
    check_shape(scales, (out, width * 32 // stated.bits))
    if groups > width * 32 // stated.bits:
        raise broken(zeros, "tensor-shape", f"{width} words do not hold {groups} groups")
    return (out, columns), groups


def _fast_shape(found: Mapping[str, TensorInfo], stated: _Stated) -> tuple[tuple[int, int], int]:
    codes, zeros, scales = found["codes"], found["zeros"], found["scales"]
    out, columns = codes.shape[0] * 4, codes.shape[1]
    groups = columns // (stated.group_size or columns)
    check_shape(scales, (scales.shape[0], out))
    check_shape(zeros, scales.shape)
    if groups > scales.shape[0] or columns % 64:
        raise broken(codes, "tensor-shape", f"{columns} inputs in {groups} groups do not fit {scales.shape[0]} scales")
    return (out, columns), groups


_SHAPES = {"gemm": _gemm_shape, "gemv": _gemv_shape, "gemv_fast": _fast_shape}


def decode_gemm(layer: Layer, tensors: Mapping[str, torch.Tensor]) -> QuantizedTensor:
    """Take a gemm layer apart; its codes stay in their words."""
    from quantlab.tensors.packing import unpack

    bits, half = layer.format.number.bits, 2 ** (layer.format.number.bits - 1)
    out, groups = layer.shape[0], tensors["scales"].shape[0]
    fields = unpack(PackedCodes(tensors["zeros"], gemm_layout(bits, bias=0), (out, groups)))
    codes = PackedCodes(tensors["codes"], gemm_layout(bits, bias=half), layer.shape)
    return _asymmetric(layer, codes, tensors["scales"].mT.contiguous(), fields)


def _decode_gemv(layer: Layer, tensors: Mapping[str, torch.Tensor]) -> QuantizedTensor:
    from quantlab.tensors.packing import unpack

    bits, half = layer.format.number.bits, 2 ** (layer.format.number.bits - 1)
    out, groups = layer.shape[0], layer.options["groups"]
    padded = tensors["scales"].shape[1]
    fields = unpack(PackedCodes(tensors["zeros"], gemv_layout(bits, bias=0), (out, padded)))[:, :groups]
    codes = PackedCodes(tensors["codes"], gemv_layout(bits, bias=half), layer.shape)
    return _asymmetric(layer, codes, tensors["scales"][:, :groups].contiguous(), fields)


def _asymmetric(layer: Layer, codes: PackedCodes, scales: torch.Tensor, fields: torch.Tensor) -> QuantizedTensor:
    import torch

    zeros: torch.Tensor | None = fields.to(torch.int16) - 2 ** (layer.format.number.bits - 1)
    if layer.format.symmetric and zeros is not None and not bool(zeros.any()):
        zeros = None
    scheme = replace(layer.format, symmetric=zeros is None)
    return QuantizedTensor(scheme, layer.shape, codes, scales, zeros=zeros, dtype=dense_dtype(layer, scales))


def encode_gemm(name: str, weight: QuantizedTensor) -> dict[str, torch.Tensor]:
    """Return the three tensors of one gemm layer; the caller has asked for obstacles."""
    import torch

    from quantlab.tensors.packing import pack, relayout

    bits, half, out = weight.format.number.bits, 2 ** (weight.format.number.bits - 1), weight.shape[0]
    layout = gemm_layout(bits, bias=half)
    packed = relayout(weight.codes, layout) if isinstance(weight.codes, PackedCodes) else pack(weight.codes, layout)
    shape = weight.scales.shape
    device = weight.scales.device
    zeros = torch.zeros(shape, dtype=torch.int16, device=device) if weight.zeros is None else weight.zeros
    fields = (zeros.expand(out, -1) + half).to(torch.uint8)
    return {
        f"{name}.qweight": packed.words,
        f"{name}.qzeros": pack(fields, gemm_layout(bits, bias=0)).words,
        f"{name}.scales": weight.scales.to(torch.float16).expand(out, -1).mT.contiguous(),
    }


CODEC = Awq()
