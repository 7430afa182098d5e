"""Inspect on checkpoints that the libraries write themselves: the right numbers, every weight counted, no findings."""

import pytest

from quantlab.checkpoint.inspection import inspect

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dense")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=512,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


def torchao_int8():
    quantization = pytest.importorskip("torchao.quantization")
    return transformers.TorchAoConfig(quantization.Int8WeightOnlyConfig())


def torchao_int4():
    quantization = pytest.importorskip("torchao.quantization")
    config = quantization.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=quantization.PerGroup(64))
    return transformers.TorchAoConfig(config)


def bitsandbytes(**options):
    pytest.importorskip("bitsandbytes")
    return transformers.BitsAndBytesConfig(**options)


CASES = {
    "torchao int8": (torchao_int8, ("torchao", 8, "int", "channel", None)),
    "torchao int4": (torchao_int4, ("torchao", 4, "int", "group", 64)),
    "int8": (lambda: bitsandbytes(load_in_8bit=True), ("bitsandbytes", 8, "int", "channel", None)),
    "nf4": (
        lambda: bitsandbytes(load_in_4bit=True, bnb_4bit_quant_type="nf4"),
        ("bitsandbytes", 4, "nf4", "block", 64),
    ),
    "fp4, double": (
        lambda: bitsandbytes(load_in_4bit=True, bnb_4bit_use_double_quant=True),
        ("bitsandbytes", 4, "fp4", "block", 64),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_checkpoint_of_the_library(dense, tmp_path, name):
    make, expected = CASES[name]
    model = transformers.AutoModelForCausalLM.from_pretrained(
        dense, quantization_config=make(), dtype=torch.bfloat16, device_map="cpu"
    )
    model.save_pretrained(tmp_path)
    facts, source = inspect(tmp_path, deep=True), inspect(dense)
    weights = facts.scheme.weights
    assert (facts.format, weights.bits, weights.type, weights.granularity, weights.group_size) == expected
    assert facts.parameters == source.parameters
    assert facts.bytes["codes"] > 0
    assert facts.findings == ()
