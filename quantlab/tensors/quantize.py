"""Data-free quantizing: round to nearest, with the scales of compressed-tensors, at the speed of a cast.

The weight is taken some rows at a time, so that temporaries stay small, and divided in its own dtype as
compressed-tensors does (quantization/lifecycle/forward_helpers.py, ``_quantize``): bfloat16 quotients round differently
from float32 ones, and the same codes are the point. The float8 path costs little more than torch's own cast of the
same bytes: one pass for the magnitudes, one division, the cast.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from quantlab.errors import ConversionRefused, UsageError
from quantlab.tensors import scales as scale_rules
from quantlab.tensors.clipping import Clip, clipped_range
from quantlab.tensors.floats import e2m1_codes
from quantlab.tensors.grouping import Groups, grouped
from quantlab.tensors.number_types import FP4_E2M1, FP8_E4M3FN
from quantlab.tensors.quantized import QuantizedTensor, WeightFormat


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
    return torch.stack([_top(grouped(part, scheme), clip).amax() for part in parts]).amax()


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
    groups = grouped(weight, scheme)
    if scheme.scale_type == "float8_e4m3fn" and divisor is None:
        divisor = scale_rules.global_scale_divisor(_top(groups, clip).amax())
    scaling = _scaling(groups, divisor, clip)
    codes = groups.matrix(_round(groups, scaling))
    result = QuantizedTensor(
        scheme,
        groups.shape,
        codes,
        groups.scale_grid(scaling.scales),
        zeros=None if scaling.zeros is None else groups.scale_grid(scaling.zeros.to(torch.int16)),
        global_scale=None if scaling.stored is None else 1.0 / scaling.stored,
        global_scale_stored=scaling.stored,
        global_scale_inverse=scaling.stored is not None,
        scale_rule="e8m0" if scheme.scale_type == "e8m0" else "linear",
        dtype=str(weight.dtype).removeprefix("torch."),
    )
    if not _usable(result):
        raise ConversionRefused(f"{name} holds NaN, infinity or values beyond the range of its scales")
    return result


@dataclass(frozen=True)
class _Scaling:
    """What a matrix is divided by, and how the file says it; all shaped as ``Groups.largest``.

    Attributes:
        scales: as stored.
        divisors: the numbers that elements are divided by.
        zeros: zero points to add, or None.
        stored: global divisor, or None.
    """

    scales: torch.Tensor
    divisors: torch.Tensor
    zeros: torch.Tensor | None = None
    stored: torch.Tensor | None = None


def _scaling(groups: Groups, divisor: torch.Tensor | None, clip: Clip | None) -> _Scaling:
    """Compute the scales of all groups."""
    scheme, dtype = groups.scheme, groups.values.dtype
    if not scheme.symmetric:
        low, high = clipped_range(groups, clip) if clip else groups.extremes()
        scales, zeros = scale_rules.asymmetric_scales(low, high, scheme.number)
        return _Scaling(scales, scales, zeros)
    top = _top(groups, clip)
    if scheme.scale_type == "e8m0":
        exponents = scale_rules.mx_exponents(top, scheme.number)
        return _Scaling(exponents, scale_rules.mx_scales(exponents, dtype))
    if scheme.scale_type == "float8_e4m3fn":
        assert divisor is not None
        stored = divisor.to(top.device)
        scales = scale_rules.nvfp4_scales(top, stored)
        return _Scaling(scales, scales.to(dtype) / stored, stored=stored)
    scales = scale_rules.symmetric_scales(top, scheme.number)
    return _Scaling(scales, scales)


def _top(groups: Groups, clip: Clip | None) -> torch.Tensor:
    """Return the magnitude that each group's range ends at, in the dtype that scales are computed in."""
    if clip is None:
        top = groups.largest()
    else:
        low, high = clipped_range(groups, clip)
        top = torch.maximum(low.abs(), high.abs())
    return top.float() if groups.scheme.scale_type == "float32" else top


def _round(groups: Groups, scaling: _Scaling) -> torch.Tensor:
    """Divide, clamp and round to codes of the shape of ``groups.values``."""
    number = groups.scheme.number
    code_dtype = {"int8": torch.int8, "uint8": torch.uint8}.get(number.torch_dtype, torch.float8_e4m3fn)
    codes = torch.empty(groups.values.shape, dtype=code_dtype, device=groups.values.device)
    clamped = number.name != FP8_E4M3FN.name or _may_exceed(scaling.divisors)
    for part in groups.parts():
        divisors = groups.of(scaling.divisors, part)
        scaled = groups.values[part].to(divisors.dtype) / divisors
        if scaling.zeros is not None:
            scaled += groups.of(scaling.zeros, part).to(scaled.dtype)
        if number.name == FP4_E2M1.name:
            codes[part] = e2m1_codes(scaled)
            continue
        if clamped:
            scaled.clamp_(number.minimum, number.maximum)
        codes[part] = scaled.round_() if number.kind == "int" else scaled
    return codes


def _may_exceed(divisors: torch.Tensor) -> bool:
    """Say whether a quotient can pass 448 by more than a rounding, as below the normal range of the scale's dtype.

    A normal scale of ``p`` bits is off by 2^-p at most, so quotients reach 450, which the cast to e4m3 rounds to
    448: clamping would change nothing, and leaving it out saves a pass.
    """
    return divisors.dtype == torch.float16 or bool((divisors < 2 * torch.finfo(divisors.dtype).tiny).any())


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
