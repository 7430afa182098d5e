"""bitsandbytes' ``quant_state`` blob: a few numbers of a 4-bit layer, as JSON in a uint8 tensor.

``{"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [576, 1536]}``, and with double quantization
also ``nested_blocksize``, ``nested_dtype`` and ``nested_offset``. It is the only place that knows the layer's shape.

Source: bitsandbytes-foundation/bitsandbytes: bitsandbytes/functional.py, ``QuantState.as_dict``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantlab.checkpoint.facts import CheckpointFacts, TensorInfo
from quantlab.checkpoint.values import integer, integers, mapping, number, text
from quantlab.errors import CheckpointError
from quantlab.formats.roles import broken

if TYPE_CHECKING:
    import torch

LARGEST_BLOB = 65536
"""Bytes; a real blob has about 100 to 250."""


@dataclass(frozen=True, slots=True)
class QuantState:
    """The numbers of one 4-bit layer.

    Attributes:
        kind: ``nf4`` or ``fp4``.
        blocksize: weights of one block.
        dtype: dtype of the dense weight.
        shape: ``(out, in)``.
        nested_blocksize: factors that share one second-level factor.
        nested_offset: what is added to each factor after its own dequantizing.
    """

    kind: str
    blocksize: int
    dtype: str
    shape: tuple[int, int]
    nested_blocksize: int = 256
    nested_offset: float = 0.0


def read_state(facts: CheckpointFacts, info: TensorInfo) -> QuantState:
    """Read a blob from the checkpoint's file.

    Raises:
        CheckpointError: the checkpoint is not on this disk, or the blob is no JSON of the right kind.
    """
    base = Path(facts.path)
    file = base / info.file if base.is_dir() else base.parent / info.file
    if not file.is_file():
        reason = "holds the layer's shape and can only be read from a checkpoint on this disk"
        raise broken(info, "quant-state", reason, hint="download the checkpoint first")
    if info.end - info.start > LARGEST_BLOB:
        raise broken(info, "quant-state", f"has {info.end - info.start} bytes, more than {LARGEST_BLOB}")
    with file.open("rb") as handle:
        handle.seek(info.start)
        return parse_state(handle.read(info.end - info.start), f"{info.file}: {info.name}")


def state_of(blob: torch.Tensor, name: str) -> QuantState:
    """Read a blob that is already a tensor."""
    return parse_state(bytes(blob.cpu().numpy().tobytes()), name)


def parse_state(blob: bytes, where: str) -> QuantState:
    """Read a blob's JSON.

    Raises:
        CheckpointError: it is not JSON, or a number is missing or absurd.
    """
    try:
        content: Any = json.loads(blob)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where}: is not JSON (quant-state)") from error
    state = mapping(content)
    kind, shape, blocksize = (
        text(state.get("quant_type")),
        integers(state.get("shape")),
        integer(state.get("blocksize")),
    )
    if kind not in {"nf4", "fp4"} or len(shape) != 2 or min(shape) < 1 or not blocksize or blocksize < 1:
        raise CheckpointError(f"{where}: says {str(state)[:120]}, not a 4-bit matrix (quant-state)")
    return QuantState(
        kind,
        blocksize,
        text(state.get("dtype")) or "bfloat16",
        (shape[0], shape[1]),
        integer(state.get("nested_blocksize")) or 256,
        float(number(state.get("nested_offset")) or 0.0),
    )


def state_tensor(state: QuantState) -> torch.Tensor:
    """Return the blob of a layer without double quantization, key for key as bitsandbytes writes it."""
    import torch

    content = {
        "quant_type": state.kind,
        "blocksize": state.blocksize,
        "dtype": state.dtype,
        "shape": list(state.shape),
    }
    return torch.tensor(list(json.dumps(content).encode()), dtype=torch.uint8)
