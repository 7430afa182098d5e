"""The values of scale tensors: NaN, infinite, zero, negative and absurd ones, read in bounded memory.

A scale is absurd where the weights that it makes are: the largest code times the scale above 1000, which no
trained linear layer has. Tensors are read in pieces of 4 MiB; bf16, float8 and e8m0 are widened with integer
arithmetic, so that neither torch nor ml_dtypes is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quantlab.checkpoint.facts import Finding, TensorInfo, WeightScheme
from quantlab.checkpoint.folder import resolve
from quantlab.checkpoint.layers import LayerTensors
from quantlab.checkpoint.open import Opened
from quantlab.errors import CheckpointError
from quantlab.progress import Observer, Progress

PIECE = 4 * 2**20
ABSURD_WEIGHT = 1000.0
_SHOWN = 5

Floats = NDArray[np.float32]


def scale_findings(opened: Opened, observer: Observer) -> Iterator[Finding]:
    """Yield what is wrong with the scales of a local checkpoint.

    Raises:
        CheckpointError: the checkpoint is not local, or a file ends early.
    """
    if opened.folder is None:
        raise CheckpointError(f"{opened.facts.path} is not on this machine, so its scales cannot be read",
                              hint="download it and inspect the folder")  # fmt: skip
    layers = [*opened.layout.layers.values(), *opened.layout.orphans.values()]
    shown: dict[tuple[str, str], int] = {}
    for done, layer in enumerate(layers):
        observer(Progress("read scales", done, len(layers), "layers", layer.module))
        for suffix, tensor in _scales(layer):
            for finding in _judge(opened.folder, suffix, tensor, layer.weights or opened.facts.scheme.weights):
                key = (finding.rule, finding.severity)
                shown[key] = shown.get(key, 0) + 1
                if shown[key] <= _SHOWN:
                    yield finding
    for (rule, severity), count in shown.items():
        if count > _SHOWN:
            yield Finding(rule, "error" if severity == "error" else "warning", "", f"{count} scale tensors in all")


def _scales(layer: LayerTensors) -> Iterator[tuple[str, TensorInfo]]:
    yield from layer.scales.items()
    for suffix, tensor in layer.extra.items():
        if "scale" in suffix and "hadamard" not in suffix:
            yield suffix, tensor


@dataclass(slots=True)
class _Tally:
    """What was seen of one tensor."""

    count: int = 0
    nan: int = 0
    infinite: int = 0
    zero: int = 0
    negative: int = 0
    largest: float = 0.0

    def add(self, values: Floats) -> None:
        """Count one piece."""
        finite = np.isfinite(values)
        self.count += values.size
        self.nan += int(np.isnan(values).sum())
        self.infinite += int(np.isinf(values).sum())
        self.zero += int((values == 0).sum())
        self.negative += int((values < 0).sum())
        if finite.any():
            self.largest = max(self.largest, float(np.abs(values[finite]).max()))


def _judge(folder: Path, suffix: str, tensor: TensorInfo, weights: WeightScheme | None) -> Iterator[Finding]:
    widen = _widener(tensor.dtype, weights)
    if widen is None or tensor.end == tensor.start:
        return
    tally = _Tally()
    for piece in _pieces(folder, tensor, widen[0]):
        tally.add(widen[1](piece))
    where = f"{tensor.file}: {tensor.name}"
    requantize = "quantize the model again; calibration met no or broken data here"
    if tally.nan or tally.infinite:
        message = f"{tensor.name} has {tally.nan} NaN and {tally.infinite} infinite of {tally.count} scales"
        yield Finding("scale-not-finite", "error", where, message, requantize)
    if tally.zero == tally.count:
        yield Finding("scale-zero", "error", where, f"{tensor.name}: all {tally.count} scales are zero", requantize)
    elif tally.zero:
        message = f"{tensor.name} has {tally.zero} zeros among {tally.count} scales"
        yield Finding("scale-zero", "warning", where, message, "right only if those weights are all zero")
    if tally.negative and _positive(suffix):
        message = f"{tensor.name} has {tally.negative} negative among {tally.count} scales"
        yield Finding("scale-negative", "warning", where, message, "most kernels expect positive scales")
    top = _largest_code(suffix, weights)
    if top and tally.largest * top > ABSURD_WEIGHT:
        message = f"{tensor.name}: largest scale {tally.largest:.3g} makes weights of {tally.largest * top:.3g}"
        yield Finding("scale-absurd", "error", where, message, requantize)


def _positive(suffix: str) -> bool:
    return suffix not in {".scales", ".scale", ".suh", ".svh", ".su", ".sv", ".biases"}


_NOT_WEIGHTS = {".weight_scale_2", ".weight_global_scale", ".input_scale", ".input_global_scale", ".act_global_scale",
                ".k_scale", ".v_scale", ".output_scale", ".suh", ".svh", ".pre_quant_scale"}  # fmt: skip
"""Scales of activations and caches, and factors on top of other scales."""


def _largest_code(suffix: str, weights: WeightScheme | None) -> float | None:
    """The largest code times other factors, for scales that make weights on their own; None for the others."""
    if weights is None or weights.scale_dtype == "float8_e4m3fn" or suffix in _NOT_WEIGHTS:
        return None
    if suffix.endswith("SCB"):
        return 1.0  # the row's largest weight itself
    if weights.type == "int" and weights.bits:
        return float(2 ** (int(weights.bits) - 1))
    exact = {"float8_e4m3fn": 448.0, "float8_e4m3fnuz": 240.0, "float8_e5m2": 57344.0, "float4_e2m1": 6.0}
    return exact.get(weights.dtype or "", 1.0)


Widen = Callable[[NDArray[np.generic]], Floats]


def _widener(dtype: str, weights: WeightScheme | None) -> tuple[str, Widen] | None:
    """Return (numpy's stored dtype, function to float32) of a scale's dtype, or None for integers."""
    if dtype in {"U8", "F8_E8M0"}:
        microscaled = dtype == "F8_E8M0" or (weights is not None and weights.scale_dtype == "float8_e8m0fnu")
        return ("u1", _from_e8m0) if microscaled else None
    known: dict[str, tuple[str, Widen]] = {
        "F32": ("<f4", lambda stored: stored.astype(np.float32)),
        "F64": ("<f8", lambda stored: stored.astype(np.float32)),
        "F16": ("<f2", lambda stored: stored.astype(np.float32)),
        "BF16": ("<u2", _from_bf16),
        "F8_E4M3": ("u1", _from_e4m3),
        "F8_E5M2": ("u1", lambda stored: (stored.astype(np.uint16) << 8).view(np.float16).astype(np.float32)),
    }
    return known.get(dtype)


def _from_bf16(stored: NDArray[np.generic]) -> Floats:
    return (stored.astype(np.uint32) << 16).view(np.float32)


def _from_e8m0(stored: NDArray[np.generic]) -> Floats:
    """2^(s-127); 255 is NaN, and 2^-127 is a float32 subnormal."""
    values = (stored.astype(np.uint32) << 23).view(np.float32)
    values[stored == 0] = 2.0**-127
    values[stored == 255] = np.nan
    return values


def _from_e4m3(stored: NDArray[np.generic]) -> Floats:
    return _E4M3[stored.astype(np.intp)]


def _e4m3_table() -> Floats:
    """All 256 values of float8_e4m3fn: 1 sign, 4 exponent (bias 7) and 3 mantissa bits; 0x7F and 0xFF are NaN."""
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    value = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    value[(code & 127) == 127] = np.nan
    return np.where(code >= 128, -value, value).astype(np.float32)


_E4M3 = _e4m3_table()


def _pieces(folder: Path, tensor: TensorInfo, stored: str) -> Iterator[NDArray[np.generic]]:
    dtype = np.dtype(stored)
    path = resolve(folder, tensor.file)
    left = (tensor.end - tensor.start) // dtype.itemsize
    with path.open("rb") as file:
        file.seek(tensor.start)
        while left:
            count = min(left, PIECE // dtype.itemsize)
            content = file.read(count * dtype.itemsize)
            if len(content) < count * dtype.itemsize:
                raise CheckpointError(
                    f"{path}: tensor {tensor.name} ends early", hint="the file changed or is truncated"
                )
            yield np.frombuffer(content, dtype)
            left -= count
