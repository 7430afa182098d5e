"""bitsandbytes: real saved layers, decoded as its own CPU dequantizing decodes them, and written back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from quantlab.checkpoint.facts import CheckpointFacts
from quantlab.errors import CheckpointError, ConversionRefused
from quantlab.formats import FORMATS
from quantlab.formats.bitsandbytes_state import parse_state
from quantlab.tensors.dequantize import dequantize
from quantlab.tensors.quantized import QuantizedTensor
from tests.golden.layer_reading import awkward, facts_of, same_bits

CODEC = FORMATS["bitsandbytes"]
SUBNORMAL_ROW = 5
NAME = "model.layers.0.mlp.up_proj"


def four_bit(kind: str, *, double: bool, dtype: torch.dtype, shape: tuple[int, int] = (48, 128)):
    """Quantize with bitsandbytes and save as Linear4bit does; return tensors and bitsandbytes' own dequantizing."""
    import bitsandbytes as bnb

    weight = awkward(*shape).to(dtype)
    packed, state = bnb.functional.quantize_4bit(weight, quant_type=kind, compress_statistics=double, blocksize=64)
    tensors = {f"{NAME}.weight": packed}
    tensors |= {f"{NAME}.weight.{key}": value for key, value in state.as_dict(packed=True).items()}
    return tensors, bnb.functional.dequantize_4bit(packed, state)


def on_disk(tensors: dict[str, torch.Tensor], folder: Path) -> CheckpointFacts:
    """Save the tensors and read their headers back with true offsets."""
    import json
    from dataclasses import replace

    save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, folder / "model.safetensors")
    raw = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    facts = facts_of(tensors, "bitsandbytes")
    infos = {
        name: replace(
            info,
            start=8 + length + header[name]["data_offsets"][0],
            end=8 + length + header[name]["data_offsets"][1],
        )
        for name, info in facts.tensors.items()
    }
    return replace(facts, path=str(folder), tensors=infos)


def decode(tensors: dict[str, torch.Tensor], folder: Path) -> QuantizedTensor:
    (layer,) = CODEC.layers(on_disk(tensors, folder))
    assert layer.name == NAME
    stored = load_file(folder / "model.safetensors")
    return CODEC.decode(layer, {role: stored[name] for role, name in layer.tensors.items()})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_four_bit_equals_bitsandbytes(kind: str, double: bool, dtype: torch.dtype, tmp_path: Path) -> None:
    tensors, reference = four_bit(kind, double=double, dtype=dtype)
    weight = decode(tensors, tmp_path)
    assert weight.format.number.name == kind
    decoded = dequantize(weight, dtype)
    assert same_bits(decoded, portable(tensors, weight, dtype))
    normal = [row for row in range(48) if row != SUBNORMAL_ROW]  # the CPU kernel's bfloat16 flushes these to zero
    assert same_bits(decoded[normal], reference[normal])
    written = CODEC.encode(NAME, weight)
    assert written.keys() == tensors.keys()
    assert all(same_bits(written[key], tensors[key]) for key in tensors)


def portable(tensors: dict[str, torch.Tensor], weight: QuantizedTensor, dtype: torch.dtype) -> torch.Tensor:
    """Dequantize with bitsandbytes' portable implementation (its CPU kernel has faults of its own)."""
    import bitsandbytes as bnb
    from bitsandbytes.backends.default.ops import _dequantize_4bit_compute

    codebook = bnb.functional.get_4bit_type(weight.format.number.name, device="cpu")
    packed = tensors[f"{NAME}.weight"].reshape(-1)
    return _dequantize_4bit_compute(packed, weight.scales, codebook, 64, weight.shape, dtype)


@pytest.mark.parametrize("shape", [(10, 97), (7, 9), (8, 96)])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_blocks_that_run_across_rows(kind: str, shape: tuple[int, int], tmp_path: Path) -> None:
    """The reference is the portable implementation: the CPU kernel of 0.50.2 takes each row for whole blocks."""
    tensors, _ = four_bit(kind, double=False, dtype=torch.float32, shape=shape)
    weight = decode(tensors, tmp_path)
    assert same_bits(dequantize(weight), portable(tensors, weight, torch.float32))
    written = CODEC.encode(NAME, weight)
    assert all(same_bits(written[key], tensors[key]) for key in tensors)


