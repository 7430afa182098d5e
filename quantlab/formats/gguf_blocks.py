"""GGUF's block types as codes and scales, and back.

A row is cut into blocks of 32 weights; a block is a few bytes, scale first::

    Q8_0   | d f16 | q0 .. q31 int8 |                     34 bytes   w = q * d
    Q4_0   | d f16 | 16 bytes of nibbles |                18 bytes   w = (u - 8) * d
    Q4_1   | d f16 | m f16 | 16 bytes of nibbles |        20 bytes   w = u * d + m
    MXFP4  | e u8  | 16 bytes of nibbles |                17 bytes   w = e2m1(u) * 2^(e - 127)

    nibbles: byte k holds weight k (low) and weight k + 16 (high)

Source: ggml-org/llama.cpp: ggml/src/ggml-common.h (block structs), ggml/src/ggml-quants.c; gguf-py/gguf/quants.py.
MXFP4's exponent 0 and 1 decode to 2^-127 and 2^-126 in both readings, so e8m0 holds throughout.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quantlab.errors import CheckpointError, ConversionRefused
from quantlab.tensors.dequantize import dense_codes
from quantlab.tensors.number_types import FP4_E2M1, INT4, INT8
from quantlab.tensors.quantized import QuantizedTensor, WeightFormat

BLOCK = 32


@dataclass(frozen=True, slots=True)
class BlockType:
    """One block type.

    Attributes:
        format: its scheme.
        scale_bytes: bytes of the scale (2: float16, 1: e8m0 exponent).
        offset_bytes: bytes of the minimum behind the scale.
        bias: what turns the stored nibble into a signed code.
    """

    format: WeightFormat
    scale_bytes: int = 2
    offset_bytes: int = 0
    bias: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of a block."""
        return self.scale_bytes + self.offset_bytes + BLOCK * self.format.number.bits // 8


BLOCKS: dict[str, BlockType] = {
    "Q8_0": BlockType(WeightFormat(INT8, "group", BLOCK)),
    "Q4_0": BlockType(WeightFormat(INT4, "group", BLOCK), bias=8),
    "Q4_1": BlockType(WeightFormat(INT4, "group", BLOCK, symmetric=False), offset_bytes=2, bias=8),
    "MXFP4": BlockType(WeightFormat(FP4_E2M1, "group", BLOCK, scale_type="e8m0"), scale_bytes=1),
}
"""Types that are codes and scales, by GGUF name."""


def decode_blocks(raw: torch.Tensor, kind: str) -> QuantizedTensor:
    """Take rows of blocks apart.

    Args:
        raw: ``uint8`` ``[rows, bytes]``, as stored.
        kind: ``Q8_0``, ``Q4_0``, ``Q4_1`` or ``MXFP4``.

    Returns:
        codes ``[rows, columns]``, scales ``[rows, columns / 32]`` (float16; MXFP4: ``uint8`` exponents). Q4_1 has
        signed codes ``u - 8``, zeros of -8, so that ``(q - zero) * d + m`` is its own formula.

    Raises:
        CheckpointError: the rows are not whole blocks.
    """
    block = BLOCKS[kind]
    rows, width = raw.shape
    if width % block.bytes:
        message = f"rows of {width} bytes are not whole {kind} blocks of {block.bytes} bytes"
        raise CheckpointError(message)
    blocks = raw.reshape(rows, -1, block.bytes)
    head, rest = blocks[..., : block.scale_bytes], blocks[..., block.scale_bytes :]
    offsets = rest[..., : block.offset_bytes]
    codes = _codes(rest[..., block.offset_bytes :], block)
    scales = head.squeeze(-1) if block.scale_bytes == 1 else _halves(head)
    zeros = torch.full(scales.shape, -8, dtype=torch.int16, device=raw.device) if block.offset_bytes else None
    return QuantizedTensor(
        block.format,
        (rows, codes.shape[-1]),
        codes,
        scales.contiguous(),
        zeros=zeros,
        offsets=_halves(offsets).contiguous() if block.offset_bytes else None,
        scale_rule="e8m0" if block.scale_bytes == 1 else "linear",
    )


def encode_blocks(weight: QuantizedTensor, kind: str) -> torch.Tensor:
    """Put codes and scales into rows of blocks, changing no number; ``uint8`` ``[rows, bytes]``.

    Wider groups and whole-row scales repeat; an asymmetric integer weight goes into Q4_1 with ``m = -zero * d``
    where float16 holds that exactly.

    Raises:
        ConversionRefused: the type cannot hold the weight as it is; see ``block_obstacle``.
    """
    reason = block_obstacle(weight, kind)
    if reason is not None:
        raise ConversionRefused(f"{kind} cannot hold the weight as it is: {reason}")
    block = BLOCKS[kind]
    codes = dense_codes(weight)
    rows, columns = codes.shape
    spread = columns // BLOCK
    scales = _per_block(weight, weight.scales, spread)
    head = scales.unsqueeze(-1) if block.scale_bytes == 1 else _octets(scales.to(torch.float16))
    parts = [head]
    if block.offset_bytes:
        parts.append(_octets(_minimum(weight, scales, spread)))
    parts.append(_packed(codes.reshape(rows, spread, BLOCK), block))
    return torch.cat(parts, dim=-1).reshape(rows, -1)


