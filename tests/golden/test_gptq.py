"""GPTQ against GPTQModel's own packing and dequantizing, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from quantlab.errors import CheckpointError, ConversionRefused
from quantlab.formats import FORMATS
from quantlab.tensors.dequantize import dense_codes, dequantize
from quantlab.tensors.packing import unpack
from quantlab.tensors.quantized import PackedCodes
from tests.golden.layer_reading import awkward, decode_all, facts_of, same_bits

OUT, IN = 64, 96
META = {"meta": {"quantizer": ["gptqmodel:7.6.0"]}}


def gptqmodel_layer(bits: int, group: int, *, symmetric: bool, act_order: bool, version: int, zero: int | None = None):
    """Pack a weight with GPTQModel's TorchLinear; return the layer's tensors and its dequantized weight."""
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module

    generator = torch.Generator().manual_seed(bits)
    size = IN if group == -1 else group
    groups = -(-IN // size)
    weight = awkward(OUT, IN, seed=bits)
    top = 2**bits - 1
    scales = (weight.abs().amax(1, keepdim=True).expand(-1, groups) / (top / 2)).clamp(min=2.0**-20).half().float()
    zeros = torch.full((OUT, groups), float(2 ** (bits - 1)))
    if not symmetric:
        zeros = torch.randint(1, top + 1, (OUT, groups), generator=generator).float()
    if zero is not None:
        zeros[::3] = zero
    order = torch.arange(IN) // size
    if act_order:
        order = order[torch.randperm(IN, generator=generator)]
    linear = torch.nn.Linear(IN, OUT, bias=False)
    linear.weight.data = weight
    module = TorchLinear(
        bits=bits, group_size=group, sym=symmetric, desc_act=act_order, in_features=IN, out_features=OUT, bias=False
    )
    module.pack_original(linear, scales, zeros, order.int())
    module.post_init()
    module.eval()
    reference = module.dequantize_weight().T.contiguous()
    if version == 1:
        from gptqmodel.quantization.config import QuantizeConfig

        convert_gptq_v2_to_v1_format_module(module, QuantizeConfig(bits=bits, group_size=group))
    names = ("qweight", "qzeros", "scales", "g_idx")
    tensors = {f"model.layers.0.mlp.up_proj.{name}": getattr(module, name).clone() for name in names}
    return tensors, reference


def config(bits: int, group: int, *, symmetric: bool, act_order: bool, version: int, **more: Any) -> dict[str, Any]:
    form = "gptq" if version == 1 else "gptq_v2"
    return {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group,
        "sym": symmetric,
        "desc_act": act_order,
        "checkpoint_format": form,
        **more,
    }


CASES = [
    (bits, group, symmetric, act_order, version)
    for bits in (2, 3, 4, 8)
    for group, act_order in ((32, False), (32, True), (-1, False))
    for symmetric in (True, False)
    for version in (1, 2)
]


@pytest.mark.parametrize(("bits", "group", "symmetric", "act_order", "version"), CASES)
def test_decode_equals_gptqmodel(bits: int, group: int, symmetric: bool, act_order: bool, version: int) -> None:
    case = {"symmetric": symmetric, "act_order": act_order, "version": version}
    tensors, reference = gptqmodel_layer(bits, group, **case)
    (weight,) = decode_all(tensors, "gptq", config(bits, group, **case, **META)).values()
    assert (weight.zeros is None) == symmetric
    assert (weight.group_map is not None) == act_order
    assert same_bits(dequantize(weight, torch.float16), reference.half())


@pytest.mark.parametrize(("bits", "group", "symmetric", "act_order", "version"), CASES)
def test_encode_gives_the_same_bytes(bits: int, group: int, symmetric: bool, act_order: bool, version: int) -> None:
    case = {"symmetric": symmetric, "act_order": act_order, "version": version}
    tensors, _ = gptqmodel_layer(bits, group, **case)
    ((name, weight),) = decode_all(tensors, "gptq", config(bits, group, **case, **META)).items()
    codec = FORMATS["gptq" if version == 1 else "gptq_v2"]
    assert codec.obstacle(weight) is None
    for plain in (weight, weight.with_codes(dense_codes(weight))):
        written = codec.encode(name, plain)
        assert written.keys() == tensors.keys()
        for key, tensor in tensors.items():
            assert same_bits(written[key], tensor), key


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_zero_point_0_of_version_1_survives_where_gptqmodel_wrote_it(bits: int) -> None:
    case = {"symmetric": False, "act_order": False}
    tensors, reference = gptqmodel_layer(bits, 32, **case, version=1, zero=0)
    (weight,) = decode_all(tensors, "gptq", config(bits, 32, **case, version=1, **META)).values()
    assert same_bits(dequantize(weight, torch.float16), reference.half())
    assert weight.doubts == ()
    obstacle = FORMATS["gptq"].obstacle(weight)
    assert obstacle is not None
    assert obstacle.rule == "v1-zero"
    assert FORMATS["gptq_v2"].obstacle(weight) is None
    with pytest.raises(ConversionRefused, match=r"model\.layers\.0.*zero point is 0"):
        FORMATS["gptq"].encode("model.layers.0", weight)


@pytest.mark.parametrize("meta", [{}, {"meta": {"quantizer": ["autogptq:0.7"]}}])
def test_zero_point_0_of_another_writer_is_ambiguous(meta: dict[str, Any]) -> None:
    case = {"symmetric": False, "act_order": False, "version": 1}
    tensors, _ = gptqmodel_layer(4, 32, **case)
    (clear,) = decode_all(tensors, "gptq", config(4, 32, **case, **meta)).values()
    assert clear.doubts == ()
    tensors["model.layers.0.mlp.up_proj.qzeros"][0, 0] |= 0xF0
    (weight,) = decode_all(tensors, "gptq", config(4, 32, **case, **meta)).values()
    assert len(weight.doubts) == 1


def test_a_config_that_calls_itself_symmetric_does_not_hide_zero_points() -> None:
    tensors, reference = gptqmodel_layer(4, 32, symmetric=False, act_order=False, version=2)
    settings = config(4, 32, symmetric=True, act_order=False, version=2)
    (weight,) = decode_all(tensors, "gptq", settings).values()
    assert weight.zeros is not None
    assert not weight.format.symmetric
    assert same_bits(dequantize(weight, torch.float16), reference.half())


def test_bits_and_groups_of_single_layers_come_from_their_shapes() -> None:
    tensors, reference = gptqmodel_layer(8, 32, symmetric=True, act_order=False, version=1)
    settings = config(4, 128, symmetric=True, act_order=False, version=1)
    (weight,) = decode_all(tensors, "gptq", settings).values()
    assert (weight.format.number.bits, weight.format.group_size) == (8, 32)
    assert same_bits(dequantize(weight, torch.float16), reference.half())


def test_words_stay_words_on_the_way_through() -> None:
    tensors, _ = gptqmodel_layer(4, 32, symmetric=True, act_order=False, version=1)
    ((name, weight),) = decode_all(tensors, "gptq", {"bits": 4, "group_size": 32, "sym": True}).items()
    assert isinstance(weight.codes, PackedCodes)
    assert weight.codes.words is tensors[f"{name}.qweight"]
    assert unpack(weight.codes).amin() >= -8


BREAKS = {
    "scales missing": (lambda t, n: t.pop(f"{n}.scales"), r"scales is missing.*layer-incomplete"),
    "scales of another layer": (
        lambda t, n: t.update({f"{n}.scales": t[f"{n}.scales"][:, :-8]}),
        r"model\.safetensors: \S+scales: shape is .*tensor-shape",
    ),
    "float codes": (lambda t, n: t.update({f"{n}.qweight": t[f"{n}.qweight"].float()}), r"dtype is F32"),
    "g_idx too long": (
        lambda t, n: t.update({f"{n}.g_idx": torch.zeros(IN + 32, dtype=torch.int32)}),
        r"rows of words do not hold 128 inputs",
    ),
    "zeros of no width": (
        lambda t, n: t.update({f"{n}.qzeros": t[f"{n}.qzeros"][:, :-1]}),
        r"qzeros: shape is .* none of",
    ),
    "NaN scale": (lambda t, n: t[f"{n}.scales"].__setitem__((0, 0), float("nan")), r"scales: a scale is not a finite"),
    "group map outside": (lambda t, n: t[f"{n}.g_idx"].__setitem__(0, 99), r"g_idx: group 99 is outside the 3 groups"),
}


@pytest.mark.parametrize("case", BREAKS)
def test_a_broken_layer_names_file_tensor_and_rule(case: str) -> None:
    tensors, _ = gptqmodel_layer(4, 32, symmetric=True, act_order=False, version=1)
    breaks, message = BREAKS[case]
    breaks(tensors, "model.layers.0.mlp.up_proj")
    with pytest.raises(CheckpointError, match=message):
        decode_all(tensors, "gptq", {"bits": 4, "group_size": 32, "sym": True})


@pytest.mark.parametrize("form", ["marlin", "bitblas", "gptq_p"])
def test_other_layouts_under_the_same_name_are_refused(form: str) -> None:
    with pytest.raises(CheckpointError, match=f"checkpoint_format is '{form}'"):
        FORMATS["gptq"].layers(facts_of({}, "gptq", {"bits": 4, "checkpoint_format": form}))


def test_an_old_autogptq_folder_says_its_numbers_in_quantize_config(tmp_path: Any) -> None:
    """No quantization_config in config.json, a companion file, no checkpoint_format: version 1, by field."""
    import json

    from safetensors.torch import save_file

    from quantlab.checkpoint.open import read

    tensors, reference = gptqmodel_layer(4, 32, symmetric=False, act_order=True, version=1)
    save_file(tensors, tmp_path / "gptq_model-4bit-32g.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "torch_dtype": "float16"}))
    settings = {
        "bits": 4,
        "group_size": 32,
        "damp_percent": 0.01,
        "desc_act": True,
        "sym": False,
        "true_sequential": True,
    }
    (tmp_path / "quantize_config.json").write_text(json.dumps(settings))
    facts = read(tmp_path)
    assert facts.format == "gptq"
    (layer,) = FORMATS["gptq"].layers(facts)
    weight = FORMATS["gptq"].decode(layer, {role: tensors[name] for role, name in layer.tensors.items()})
    assert weight.dtype == "float16"
    assert weight.group_map is not None
    assert same_bits(dequantize(weight, torch.float16), reference.half())
    from quantlab.formats.awq import CODEC as AWQ

    obstacle = AWQ.obstacle(weight)
    assert obstacle is not None
    assert obstacle.rule == "act-order"
