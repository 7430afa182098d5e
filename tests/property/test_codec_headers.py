"""Headers and configs of strangers: a codec groups them into layers or says in one error what is wrong."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantlab.checkpoint.facts import CheckpointFacts, TensorInfo
from quantlab.errors import QuantlabError
from quantlab.formats import FORMATS
from quantlab.tensors.number_types import FP4_E2M1, FP8_E4M3FN, signed_int
from quantlab.tensors.quantize import quantize
from quantlab.tensors.quantized import WeightFormat
from tests.awkward import awkward, checkpoint

pytestmark = pytest.mark.torch

SCHEMES = {
    "compressed-tensors/float-quantized": WeightFormat(FP8_E4M3FN, "block", block=(128, 128)),
    "compressed-tensors/int-quantized": WeightFormat(signed_int(8), "channel"),
    "compressed-tensors/mixed-precision": WeightFormat(FP4_E2M1, "group", 16),
    "compressed-tensors/mxfp4-pack-quantized": WeightFormat(FP4_E2M1, "group", 32),
    "compressed-tensors/mxfp8-quantized": WeightFormat(FP8_E4M3FN, "group", 32),
    "compressed-tensors/naive-quantized": WeightFormat(signed_int(8), "group", 32, symmetric=False),
    "compressed-tensors/nvfp4-pack-quantized": WeightFormat(FP4_E2M1, "group", 16),
    "compressed-tensors/pack-quantized": WeightFormat(signed_int(3), "group", 32, symmetric=False),
    "fbgemm_fp8": WeightFormat(FP8_E4M3FN, "channel"),
    "fp8": WeightFormat(FP8_E4M3FN, "block", block=(128, 128), scale_type="float32"),
    "fp8-fnuz": WeightFormat(FP8_E4M3FN, "block", block=(128, 128), scale_type="float32"),
    "modelopt": WeightFormat(FP4_E2M1, "group", 16),
}
DTYPES = ["BF16", "F32", "I32", "U8", "I8", "F8_E4M3", "F8_E8M0", "I64", "F64"]
NONSENSE: list[Any] = [None, 0, -1, 3, 1e9, "x", "", [], [0, 0], {}, True, ["re:("], {"weights": 7}]


def _facts(form: str) -> CheckpointFacts:
    codec = FORMATS[form]
    weight = quantize(awkward(64, 128), SCHEMES[form])
    config = codec.config({"a.b": weight.format}, (), checkpoint({}, "dense", None))
    return checkpoint(codec.encode("a.b", weight), form, config)


FACTS = {form: _facts(form) for form in SCHEMES}


@st.composite
def mutated(draw: st.DrawFn) -> CheckpointFacts:
    """Return the facts of a small checkpoint with one or two tensors or config values changed."""
    facts = FACTS[draw(st.sampled_from(sorted(SCHEMES)))]
    tensors = dict(facts.tensors)
    for _ in range(draw(st.integers(0, 2))):
        name = draw(st.sampled_from(sorted(tensors)))
        info = tensors.pop(name)
        match draw(st.sampled_from(["drop", "shape", "dtype", "name"])):
            case "shape":
                sizes = draw(st.lists(st.sampled_from([0, 1, 2, 3, 4, 64, 127, 2**31]), max_size=4))
                tensors[name] = replace(info, shape=tuple(sizes))
            case "dtype":
                tensors[name] = replace(info, dtype=draw(st.sampled_from(DTYPES)))
            case "name":
                other = name + draw(st.sampled_from(["_scale", ".weight", "x", "_packed"]))
                tensors[other] = TensorInfo(other, info.dtype, info.shape, info.file, info.start, info.end)
        if not tensors:
            break
    return replace(facts, tensors=tensors, quantization_config=draw(_configs(facts.quantization_config or {})))


@st.composite
def _configs(draw: st.DrawFn, config: dict[str, Any]) -> dict[str, Any]:
    config = copy.deepcopy(config)
    places: list[tuple[dict[str, Any], str]] = []

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            places.extend((node, key) for key in node)
            for value in node.values():
                walk(value)

    walk(config)
    if draw(st.booleans()):
        node, key = draw(st.sampled_from(places))
        node[key] = draw(st.sampled_from(NONSENSE))
    return config


@settings(deadline=None, max_examples=400)
@given(mutated())
def test_a_codec_never_breaks_on_headers(facts: CheckpointFacts) -> None:
    try:
        layers = FORMATS[facts.format].layers(facts)
    except QuantlabError as error:
        if not error.message or "\n" in error.message:
            pytest.fail(f"not one line: {error.message!r}")
        return
    for layer in layers:
        assert set(layer.tensors.values()) <= set(facts.tensors)
        assert len(layer.shape) in (2, 3)


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(sorted(SCHEMES)), st.integers(0, 2**31))
def test_any_bytes_in_the_right_shape_decode_or_are_refused(form: str, seed: int) -> None:
    """Random bytes are codes like any others; NaN scales are refused."""
    facts, codec = FACTS[form], FORMATS[form]
    generator = torch.Generator().manual_seed(seed)
    weight = codec.encode("a.b", quantize(awkward(64, 128), SCHEMES[form]))
    for layer in codec.layers(facts):
        tensors = {}
        for role, name in layer.tensors.items():
            size = weight[name].numel() * weight[name].element_size()
            octets = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
            tensors[role] = octets.view(weight[name].dtype).view(weight[name].shape)
        try:
            decoded = codec.decode(layer, tensors)
        except QuantlabError:
            continue
        again = codec.encode(layer.name, decoded)
        for role in ("weight", "packed"):
            if role in tensors and form != "fp8-fnuz":
                name = layer.tensors[role]
                same = again[name].view(torch.uint8) == tensors[role].view(torch.uint8)
                assert bool(same.all()) or form.endswith("pack-quantized")
