"""gpt-oss' MXFP4 against transformers' own dequantizing, and against compressed-tensors' and GGUF's MXFP4."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quantlab.errors import CheckpointError, ConversionRefused
from quantlab.formats import FORMATS
from quantlab.formats.gguf_blocks import decode_blocks, encode_blocks
from quantlab.tensors.dequantize import dense_codes, dense_weight, dequantize
from tests.golden.layer_reading import decode_all, same_bits

NAME = "model.layers.0.mlp.experts.gate_up_proj"
E, ROWS, GROUPS = 3, 8, 4


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (E, ROWS, GROUPS, 16), generator=generator, dtype=torch.uint8)
    blocks[0, 0] = 0x88  # minus zero throughout
    scales = torch.randint(100, 140, (E, ROWS, GROUPS), generator=generator, dtype=torch.uint8)
    scales[1, 1] = torch.tensor([1, 8, 240, 250], dtype=torch.uint8)
    return {f"{NAME}_blocks": blocks, f"{NAME}_scales": scales}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_dense_weight_equals_transformers(tensors: dict[str, torch.Tensor], dtype: torch.dtype) -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    reference = convert_moe_packed_tensors(tensors[f"{NAME}_blocks"], tensors[f"{NAME}_scales"], dtype=dtype)
    ((name, weight),) = decode_all(tensors, "mxfp4").items()
    assert name == NAME
    assert weight.shape == (E, ROWS, GROUPS * 32)
    assert same_bits(dense_weight(weight, dtype), reference)


def test_round_trip_gives_the_same_bytes(tensors: dict[str, torch.Tensor]) -> None:
    (weight,) = decode_all(tensors, "mxfp4").values()
    for plain in (weight, weight.with_codes(dense_codes(weight))):
        written = FORMATS["mxfp4"].encode(NAME, plain)
        assert written.keys() == tensors.keys()
        assert all(same_bits(written[key], tensors[key]) for key in tensors)


def test_compressed_tensors_holds_the_same_experts(tensors: dict[str, torch.Tensor]) -> None:
    (weight,) = decode_all(tensors, "mxfp4").values()
    codec = FORMATS["compressed-tensors/mxfp4-pack-quantized"]
    assert codec.obstacle(weight) is None
    written = codec.encode(NAME, weight)
    packed = written[f"{NAME}_packed"]
    assert same_bits(packed, tensors[f"{NAME}_blocks"].reshape(packed.shape))


def test_gguf_holds_one_expert_bit_for_bit(tensors: dict[str, torch.Tensor]) -> None:
    from dataclasses import replace

    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize as gguf_dequantize

    (weight,) = decode_all(tensors, "mxfp4").values()
    codes = dense_codes(weight)[2]
    expert = replace(weight, shape=tuple(codes.shape), codes=codes, scales=weight.scales[2])
    raw = encode_blocks(expert, "MXFP4")
    back = decode_blocks(raw, "MXFP4")
    assert same_bits(dense_codes(back), codes)
    assert same_bits(back.scales, expert.scales)
    theirs = torch.from_numpy(np.array(gguf_dequantize(raw.numpy(), GGMLQuantizationType.MXFP4)))
    assert torch.equal(theirs, dequantize(expert))  # as numbers: gguf has no minus zero


def test_broken_pairs_are_refused(tensors: dict[str, torch.Tensor]) -> None:
    with pytest.raises(CheckpointError, match=r"gate_up_proj_scales: shape is \[3, 8, 3\], expected \[3, 8, 4\]"):
        decode_all({**tensors, f"{NAME}_scales": tensors[f"{NAME}_scales"][..., :3]}, "mxfp4")
    with pytest.raises(CheckpointError, match="gate_up_proj_scales is missing"):
        decode_all({f"{NAME}_blocks": tensors[f"{NAME}_blocks"]}, "mxfp4")


def test_a_matrix_is_not_a_stack_of_experts(tensors: dict[str, torch.Tensor]) -> None:
    from dataclasses import replace

    (weight,) = decode_all(tensors, "mxfp4").values()
    flat = replace(weight, shape=(ROWS, GROUPS * 32), codes=dense_codes(weight)[0], scales=weight.scales[0])
    with pytest.raises(ConversionRefused, match=r"holds fused experts.*\(rank\)"):
        FORMATS["mxfp4"].encode(NAME, flat)