def test_a_state_of_our_own_is_the_librarys(tmp_path: Path) -> None:
    from dataclasses import replace

    tensors, _ = four_bit("nf4", double=False, dtype=torch.bfloat16)
    weight = replace(decode(tensors, tmp_path), extra={})
    written = CODEC.encode(NAME, weight)
    assert all(same_bits(written[key], tensors[key]) for key in tensors)


def test_int8_rows_equal_bitsandbytes(tmp_path: Path) -> None:
    import bitsandbytes as bnb

    rows, largest, _ = bnb.functional.int8_vectorwise_quant(awkward(48, 96).to(torch.float16))
    reference = bnb.functional.int8_vectorwise_dequant(rows, largest)
    tensors = {f"{NAME}.weight": rows, f"{NAME}.SCB": largest}
    tensors[f"{NAME}.weight_format"] = torch.tensor(0, dtype=torch.uint8)
    weight = decode(tensors, tmp_path)
    assert same_bits(dequantize(weight), reference)
    written = CODEC.encode(NAME, weight)
    assert all(same_bits(written[key], tensors[key]) for key in tensors)
    assert FORMATS["compressed-tensors/int-quantized"].obstacle(weight) is not None


def test_a_model_saved_after_a_forward_pass_is_explained(tmp_path: Path) -> None:
    tensors, _ = four_bit("nf4", double=False, dtype=torch.bfloat16)
    tensors[f"{NAME}.weight.absmax"] = tensors[f"{NAME}.weight.absmax"].reshape(32, 3)
    with pytest.raises(CheckpointError, match=r"absmax: shape is \[32, 3\].*saved after a forward pass") as caught:
        CODEC.layers(on_disk(tensors, tmp_path))
    assert "quantize again" in str(caught.value.hint)


BREAKS: dict[str, Any] = {
    "state is not JSON": (
        lambda t: t.update({f"{NAME}.weight.quant_state.bitsandbytes__nf4": torch.zeros(9, dtype=torch.uint8)}),
        r"bitsandbytes__nf4: is not JSON",
    ),
    "state missing": (lambda t: t.pop(f"{NAME}.weight.quant_state.bitsandbytes__nf4"), r"bitsandbytes__nf4 is missing"),
    "codes too short": (
        lambda t: t.update({f"{NAME}.weight": t[f"{NAME}.weight"][:-1]}),
        r"weight: shape is .* needs 3072 bytes",
    ),
    "factors missing": (
        lambda t: t.update({f"{NAME}.weight.absmax": t[f"{NAME}.weight.absmax"][:-1]}),
        r"absmax: shape is \[95\], expected \[96\]",
    ),
    "NaN factor": (
        lambda t: t[f"{NAME}.weight.absmax"].__setitem__(0, float("nan")),
        r"absmax: a scale is not a finite",
    ),
}


@pytest.mark.parametrize("case", BREAKS)
def test_a_broken_layer_names_tensor_and_rule(case: str, tmp_path: Path) -> None:
    tensors, _ = four_bit("nf4", double=False, dtype=torch.bfloat16)
    breaks, message = BREAKS[case]
    breaks(tensors)
    with pytest.raises(CheckpointError, match=message):
        decode(tensors, tmp_path)


@pytest.mark.parametrize("blob", [b"[]", b'{"quant_type": "nf4"}', b'{"quant_type":"nf4","blocksize":0,"shape":[1,1]}'])
def test_an_absurd_state_is_refused(blob: bytes) -> None:
    with pytest.raises(CheckpointError, match="not a 4-bit matrix"):
        parse_state(blob, "model.safetensors: x")


def test_a_checkpoint_that_is_elsewhere_cannot_tell_its_shapes() -> None:
    tensors, _ = four_bit("nf4", double=False, dtype=torch.bfloat16)
    with pytest.raises(CheckpointError, match="only be read from a checkpoint on this disk"):
        CODEC.layers(facts_of(tensors, "bitsandbytes"))


def test_what_bitsandbytes_cannot_hold(tmp_path: Path) -> None:
    from quantlab.tensors.number_types import INT4
    from quantlab.tensors.quantize import quantize
    from quantlab.tensors.quantized import WeightFormat

    weight = quantize(awkward(16, 64), WeightFormat(INT4, "group", 32))
    obstacle = CODEC.obstacle(weight)
    assert obstacle is not None
    assert obstacle.rule == "number-type"
    with pytest.raises(ConversionRefused, match=rf"{NAME}: bitsandbytes holds nf4, fp4 and int8, the weight is int4"):
        CODEC.encode(NAME, weight)
