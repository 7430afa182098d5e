"""Data-free quantizing: round to nearest, with the scales of compressed-tensors, at the speed of a cast.

The weight is taken some rows at a time, so that temporaries stay small, and divided in its own dtype as
compressed-tensors does (quantization/lifecycle/forward_helpers.py, ``_quantize``): bfloat16 quotients round differently
from float32 ones, and the same codes are the point. The float8 path costs little more than torch's own cast of the
same bytes: one pass for the magnitudes, one division, the cast.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from quantlab.errors import ConversionRefused, UsageError
from quantlab.tensors import scales as scale_rules
from quantlab.tensors.clipping import Clip, clipped_range
from quantlab.tensors.floats import e2m1_codes
from quantlab.tensors.number_types import FP4_E2M1, FP8_E4M3FN
from quantlab.tensors.quantized import QuantizedTensor, WeightFormat

_CHUNK = 1 << 20
"""Elements that are worked on at once."""


def quantize(
    weight: torch.Tensor,
    scheme: WeightFormat,
    *,
    global_divisor: torch.Tensor | None = None,
    clip: Clip | None = None,
    name: str = "weight",
) -> QuantizedTensor:
    """Round a dense weight to a scheme.

    Args:
        weight: ``(out, in)`` or ``(experts, out, in)`` in bfloat16, float16 or float32, on any device.
        scheme: integers of 2 to 8 bits, e4m3fn or e2m1; one scale a tensor, channel, group or block.
        global_divisor: NVFP4's shared global scale of fused layers (``global_scale_divisor`` of the largest
            magnitude of all); by default that of this weight (of each expert alone).
        clip: search for the range with the least error instead of the full one.
        name: what error messages call the weight.

    Returns:
        Dense codes of the weight's shape and their scales, in the weight's dtype unless the scheme's
        ``scale_type`` says otherwise.

    Raises:
        ConversionRefused: the scheme cannot hold this weight: columns that groups do not divide (the message
            offers sizes), NaN or infinity.
        UsageError: no such scheme.
    """
    check_scheme(scheme)
    check_shape(tuple(weight.shape), scheme, name)
    kind = scale_rules.scale_type(scheme)
    scheme = replace(scheme, scale_type=kind)
    if weight.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise ConversionRefused(f"{name} is {weight.dtype}; only bfloat16, float16 and float32 weights are quantized")
    if weight.ndim == 3:
        return _stack([_matrix(part, scheme, global_divisor, clip, name) for part in weight])
    return _matrix(weight, scheme, global_divisor, clip, name)


def largest(weight: torch.Tensor, scheme: WeightFormat, clip: Clip | None = None) -> torch.Tensor:
    """Return the magnitude that decides a global scale, a number in the weight's dtype.

    Layers that an engine fuses (q, k and v; gate and up) share one: give ``global_scale_divisor`` the largest of
    theirs and ``quantize`` what it returns. With ``clip`` the ranges are shrunk first, as ``quantize`` will.
    """
    if clip is None:
        return scale_rules.absmax(weight)
    parts = weight if weight.ndim == 3 else [weight]
    return torch.stack([_top(_grouped(part, scheme), scheme, clip).amax() for part in parts]).amax()


def check_scheme(scheme: WeightFormat) -> None:
    """Refuse number types and granularities that nothing here can make.

    Raises:
        UsageError: codebooks (the libraries' job), asymmetric floats, types without a data-free rule.
    """
    number = scheme.number
    known = number.kind == "int" or number.name in (FP8_E4M3FN.name, FP4_E2M1.name)
    if not known or (number.kind == "float" and not scheme.symmetric):
        symmetry = "symmetric" if scheme.symmetric else "asymmetric"
        raise UsageError(f"no data-free quantizing to {symmetry} {number.name}")
    if number.name == FP4_E2M1.name and scale_rules.scale_type(scheme) is None:
        raise UsageError(
            f"no data-free quantizing to {number.name} with groups of {scheme.group_size}",
            hint="groups of 16 make NVFP4, groups of 32 make MXFP4",
        )
    if not scheme.symmetric and scheme.granularity not in ("group", "channel"):
        raise UsageError(f"no asymmetric quantizing with one scale a {scheme.granularity}")


def check_shape(shape: tuple[int, ...], scheme: WeightFormat, name: str) -> None:
    """Refuse columns that the groups do not divide, offering sizes that do.

    Raises:
        ConversionRefused: names the weight, its columns and group sizes that fit.
    """
    if len(shape) not in (2, 3) or 0 in shape:
        raise ConversionRefused(f"{name} has shape {list(shape)}; a matrix or a stack of matrices is needed")
    if scheme.granularity != "group":
        return
    size, columns = scheme.group_size or 0, shape[-1]
    if size > 0 and columns % size == 0:
        return
    if scale_rules.scale_type(scheme) is not None:
        raise ConversionRefused(
            f"{name} has {columns} columns, which groups of {size} do not divide",
            hint="this scheme has one group size only; leave the layer dense or take a scheme with channel scales",
        )
    fitting = [str(offer) for offer in (256, 128, 64, 32, 16) if offer != size and columns % offer == 0]
    offers = " or ".join(fitting[:3]) or "channel scales"
    raise ConversionRefused(
        f"{name} has {columns} columns, which group size {size} does not divide", hint=f"use group size {offers}"
    )


def _matrix(
    weight: torch.Tensor, scheme: WeightFormat, divisor: torch.Tensor | None, clip: Clip | None, name: str
) -> QuantizedTensor:
    """Quantize one matrix."""
    dtype = str(weight.dtype).removeprefix("torch.")
    if scheme.scale_type == "float32":
        weight = weight.float()
    groups = _grouped(weight, scheme)
    if scheme.scale_type == "float8_e4m3fn" and divisor is None:
        divisor = scale_rules.global_scale_divisor(_top(groups, scheme, clip).amax())
    result = _from_groups(groups, weight, scheme, divisor, clip)
    if not _usable(result):
        raise ConversionRefused(f"{name} holds NaN, infinity or values beyond the range of its scales")
    return replace(result, dtype=dtype)


def _from_groups(
    groups: torch.Tensor,
    weight: torch.Tensor,
    scheme: WeightFormat,
    divisor: torch.Tensor | None,
    clip: Clip | None,
) -> QuantizedTensor:
    """Compute scales of ``(rows, groups, size)`` views and round to them."""
    shape = (weight.shape[0], weight.shape[1])
    number, kind = scheme.number, scheme.scale_type
    rule, zeros, stored = "linear", None, None
    if not scheme.symmetric:
        low, high = clipped_range(groups, scheme, clip) if clip else torch.aminmax(groups, dim=-1)
        scales, zeros = scale_rules.asymmetric_scales(low, high, number)
        divisors = scales
    else:
        top = _top(groups, scheme, clip)
        if kind == "e8m0":
            scales, rule = scale_rules.mx_exponents(top, number), "e8m0"
            divisors = scale_rules.mx_scales(scales, weight.dtype)
        elif kind == "float8_e4m3fn":
            assert divisor is not None
            stored = divisor.to(weight.device)
            scales = scale_rules.nvfp4_scales(top, stored)
            divisors = scales.to(weight.dtype) / stored
        else:
            scales = divisors = scale_rules.symmetric_scales(top, number)
    codes = _round(groups, divisors.unsqueeze(-1), zeros, scheme)
    return QuantizedTensor(
        scheme,
        shape,
        _ungrouped(codes, shape, scheme),
        scales.reshape(_scale_shape(shape, scheme)),
        zeros=None if zeros is None else zeros.to(torch.int16),
        global_scale=None if stored is None else 1.0 / stored,
        global_scale_stored=stored,
        global_scale_inverse=stored is not None,
        scale_rule="e8m0" if rule == "e8m0" else "linear",
    )


def _grouped(weight: torch.Tensor, scheme: WeightFormat) -> torch.Tensor:
    """View a matrix as ``(rows, groups, size)``: what shares a scale lies along the last axis."""
    rows, columns = weight.shape
    match scheme.granularity:
        case "tensor":
            return (
                weight.reshape(1, 1, rows * columns) if weight.is_contiguous() else weight.contiguous().view(1, 1, -1)
            )
        case "channel":
            return weight.unsqueeze(1)
        case "group":
            return weight.reshape(rows, -1, scheme.group_size or columns)
        case "block":
            high, wide = scheme.block or (128, 128)
            padded = torch.nn.functional.pad(weight, (0, -columns % wide, 0, -rows % high))
            tiles = padded.view(-1, high, padded.shape[1] // wide, wide).transpose(1, 2)
            return tiles.reshape(tiles.shape[0], tiles.shape[1], high * wide)


def _ungrouped(codes: torch.Tensor, shape: tuple[int, int], scheme: WeightFormat) -> torch.Tensor:
    """Bring codes of ``(rows, groups, size)`` back to ``(out, in)``."""
    if scheme.granularity != "block":
        return codes.view(shape)
    high, wide = scheme.block or (128, 128)
    tiles = codes.view(codes.shape[0], codes.shape[1], high, wide).view(torch.uint8).transpose(1, 2)
    matrix = tiles.reshape(codes.shape[0] * high, codes.shape[1] * wide)
    return matrix[: shape[0], : shape[1]].contiguous().view(codes.dtype)


def _scale_shape(shape: tuple[int, int], scheme: WeightFormat) -> tuple[int, int]:
    rows, columns = shape
    match scheme.granularity:
        case "tensor":
            return 1, 1
        case "channel":
            return rows, 1
        case "group":
            return rows, columns // (scheme.group_size or columns)
        case "block":
            high, wide = scheme.block or (128, 128)
            return -(-rows // high), -(-columns // wide)


def _top(groups: torch.Tensor, scheme: WeightFormat, clip: Clip | None) -> torch.Tensor:
    """Return the magnitude that each group's range ends at, ``(rows, groups)``."""
    if clip is not None:
        low, high = clipped_range(groups, scheme, clip)
        return torch.maximum(low.abs(), high.abs())
    result = torch.empty(groups.shape[:2], dtype=groups.dtype, device=groups.device)
    for part in _parts(groups):
        result[part] = scale_rules.absmax(groups[part], -1).squeeze(-1)
    return result


def _round(
    groups: torch.Tensor, divisors: torch.Tensor, zeros: torch.Tensor | None, scheme: WeightFormat
) -> torch.Tensor:
    """Divide, clamp and round; ``(rows, groups, size)`` in and out."""
    number = scheme.number
    code_dtype = {"int8": torch.int8, "uint8": torch.uint8}.get(number.torch_dtype, torch.float8_e4m3fn)
    codes = torch.empty(groups.shape, dtype=code_dtype, device=groups.device)
    tight = number.name == FP8_E4M3FN.name and not _may_exceed(divisors)
    for part in _parts(groups):
        scaled = groups[part] / divisors[part]
        if zeros is not None:
            scaled += zeros[part].unsqueeze(-1).to(groups.dtype)
        if number.name == FP4_E2M1.name:
            codes[part] = e2m1_codes(scaled)
            continue
        if not tight:
            scaled.clamp_(number.minimum, number.maximum)
        codes[part] = scaled.round_() if number.kind == "int" else scaled
    return codes


def _may_exceed(divisors: torch.Tensor) -> bool:
    """Say whether a quotient can pass 448 by more than a rounding, as below the normal range of the scale's dtype.

    A normal scale of ``p`` bits is off by 2^-p at most, so quotients reach 450, which the cast to e4m3 rounds to
    448: clamping would change nothing, and leaving it out saves a pass.
    """
    return divisors.dtype == torch.float16 or bool((divisors < 2 * torch.finfo(divisors.dtype).tiny).any())


def _parts(groups: torch.Tensor) -> list[slice]:
    """Cut the rows of ``(rows, groups, size)`` into slices of about a million elements."""
    rows = groups.shape[0]
    step = max(1, _CHUNK // max(1, groups[0].numel()))
    return [slice(start, min(rows, start + step)) for start in range(0, rows, step)]


def _usable(weight: QuantizedTensor) -> bool:
    """Say whether all scales are finite; NaN and infinity in a weight end there (MX: in e8m0's NaN, 255)."""
    if weight.scale_rule == "e8m0":
        return int(weight.scales.max()) < 255
    stored = weight.global_scale_stored
    finite = bool(torch.isfinite(weight.scales.float()).all())
    return finite and (stored is None or bool(torch.isfinite(stored).all()))


def _stack(parts: list[QuantizedTensor]) -> QuantizedTensor:
    """Put experts that were quantized alone back into one tensor with a leading axis."""
    first = parts[0]
    codes = torch.stack([part.codes.view(torch.uint8) for part in parts if isinstance(part.codes, torch.Tensor)])
    assert isinstance(first.codes, torch.Tensor)
    return replace(
        first,
        shape=(len(parts), *first.shape),
        codes=codes.view(first.codes.dtype),
        scales=_stacked([part.scales for part in parts]),
        zeros=None if first.zeros is None else _stacked([part.zeros for part in parts if part.zeros is not None]),
        global_scale=_joined([part.global_scale for part in parts]),
        global_scale_stored=_joined([part.global_scale_stored for part in parts]),
    )


def _stacked(tensors: list[torch.Tensor]) -> torch.Tensor:
    dtype = tensors[0].dtype
    return torch.stack([tensor.view(torch.uint8) for tensor in tensors]).view(dtype)


def _joined(tensors: list[torch.Tensor | None]) -> torch.Tensor | None:
    present = [tensor for tensor in tensors if tensor is not None]
    return torch.cat(present) if present else None
