"""One quantized weight, independent of any file format.

A matrix ``W`` of shape ``[out, in]`` (or ``[experts, out, in]``) is kept as codes and the numbers that turn
codes back into weights. Integers are always signed here: GPTQ's and AWQ's unsigned field ``u`` is
``q + 2^(bits-1)``, so one symmetric int4 weight has the same codes whichever format it came from::

    integer     W[o, i] = (q[o, i] - zero[o, g(i)]) * scale[o, g(i)]  (+ offset[o, g(i)])
    float       W[o, i] = value(q[o, i]) * scale[o, g(i)] * global_scale
    codebook    W[o, i] = table[q[o, i]] * scale[o, g(i)]

    g(i) = i // group_size, or group_map[i] where an act-order checkpoint carries one;
    block scales are [ceil(out / rows), ceil(in / columns)]; one scale a tensor is [1, 1]; a channel's [out, 1].

A repack is decode then encode with these tensors untouched. Packed words travel as they are (``PackedCodes``)
for as long as nobody needs single codes: a symmetric GPTQ weight becomes a pack-quantized one by transposing
32-bit words.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from quantlab.tensors.number_types import NumberType

if TYPE_CHECKING:
    import torch

Granularity = Literal["tensor", "channel", "group", "block"]


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """The frozen description of how a weight's numbers are made (no tensors).

    Attributes:
        number: element type of the codes.
        granularity: what shares one scale.
        group_size: elements along ``in`` of a group, or None.
        block: ``(rows, columns)`` of a block, or None.
        symmetric: there are no zero points (``zeros`` is None).
        scale_type: number type of the scales where the scheme fixes one: ``e8m0`` (MX), ``float8_e4m3fn``
            (NVFP4, together with a global scale), ``float32`` (DeepSeek blocks); None means the dtype of the
            weights that were quantized. Left out of comparisons: the tensors themselves tell.
    """

    number: NumberType
    granularity: Granularity
    group_size: int | None = None
    block: tuple[int, int] | None = None
    symmetric: bool = True
    scale_type: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class PackLayout:
    """How codes share machine words.

    Attributes:
        bits: bits of one field.
        word_bits: 32 (int32 words) or 8 (uint8 bytes).
        axis: axis of the logical ``[out, in]`` matrix along which neighbours share a word.
        transposed: the stored matrix is ``[in, out]``-major (GPTQ, AWQ), not ``[out, in]``.
        order: field ``i`` of a word (from the low end) holds the word's code ``order[i]`` (AWQ gemm:
            0, 2, 4, 6, 1, 3, 5, 7); None means in sequence.
        bias: what was added to the signed code to make the stored unsigned field (2^(bits-1) mostly); 0 for
            float codes and codebook indices, which are unsigned as they are.
        dense: fields cross word borders (GPTQ 3 bit: 32 codes in 3 words); otherwise each word holds
            ``word_bits // bits`` whole fields and wastes the rest.
        signed: fields are two's complement integers (Quark); ``bias`` is 0 then.
    """

    bits: int
    word_bits: int
    axis: Literal["in", "out"]
    transposed: bool = False
    order: tuple[int, ...] | None = None
    bias: int = 0
    dense: bool = False
    signed: bool = False


@dataclass(frozen=True)
class PackedCodes:
    """Codes still in the words of a file.

    Attributes:
        words: int32 or uint8 tensor as stored.
        layout: how to take it apart.
        shape: logical shape, ``(out, in)`` or ``(experts, out, in)``.
    """

    words: torch.Tensor
    layout: PackLayout
    shape: tuple[int, ...]


@dataclass(frozen=True)
class QuantizedTensor:
    """A weight as codes, scales and what else its scheme has.

    Attributes:
        format: the scheme.
        shape: logical shape of the weight.
        codes: dense codes (``int8`` signed integers, a float8 dtype, ``uint8`` indices) of the logical shape,
            or ``PackedCodes``.
        scales: ``[out, groups]``, ``[out, 1]``, ``[1, 1]`` or a grid of blocks, with a leading experts axis
            where ``shape`` has one; in the dtype of the file (e8m0 scales as ``uint8`` exponents). One
            dimension: one scale for every ``group_size`` elements of the flattened weight (bitsandbytes).
        zeros: integer zero points of the signed code, same shape as ``scales``, ``int16``; None if symmetric.
        offsets: float minimum added after scaling (GGUF Q4_1, HQQ), same shape as ``scales``; None mostly.
        group_map: int32 ``[in]``, group of each column (act order); None means ``i // group_size``.
        global_scale: float32 factor of the whole tensor (NVFP4), as a multiplier; None mostly.
        global_scale_stored: the bytes of that factor as the file holds it, with ``global_scale_inverse`` telling
            that the file stores the reciprocal (compressed-tensors); lets an encoder give back the same bits.
        scale_rule: ``"linear"``, ``"e8m0"`` (2^(s-127)), ``"inverse"`` where the file's scale divides, or
            ``"absmax127"`` where it is a row's largest value and a second factor of 1/127 follows (bitsandbytes int8).
        input_scale: static activation scale that belongs to the layer, passed through unchanged.
        dtype: name of the dtype that dense weights of this layer have in the model (``bfloat16``).
        extra: tensors of the layer that only its own format understands (bias excluded), passed through.
        dense_transposed: a dense checkpoint keeps this weight as ``(..., in, out)`` (gpt-oss experts).
        doubts: what in the file can be read in two ways (GPTQ v1 zero points of 0); a conversion that must be exact
            stops at one.
    """

    format: WeightFormat
    shape: tuple[int, ...]
    codes: torch.Tensor | PackedCodes
    scales: torch.Tensor
    zeros: torch.Tensor | None = None
    offsets: torch.Tensor | None = None
    group_map: torch.Tensor | None = None
    global_scale: torch.Tensor | None = None
    global_scale_stored: torch.Tensor | None = None
    global_scale_inverse: bool = False
    scale_rule: Literal["linear", "e8m0", "inverse", "absmax127"] = "linear"
    input_scale: torch.Tensor | None = None
    dtype: str = "bfloat16"
    extra: dict[str, torch.Tensor] = field(default_factory=dict)
    dense_transposed: bool = False
    doubts: tuple[str, ...] = ()

    def with_codes(self, codes: torch.Tensor | PackedCodes) -> QuantizedTensor:
        """Return the same weight with its codes in another arrangement."""
        return replace(self, codes=codes)