def block_obstacle(weight: QuantizedTensor, kind: str) -> str | None:
    """Say why a type cannot hold a weight exactly, or None if it can."""
    block = BLOCKS[kind]
    if weight.format.number != block.format.number:
        return f"its numbers are {block.format.number.name}, the weight's {weight.format.number.name}"
    return _shape_obstacle(weight) or _scale_obstacle(weight, block) or _zero_obstacle(weight, block)


def _shape_obstacle(weight: QuantizedTensor) -> str | None:
    if len(weight.shape) != 2 or weight.shape[-1] % BLOCK:
        return f"a row of {weight.shape[-1]} weights is not whole blocks of {BLOCK}"
    if weight.group_map is not None:
        return "it has no group map (act order)"
    size = weight.format.group_size
    if weight.scales.ndim == 2 and weight.scales.shape[1] > 1 and (size is None or size % BLOCK):
        return f"groups of {size} are not whole blocks of {BLOCK}"
    return None


def _scale_obstacle(weight: QuantizedTensor, block: BlockType) -> str | None:
    if weight.format.block is not None or weight.scales.ndim != 2 or weight.global_scale is not None:
        return f"it has one scale every {BLOCK} weights of a row and nothing else"
    if (weight.scale_rule == "e8m0") != (block.scale_bytes == 1) or weight.scale_rule == "inverse":
        return f"its scales are {'e8m0 exponents' if block.scale_bytes == 1 else 'float16 factors'}"
    if block.scale_bytes == 2 and not _fits_half(weight.scales):
        return f"a scale in {weight.scales.dtype} does not survive float16"
    return None


def _zero_obstacle(weight: QuantizedTensor, block: BlockType) -> str | None:
    if not block.offset_bytes:
        return None if weight.zeros is None and weight.offsets is None else "it has no zero points"
    spread = weight.shape[-1] // BLOCK
    return None if _minimum_fits(weight, spread) else "a zero point times its scale does not survive float16"


def _codes(octets: torch.Tensor, block: BlockType) -> torch.Tensor:
    rows = octets.shape[0]
    if block.format.number.bits == 8:
        return octets.contiguous().view(torch.int8).reshape(rows, -1)
    nibbles = torch.cat([octets & 0x0F, octets >> 4], dim=-1).reshape(rows, -1)
    return nibbles.view(torch.int8) - block.bias if block.bias else nibbles


def _packed(codes: torch.Tensor, block: BlockType) -> torch.Tensor:
    if block.format.number.bits == 8:
        return codes.contiguous().view(torch.uint8)
    fields = (codes + block.bias).view(torch.uint8) if block.bias else codes
    return fields[..., : BLOCK // 2] | (fields[..., BLOCK // 2 :] << 4)


def _halves(octets: torch.Tensor) -> torch.Tensor:
    return octets.contiguous().view(torch.float16).squeeze(-1)


def _octets(values: torch.Tensor) -> torch.Tensor:
    return values.contiguous().unsqueeze(-1).view(torch.uint8)


def _per_block(weight: QuantizedTensor, values: torch.Tensor, spread: int) -> torch.Tensor:
    """Return one value a block: ``[rows, columns / 32]`` from ``[rows, groups]``, ``[rows, 1]`` or ``[1, 1]``."""
    size = weight.format.group_size
    repeat = spread if values.shape[1] == 1 else (size or BLOCK) // BLOCK
    wide = values.repeat_interleave(repeat, dim=1)[:, :spread]
    return wide.expand(weight.shape[0], -1).contiguous()


def _minimum(weight: QuantizedTensor, scales: torch.Tensor, spread: int) -> torch.Tensor:
    """Return Q4_1's ``m``: what code -8 stands for."""
    if weight.offsets is not None:
        return _per_block(weight, weight.offsets, spread).to(torch.float16)
    return _exact_minimum(weight, scales, spread).to(torch.float16)


def _exact_minimum(weight: QuantizedTensor, scales: torch.Tensor, spread: int) -> torch.Tensor:
    zeros = torch.zeros_like(scales) if weight.zeros is None else _per_block(weight, weight.zeros, spread)
    return (-8.0 - zeros.to(torch.float64)) * scales.to(torch.float64)


def _minimum_fits(weight: QuantizedTensor, spread: int) -> bool:
    if weight.offsets is not None:
        plain = weight.zeros is not None and bool((weight.zeros == -8).all())
        return plain and _fits_half(weight.offsets)
    return _fits_half(_exact_minimum(weight, _per_block(weight, weight.scales, spread), spread))


def _fits_half(values: torch.Tensor) -> bool:
    return values.dtype == torch.float16 or bool((values.to(torch.float16).to(values.dtype) == values).all())
