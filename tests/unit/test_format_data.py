"""The data under matrix/formats: sound, without two formats for one name, and complete for the loaders we know."""

import pytest

from quantlab.checkpoint.architecture import read_architecture
from quantlab.checkpoint.recognition import recognise
from quantlab.checkpoint.safetensors_header import DTYPE_BITS
from quantlab.checkpoint.schemes import SCHEME_READERS
from quantlab.checkpoint.sizes import kind_of
from quantlab.matrix.data import read_section

FORMATS = read_section("formats")


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_one_format(name):
    form = FORMATS[name]
    assert form["id"] == name
    assert form["title"]
    assert form["reader"] in SCHEME_READERS
    assert form["sources"], "a fact needs a source"
    tensors = form["tensors"]
    assert set(tensors) == {"codes", "scales", "zeros", "extra"}
    for suffix, dtypes in tensors["codes"].items():
        assert suffix.startswith((".", "_"))
        assert set(dtypes) <= set(DTYPE_BITS), name
    assert isinstance(form["written_by"], list)
    assert isinstance(form["read_by"], list)


def test_a_method_name_means_one_format():
    owners = {}
    for name, form in FORMATS.items():
        for method in form["quant_methods"]:
            assert method == method.lower()
            assert owners.setdefault(method, name) == name, method


def test_every_quantizer_of_transformers_is_known():
    methods = pytest.importorskip("transformers.utils.quantization_config").QuantizationMethod
    for method in methods:
        found = recognise({"quantization_config": {"quant_method": method.value}})
        assert found.format not in {"dense", "unknown"}, method


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.layers.3.mlp.experts.7.up_proj.weight", "experts"),
        ("model.layers.3.mlp.experts.gate_up_proj", "experts"),
        ("model.layers.3.mlp.shared_experts.up_proj.weight", "mlp"),
        ("model.layers.3.mlp.shared_expert.up_proj.weight", "mlp"),
        ("blk.3.ffn_gate_exps.weight", "experts"),
        ("model.layers.3.mlp.gate.weight", "mlp"),
        ("model.layers.0.self_attn.q_proj.qweight", "attention"),
        ("transformer.h.0.attn.c_attn.weight", "attention"),
        ("model.layers.0.input_layernorm.weight", "norms"),
        ("model.embed_tokens.weight", "embeddings"),
        ("token_embd.weight", "embeddings"),
        ("transformer.wte.weight", "embeddings"),
        ("lm_head.weight", "head"),
        ("output.weight", "head"),
        ("model.visual.blocks.0.attn.qkv.weight", "vision"),
        ("model.layers.0.mlp.down_proj.weight", "mlp"),
    ],
)
def test_what_a_tensor_belongs_to(name, kind):
    assert kind_of(name) == kind


def test_sizes_of_a_multimodal_model_are_the_language_models():
    shape = read_architecture(
        {"hidden_size": 1, "text_config": {"hidden_size": 4096, "num_experts": 8}, "vision_config": {"a": 1}}
    )
    assert (shape.hidden_size, shape.num_experts, shape.multimodal) == (4096, 8, True)
