"""Shapes of codes, scales and zero points against each other and the config's numbers.

For a weight of ``out x in`` with ``b`` bits and groups of ``g`` columns, 32-bit words::

    gptq   qweight [in*b/32, out]   scales [in/g, out]   qzeros [in/g, out*b/32]   g_idx [in]
    awq    qweight [in, out*b/32]   scales [in/g, out]   qzeros [in/g, out*b/32]
    pack-quantized   weight_packed [out, in*b/32]   weight_scale [out, in/g]
    4-bit floats     weight(_packed) uint8 [out, in/2]   weight_scale [out, in/g]
    fp8 blocks       weight [out, in]   weight_scale_inv [ceil(out/r), ceil(in/c)]

Sources are in the formats' data and in quantlab.formats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from quantlab.checkpoint.facts import Finding, TensorInfo, WeightScheme
from quantlab.checkpoint.layers import LayerTensors
from quantlab.checkpoint.open import Opened
from quantlab.checkpoint.rules.interface import MOST

_FLOATS = {"F16", "BF16", "F32"}


def check(opened: Opened) -> Iterator[Finding]:
    """Check each layer of the formats whose layout is known."""
    judge = _JUDGES.get(opened.facts.format) or _JUDGES.get(opened.facts.format.partition("/")[0])
    if judge is None:
        return
    wrong: list[Finding] = []
    for layer in opened.layout.layers.values():
        weights = layer.weights or opened.facts.scheme.weights
        if weights is None or layer.codes is None:
            continue
        message = judge(layer, layer.codes, weights)
        if message is not None:
            where = f"{layer.codes.file}: {layer.module}"
            wrong.append(Finding("packed-shape", "error", where, f"{layer.module}: {message}",
                                 "the config does not describe these tensors"))  # fmt: skip
    yield from wrong[:MOST]
    if len(wrong) > MOST:
        yield Finding("packed-shape", "error", "", f"{len(wrong)} layers have shapes that the config does not describe")


def _scale(layer: LayerTensors) -> TensorInfo | None:
    return next(iter(layer.scales.values()), None)


def _groups(columns: int, weights: WeightScheme) -> int | None:
    """How many groups a row has, or None if the scheme has none."""
    if weights.granularity == "channel" or weights.group_size == -1:
        return 1
    if weights.granularity == "group" and isinstance(weights.group_size, int) and weights.group_size > 0:
        return -(-columns // weights.group_size)
    return None


def _gptq(layer: LayerTensors, codes: TensorInfo, weights: WeightScheme) -> str | None:
    scale, zeros = _scale(layer), next(iter(layer.zeros.values()), None)
    if len(codes.shape) != 2 or scale is None or len(scale.shape) != 2 or not weights.bits:
        return None if len(codes.shape) == 2 else f"qweight has shape {list(codes.shape)}"
    columns, rows = codes.shape[0] * 32 / weights.bits, codes.shape[1]
    index = layer.extra.get(".g_idx")
    if index is not None and index.shape and index.shape[0] != columns:
        return (
            f"qweight {list(codes.shape)} holds {columns:g} columns of {weights.bits} bits, g_idx has {index.shape[0]}"
        )
    return _compare(scale, (_groups(int(columns), weights), rows)) or (
        _compare(zeros, (scale.shape[0], round(rows * weights.bits / 32))) if zeros is not None else None
    )


def _awq(layer: LayerTensors, codes: TensorInfo, weights: WeightScheme) -> str | None:
    scale = _scale(layer)
    if codes.dtype != "I32" or len(codes.shape) != 2 or scale is None or len(scale.shape) != 2 or not weights.bits:
        return None
    rows = round(codes.shape[1] * 32 / weights.bits)
    gemv = scale.shape[0] == codes.shape[0]  # gemv keeps [out, in] order and pads its scales
    return None if gemv else _compare(scale, (_groups(codes.shape[0], weights), rows))


def _packed(layer: LayerTensors, codes: TensorInfo, weights: WeightScheme) -> str | None:
    scale = _scale(layer)
    if scale is None or len(codes.shape) != 2 or not weights.bits:
        return None
    if codes.dtype in {"I32", "U32"}:
        per_word = codes.shape[1] * 32 / weights.bits
        columns = int(per_word)
        if 32 % weights.bits:  # two ages of packing differ; the scales tell the columns
            return None
    elif codes.dtype == "U8" and weights.bits == 4:
        columns = codes.shape[1] * 2
    else:
        columns = codes.shape[1]
    if len(scale.shape) == 1:
        return None if scale.shape[0] in {1, codes.shape[0]} else _compare(scale, (codes.shape[0],))
    if weights.granularity == "tensor" or len(scale.shape) == 0:
        return None if _count(scale) == 1 else _compare(scale, (1,))
    if weights.granularity == "block":
        return _blocks(layer, codes, weights)
    groups = _groups(columns, weights)
    padded = {groups, columns // weights.group_size} if groups and isinstance(weights.group_size, int) else {groups}
    return (
        None
        if scale.shape[-1] in padded and scale.shape[0] == codes.shape[0]
        else _compare(scale, (codes.shape[0], groups))
    )


def _blocks(layer: LayerTensors, codes: TensorInfo, weights: WeightScheme) -> str | None:
    scale = _scale(layer)
    if scale is None or len(codes.shape) != 2 or not isinstance(weights.group_size, tuple):
        return None
    rows, columns = weights.group_size
    return _compare(scale, (-(-codes.shape[0] // rows), -(-codes.shape[1] // columns)))


def _fp8(layer: LayerTensors, codes: TensorInfo, weights: WeightScheme) -> str | None:
    if not codes.dtype.startswith("F8"):
        return None
    if weights.granularity == "block":
        return _blocks(layer, codes, weights)
    scale = _scale(layer)
    if scale is None or len(codes.shape) != 2:
        return None
    if weights.granularity == "tensor" and _count(scale) != 1:
        return _compare(scale, (1,))
    if weights.granularity == "channel" and _count(scale) != codes.shape[0]:
        return _compare(scale, (codes.shape[0], 1))
    return None


def _microscaled(layer: LayerTensors, codes: TensorInfo, _: WeightScheme) -> str | None:
    """gpt-oss: blocks ``[experts, rows, groups, 16]``, scales ``[experts, rows, groups]``."""
    scale = _scale(layer)
    if scale is None or len(codes.shape) != 4:
        return None
    return _compare(scale, codes.shape[:3]) or (
        None if codes.shape[3] == 16 else f"blocks have shape {list(codes.shape)}"
    )


def _count(tensor: TensorInfo) -> int:
    count = 1
    for size in tensor.shape:
        count *= size
    return count


def _compare(tensor: TensorInfo, expected: tuple[int | None, ...]) -> str | None:
    if len(tensor.shape) == len(expected) and all(
        want is None or got == want for got, want in zip(tensor.shape, expected, strict=True)
    ):
        return None
    wanted = [("any" if size is None else size) for size in expected]
    return f"{tensor.name.rpartition('.')[2]} has shape {list(tensor.shape)}, the config asks for {wanted}"


Judge = Callable[[LayerTensors, TensorInfo, WeightScheme], str | None]

_JUDGES: dict[str, Judge] = {
    "gptq": _gptq,
    "auto-round": _gptq,
    "awq": _awq,
    "compressed-tensors": _packed,
    "modelopt": _packed,
    "fp8": _fp8,
    "fp8-fnuz": _fp8,
    "fbgemm_fp8": _fp8,
    "mxfp4": _microscaled,
}
