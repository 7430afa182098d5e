"""Reading a checkpoint's headers: which tensors belong to a layer, and what is wrong when they do not fit.

Every complaint names the file, the tensor and the rule that it breaks, so that one line says where to look.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from quantlab.checkpoint.facts import CheckpointFacts, TensorInfo
from quantlab.errors import CheckpointError
from quantlab.formats.interface import Layer
from quantlab.matrix.data import read_section

if TYPE_CHECKING:
    import torch

INTEGER_WORDS = ("I32", "U32")
FLOAT_SCALES = ("BF16", "F16", "F32")
FP8 = ("F8_E4M3", "F8_E4M3FN")
FP8_FNUZ = ("F8_E4M3FNUZ", "F8_E4M3")


def wrong(info: TensorInfo, problem: str, *, hint: str | None = None) -> CheckpointError:
    """Return the error of a tensor that breaks a rule."""
    return CheckpointError(f"{info.file}: {info.name} {problem}", hint=hint)


def marked(facts: CheckpointFacts, suffix: str) -> Iterator[tuple[str, TensorInfo]]:
    """Yield ``(stem, header)`` of all tensors whose name ends with ``suffix``, in name order."""
    for name in sorted(facts.tensors):
        if name.endswith(suffix):
            yield name.removesuffix(suffix), facts.tensors[name]


def partner(facts: CheckpointFacts, name: str, of: TensorInfo) -> TensorInfo:
    """Return the header of a tensor that must come with another.

    Raises:
        CheckpointError: it is missing.
    """
    if name not in facts.tensors:
        raise wrong(of, f"has no {name} beside it", hint="the checkpoint is incomplete; fetch or write it again")
    return facts.tensors[name]


def expect_dtype(info: TensorInfo, allowed: tuple[str, ...]) -> None:
    """Refuse a tensor whose dtype is none of those that its role may have."""
    if info.dtype not in allowed:
        raise wrong(info, f"is {info.dtype}, but must be {' or '.join(allowed)}")


def expect_shape(info: TensorInfo, *shapes: tuple[int, ...], why: str = "") -> None:
    """Refuse a tensor whose shape is none of those that its layer allows."""
    if info.shape not in shapes:
        wanted = " or ".join(str(list(shape)) for shape in dict.fromkeys(shapes))
        raise wrong(info, f"has shape {list(info.shape)}, but must have {wanted}{why and f' ({why})'}")


def expect_matrix(info: TensorInfo) -> None:
    """Refuse what is neither a matrix nor a stack of matrices (fused experts)."""
    if len(info.shape) not in (2, 3) or 0 in info.shape:
        raise wrong(info, f"has shape {list(info.shape)}, but must be a matrix or a stack of matrices")


def usable_scales(scales: torch.Tensor, name: str) -> torch.Tensor:
    """Return the scales if each is a finite number.

    Raises:
        CheckpointError: NaN or infinity among them.
    """
    import torch

    if scales.is_floating_point() and not bool(torch.isfinite(scales.float()).all()):
        at = (~torch.isfinite(scales.float())).nonzero()[0].tolist()
        raise CheckpointError(f"{name} holds NaN or infinity at {at}; a scale must be a finite number")
    return scales


def module_name(stem: str) -> str:
    """Return the module of a weight's name (``a.b.weight`` to ``a.b``); fused parameters keep theirs."""
    return stem.removesuffix(".weight")


def weight_name(module: str, shape: tuple[int, ...]) -> str:
    """Return the dense tensor's name: fused experts (three axes) are parameters of their own."""
    return module if len(shape) == 3 else f"{module}.weight"


def role_names(module: str, shape: tuple[int, ...], roles: Mapping[str, str]) -> dict[str, str]:
    """Return the full name of each role: ``weight_scale`` is ``module.weight_scale``, or ``module_scale`` if fused.

    Args:
        module: module name, or a fused parameter's name.
        shape: logical shape; three axes mean fused experts.
        roles: role to the suffix in the module (``weight_scale``).
    """
    if len(shape) == 3:
        return {role: module + suffix.removeprefix("weight") for role, suffix in roles.items()}
    return {role: f"{module}.{suffix}" for role, suffix in roles.items()}


def options(facts: CheckpointFacts) -> dict[str, Any]:
    """Return what decoding must know of the model: the dtype of its dense weights, and how fused experts lie there."""
    turned = read_section("architectures")["architectures"]["transposed_experts"]
    return {"dtype": facts.architecture.torch_dtype, "transposed_experts": facts.architecture.model_type in turned}


def is_transposed(layer: Layer) -> bool:
    """Say whether a dense checkpoint of the model keeps this layer as ``(experts, in, out)``."""
    return len(layer.shape) == 3 and bool(layer.options.get("transposed_experts"))


def dense_dtype(layer: Layer, scales: torch.Tensor) -> str:
    """Return the dtype that the layer's dense weight has: the model's, else that of 16-bit scales, else bfloat16."""
    named = str(layer.options.get("dtype") or "").removeprefix("torch.")
    if named in ("bfloat16", "float16", "float32"):
        return named
    own = str(scales.dtype).removeprefix("torch.")
    return own if own in ("bfloat16", "float16") else "bfloat16"
