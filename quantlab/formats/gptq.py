"""GPTQ as AutoGPTQ and GPTQModel store it: matrices ``[in, out]``, codes packed along ``in`` into 32-bit words.

::

    qweight [in * bits / 32, out] int32    4 bit: word k of column o holds q[8k..8k+7, o], first code lowest
                                           3 bit: 32 codes run on through 3 words
    qzeros  [groups, out * bits / 32] int32  see ``gptq_zeros``
    scales  [groups, out] float16
    g_idx   [in] int32                     group of each input; i // group_size unless act order

    W[o, i] = (q[i, o] - zero[g_idx[i], o]) * scale[g_idx[i], o]

Source: ModelCloud/GPTQModel: gptqmodel/nn_modules/qlinear/__init__.py (``pack_original``, ``dequantize_weight``).
``gptq`` is version 1 and ``gptq_v2`` version 2 of the zero points; both read both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from quantlab.checkpoint.facts import CheckpointFacts, TensorInfo
from quantlab.errors import CheckpointError, ConversionRefused
from quantlab.formats.gptq_config import (
    VERSIONS,
    commonest,
    dynamic_rules,
    has_act_order,
    numbers,
    stated_version,
    written_by_gptqmodel,
)
from quantlab.formats.headers import dense_dtype, options
from quantlab.formats.integer_words import integer_obstacle
from quantlab.formats.interface import Layer, Obstacle
from quantlab.formats.roles import broken, check_dtype, check_rank, check_scales, check_shape, layers_by_role
from quantlab.tensors.number_types import signed_int
from quantlab.tensors.quantized import PackedCodes, PackLayout, QuantizedTensor, WeightFormat
from quantlab.version import __version__

if TYPE_CHECKING:
    import torch

BITS = (2, 3, 4, 8)
SUFFIXES = {"codes": ".qweight", "zeros": ".qzeros", "scales": ".scales", "groups": ".g_idx"}


def codes_layout(bits: int) -> PackLayout:
    """Return the layout of ``qweight`` for logical codes ``[out, in]``."""
    return PackLayout(bits, 32, "in", transposed=True, bias=2 ** (bits - 1), dense=True)


class Gptq:
    """GPTQ with version 1 or version 2 zero points.

    Attributes:
        id: ``gptq`` or ``gptq_v2``.
        version: what ``encode`` writes; ``decode`` reads what the layer says.
    """

    def __init__(self, name: str) -> None:
        self.id = name
        self.version = VERSIONS[name]

    def layers(self, facts: CheckpointFacts) -> list[Layer]:
        """Group qweight, qzeros, scales and g_idx.

        Raises:
            CheckpointError: a layout that is not GPTQ's own (marlin, bitblas, planar), or a broken layer.
        """
        config = facts.quantization_config or {}
        version = stated_version(config, facts.path)
        by_word = written_by_gptqmodel(config)
        grouped = layers_by_role(facts, SUFFIXES, ("zeros", "scales"), anchor="codes")
        return [gptq_layer(name, found, facts, version, by_word=by_word) for name, found in grouped.items()]

    def decode(self, layer: Layer, tensors: Mapping[str, torch.Tensor]) -> QuantizedTensor:
        """Take a layer apart; its codes stay in their words."""
        return decode_gptq(layer, tensors)

    def obstacle(self, weight: QuantizedTensor) -> Obstacle | None:
        """Say why GPTQ cannot hold the weight bit for bit."""
        found = integer_obstacle(weight, "GPTQ", BITS)
        if found is not None or weight.zeros is None or self.version == 2:
            return found
        if bool((weight.zeros == weight.format.number.minimum).any()):
            reason = "a zero point is 0, which version 1 (stored minus one) cannot hold"
            return Obstacle("v1-zero", reason, "--to-format gptq_v2 holds it")
        return None

    def encode(self, name: str, weight: QuantizedTensor) -> dict[str, torch.Tensor]:
        """Return qweight, qzeros, scales and g_idx of a module.

        Raises:
            ConversionRefused: GPTQ cannot hold the weight; see ``obstacle``.
        """
        obstacle = self.obstacle(weight)
        if obstacle is not None:
            raise ConversionRefused(f"{name}: {obstacle.reason} ({obstacle.rule})", hint=obstacle.fix)
        return encode_gptq(name, weight, self.version)

    def config(
        self, weights: Mapping[str, WeightFormat], ignore: tuple[str, ...], source: CheckpointFacts
    ) -> dict[str, Any]:
        """Return GPTQModel's config: the commonest scheme, and ``dynamic`` rules for layers that differ."""
        common = commonest(weights.values())
        return {
            "quant_method": "gptq",
            **numbers(common),
            "desc_act": has_act_order(source),
            "lm_head": "lm_head" in weights,
            "checkpoint_format": self.id,
            "format": self.id,
            "pack_dtype": "int32",
            "true_sequential": True,
            "dynamic": dynamic_rules(weights, common, ignore) or None,
            "meta": {"quantizer": [f"quantlab:{__version__}"]},
        }


def gptq_layer(
    name: str, found: Mapping[str, TensorInfo], facts: CheckpointFacts, version: int, *, by_word: bool
) -> Layer:
    """Check a layer's headers and describe it.

    Raises:
        CheckpointError: shapes or dtypes that do not belong together.
    """
    config = facts.quantization_config or {}
    codes, zeros, scales = found["codes"], found["zeros"], found["scales"]
    check_dtype(codes, ("I32",))
    check_dtype(zeros, ("I32",))
    check_dtype(scales, ("F16", "BF16", "F32"))
    for info in (codes, zeros, scales):
        check_rank(info, 2)
    rows, out = codes.shape
    groups = scales.shape[0]
    check_shape(scales, (groups, out))
    bits = _bits(zeros, scales, config)
    columns = found["groups"].shape[0] if "groups" in found and found["groups"].shape[0] else rows * 32 // bits
    if -(-columns * bits // 32) != rows:
        raise broken(codes, "tensor-shape", f"{rows} rows of words do not hold {columns} inputs of {bits} bits")
    size = _group_size(columns, groups, config)
    scheme = WeightFormat(
        signed_int(bits),
        "channel" if size is None else "group",
        size,
        symmetric=bool(config.get("sym", True)),
    )
    return Layer(
        name,
        {role: info.name for role, info in found.items()},
        scheme,
        (out, columns),
        f"{name}.weight",
        {"version": version, "by_word": by_word, **options(facts)},
    )


def _bits(zeros: TensorInfo, scales: TensorInfo, config: Mapping[str, Any]) -> int:
    """Return a layer's bits as its zero points' width tells them: they differ from layer to layer (``dynamic``)."""
    groups, out = scales.shape
    stated = config.get("bits")
    fitting = [bits for bits in BITS if zeros.shape == (groups, -(-out * bits // 32))]
    if not fitting:
        reason = f"shape is {list(zeros.shape)}, which fits {out} outputs in {groups} groups with none of {BITS} bits"
        raise broken(zeros, "tensor-shape", reason)
    return int(stated) if stated in fitting else fitting[0]


def _group_size(columns: int, groups: int, config: Mapping[str, Any]) -> int | None:
    """Return the group size, or None where whole rows share a scale."""
    stated = config.get("group_size", 128)
    if groups == 1:
        return columns if stated == columns else None
    if isinstance(stated, int) and stated > 0 and -(-columns // stated) == groups:
        return stated
    return -(-columns // groups)


def decode_gptq(layer: Layer, tensors: Mapping[str, torch.Tensor]) -> QuantizedTensor:
    """Take one GPTQ layer apart.

    Raises:
        CheckpointError: ``g_idx`` points outside the groups.
    """
    from quantlab.formats.gptq_zeros import read_zeros

    scheme, (out, columns) = layer.format, (layer.shape[0], layer.shape[1])
    bits = scheme.number.bits
    check_scales(layer.tensors["scales"], tensors["scales"])
    scales = tensors["scales"].mT.contiguous()
    version, by_word = layer.options["version"], layer.options["by_word"]
    zeros: torch.Tensor | None = read_zeros(
        tensors["zeros"], bits, (out, scales.shape[1]), version=version, by_word=by_word
    )
    if scheme.symmetric and zeros is not None and not bool(zeros.any()):
        zeros = None
    doubts: tuple[str, ...] = ()
    if zeros is not None and version == 1 and not by_word and bool((zeros == -(2 ** (bits - 1))).any()):
        doubts = ("a version 1 zero point of 0 underflowed when it was stored, so its neighbours may be wrong too",)
    return QuantizedTensor(
        replace(scheme, symmetric=zeros is None),
        layer.shape,
        PackedCodes(tensors["codes"], codes_layout(bits), layer.shape),
        scales,
        zeros=zeros,
        group_map=_group_map(layer, tensors, scales.shape[1], columns),
        dtype=dense_dtype(layer, scales),
        doubts=doubts,
    )


def _group_map(layer: Layer, tensors: Mapping[str, torch.Tensor], groups: int, columns: int) -> torch.Tensor | None:
    """Return ``g_idx`` where it says more than ``i // group_size``."""
    import torch

    stored = tensors.get("groups")
    if stored is None or stored.numel() == 0 or groups == 1:
        return None
    if int(stored.min()) < 0 or int(stored.max()) >= groups:
        message = f"{layer.tensors['groups']}: group {int(stored.max())} is outside the {groups} groups (group-map)"
        raise CheckpointError(message)
    plain = torch.arange(columns, dtype=torch.int32, device=stored.device) // (layer.format.group_size or columns)
    return None if torch.equal(stored.to(torch.int32), plain) else stored.to(torch.int32)


def encode_gptq(name: str, weight: QuantizedTensor, version: int) -> dict[str, torch.Tensor]:
    """Return the four tensors of one layer; the caller has asked for obstacles."""
    import torch

    from quantlab.formats.gptq_zeros import write_zeros
    from quantlab.tensors.packing import pack, relayout

    bits = weight.format.number.bits
    out, columns = weight.shape
    layout = codes_layout(bits)
    packed = relayout(weight.codes, layout) if isinstance(weight.codes, PackedCodes) else pack(weight.codes, layout)
    zeros = torch.zeros(weight.scales.shape, dtype=torch.int16) if weight.zeros is None else weight.zeros
    zeros = zeros.expand(out, -1)
    scales = weight.scales.to(torch.float16).expand(out, -1)
    size = weight.format.group_size or columns
    groups = weight.group_map
    if groups is None:
        groups = torch.arange(columns, dtype=torch.int32, device=scales.device) // (columns if size < 0 else size)
    return {
        f"{name}.qweight": packed.words,
        f"{name}.qzeros": write_zeros(zeros, bits, version=version),
        f"{name}.scales": scales.mT.contiguous(),
        f"{name}.g_idx": groups.to(torch.int32),
    }


V1 = Gptq("gptq")
V2 = Gptq("gptq_v2")
