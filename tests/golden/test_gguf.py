"""GGUF: blocks against the gguf package, whole files against transformers' own GGUF loader, tokenizers both ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize as gguf_dequantize
from gguf.quants import quantize as gguf_quantize
from safetensors.torch import load_file, save_file

from quantlab.conversion.gguf_file import folder_to_gguf, gguf_to_folder
from quantlab.errors import CheckpointError, ConversionRefused
from quantlab.formats.gguf import read_model
from quantlab.formats.gguf_blocks import BLOCKS, block_obstacle, decode_blocks, encode_blocks
from quantlab.formats.gguf_rope import llama3_factors
from quantlab.tensors.dequantize import dequantize
from quantlab.tensors.number_types import INT4, INT8
from quantlab.tensors.quantize import quantize
from quantlab.tensors.quantized import WeightFormat
from tests.golden.layer_reading import awkward, same_bits

TEXT = "The year 1984, it's 12345 tokens; naïve café 日本語 \t\n\n  x = [1, 22]  # don't\n" * 3
SHAPE = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
SMALL = {**SHAPE, "num_key_value_heads": 2, "vocab_size": 320, "max_position_embeddings": 128}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"rope_theta": 500000.0, "head_dim": 16, "tie_word_embeddings": False},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 32, "tie_word_embeddings": False},
}


def make_tokenizer(folder: Path, pre: str = "smollm") -> None:
    """Train a tiny byte-level BPE tokenizer that cuts text like a named pre-tokenizer of the data."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    from quantlab.formats.gguf_names import gguf_data
    from quantlab.formats.gguf_tokenizer import pre_tokenizer_steps

    entry = gguf_data()["pre_tokenizers"][pre]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(vocab_size=310, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator([TEXT], trainer)
    content = json.loads(tokenizer.to_str())
    steps = pre_tokenizer_steps(entry)
    content["pre_tokenizer"] = steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps}
    content["normalizer"] = {"type": entry["normalizer"]} if entry.get("normalizer") else None
    content["model"]["ignore_merges"] = bool(entry.get("ignore_merges"))
    (folder / "tokenizer.json").write_text(json.dumps(content))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "pad_token": {"__type": "AddedToken", "content": "<|im_end|>"},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")


def make_folder(folder: Path, kind: str, *, pre: str = "smollm", dtype: torch.dtype = torch.bfloat16) -> Path:
    """Save a tiny random model of a family, with tokenizer."""
    from transformers import AutoConfig, AutoModelForCausalLM

    folder.mkdir()
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**SMALL, **MODELS.get(kind, {})})
    AutoModelForCausalLM.from_config(config, dtype=dtype).save_pretrained(folder)
    make_tokenizer(folder, pre)
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks_equal_the_gguf_package(kind: str) -> None:
    table = GGMLQuantizationType[kind]
    raw = gguf_quantize(awkward(16, 128).numpy(), table)
    weight = decode_blocks(torch.from_numpy(raw), kind)
    reference = torch.from_numpy(np.array(gguf_dequantize(raw, table)))
    assert same_bits(dequantize(weight), reference)
    assert same_bits(encode_blocks(weight, kind), torch.from_numpy(raw))


def test_random_bytes_decode_as_the_gguf_package_decodes_them() -> None:
    generator = torch.Generator().manual_seed(1)
    for kind, block in BLOCKS.items():
        raw = torch.randint(0, 256, (64, 4 * block.bytes), dtype=torch.uint8, generator=generator)
        reference = torch.from_numpy(np.array(gguf_dequantize(raw.numpy(), GGMLQuantizationType[kind])))
        decoded = dequantize(decode_blocks(raw, kind))
        usable = reference.isfinite() & decoded.isfinite()
        assert usable.float().mean() > 0.9
        assert torch.equal(decoded[usable], reference[usable]), kind  # MXFP4: gguf has no minus zero


def test_wider_groups_repeat_their_scale() -> None:
    for number, kind in ((INT4, "Q4_0"), (INT8, "Q8_0")):
        for scheme in (WeightFormat(number, "group", 64), WeightFormat(number, "channel")):
            weight = quantize(awkward(16, 128).to(torch.float16), scheme)
            assert block_obstacle(weight, kind) is None
            assert same_bits(dequantize(decode_blocks(encode_blocks(weight, kind), kind)), dequantize(weight))


def test_zero_points_go_into_q4_1_where_float16_holds_their_product() -> None:
    weight = quantize(torch.randn(16, 64).half(), WeightFormat(INT4, "group", 32, symmetric=False))
    assert block_obstacle(weight, "Q4_0") == "it has no zero points"
    assert block_obstacle(weight, "Q4_1") == "a zero point times its scale does not survive float16"
    power = torch.full_like(weight.scales, 0.125)
    from dataclasses import replace

    even = replace(weight, scales=power)
    assert torch.equal(dequantize(decode_blocks(encode_blocks(even, "Q4_1"), "Q4_1")), dequantize(even))


OBSTACLES = {
    "whole blocks": WeightFormat(INT4, "group", 16),
    "float16": WeightFormat(INT4, "group", 32),
    "its numbers are int4": WeightFormat(INT8, "group", 32),
}


@pytest.mark.parametrize("reason", OBSTACLES)
def test_what_blocks_cannot_hold(reason: str) -> None:
    weight = quantize(torch.randn(16, 64) * 1e-9, OBSTACLES[reason])
    assert reason in str(block_obstacle(weight, "Q4_0"))
    with pytest.raises(ConversionRefused, match="Q4_0 cannot hold the weight as it is"):
        encode_blocks(weight, "Q4_0")


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_0", "Q4_1"])
def test_transformers_loads_what_is_written(family: str, kind: str, tmp_path: Path) -> None:
    """Every parameter of transformers' own loader equals our reading and the gguf package's rounding."""
    from transformers import AutoModelForCausalLM

    source = make_folder(tmp_path / "model", family, pre="qwen2" if "qwen" in family else "llama-bpe")
    report = folder_to_gguf(source, tmp_path / "model.gguf", kind).report
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32)
    theirs = loaded.state_dict()
    ours = dict(read_model(tmp_path / "model.gguf").tensors(torch.float32))
    original = weights(source)
    assert ours.keys() == original.keys()
    for name, tensor in ours.items():
        assert same_bits(tensor, theirs[name]), name
    assert report.types[kind] >= 14
    name = "model.layers.1.mlp.down_proj.weight"
    table = GGMLQuantizationType[kind]
    rounded = gguf_dequantize(gguf_quantize(original[name].float().numpy(), table), table)
    assert torch.equal(ours[name], torch.from_numpy(np.array(rounded)))


@pytest.mark.parametrize("family", MODELS)
def test_a_folder_through_bf16_comes_back_as_it_was(family: str, tmp_path: Path) -> None:
    source = make_folder(tmp_path / "model", family)
    result = folder_to_gguf(source, tmp_path / "model.gguf", "BF16")
    assert result.compared == len(weights(source))
    assert gguf_to_folder(tmp_path / "model.gguf", tmp_path / "back") == len(weights(source))
    before, after = weights(source), weights(tmp_path / "back")
    assert before.keys() == after.keys()
    assert all(same_bits(after[name], before[name]) for name in before)

    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    one, other = (AutoConfig.from_pretrained(folder) for folder in (source, tmp_path / "back"))
    for key in ("hidden_size", "num_key_value_heads", "head_dim", "rope_parameters", "rms_norm_eps", "vocab_size"):
        assert getattr(one, key, None) == getattr(other, key, None) or key == "head_dim", key
    ids = torch.tensor([[5, 7, 300, 12]])
    logits = [
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(ids).logits
        for folder in (source, tmp_path / "back")
    ]
    assert torch.equal(*logits)
    tokenizers = [AutoTokenizer.from_pretrained(folder) for folder in (source, tmp_path / "back")]
    assert tokenizers[0](TEXT)["input_ids"] == tokenizers[1](TEXT)["input_ids"]
    assert tokenizers[1].eos_token == "<|im_end|>"
    assert tokenizers[1].chat_template == tokenizers[0].chat_template
    assert not list(tmp_path.glob(".*partial*"))


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_pre_tokenizers_keep_their_names(pre: str, tmp_path: Path) -> None:
    from quantlab.formats.gguf_vocabulary import tokenizer_fields

    make_tokenizer(tmp_path, pre)
    fields = tokenizer_fields(tmp_path, {"vocab_size": 320})
    assert fields["tokenizer.ggml.pre"] == pre
    assert len(fields["tokenizer.ggml.tokens"]) == 320
    assert fields["tokenizer.ggml.token_type"][:4] == [3, 3, 3, 1]
    assert fields["tokenizer.ggml.eos_token_id"] == 2
    assert fields["tokenizer.ggml.add_bos_token"] is False


def test_an_unknown_pre_tokenizer_is_refused(tmp_path: Path) -> None:
    make_tokenizer(tmp_path)
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text())
    content["pre_tokenizer"] = {"type": "Whitespace"}
    file.write_text(json.dumps(content))
    from quantlab.formats.gguf_vocabulary import tokenizer_fields

    with pytest.raises(ConversionRefused, match="cuts text with Whitespace, which has no known GGUF name"):
        tokenizer_fields(tmp_path, {})


def test_sentence_piece_merges_survive_as_scores(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    from quantlab.formats.gguf_tokenizer import tokenizer_files
    from quantlab.formats.gguf_vocabulary import tokenizer_fields

    letters = ["▁", *"abcdehlort", "he", "ll", "hell", "hello", "▁hello", "▁t", "▁the", "or", "▁a"]
    vocab = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    merges = [["h", "e"], ["l", "l"], ["▁", "t"], ["o", "r"], ["▁t", "he"], ["he", "ll"], ["hell", "o"],
              ["▁", "hello"], ["▁", "a"]]  # fmt: skip
    model = {
        "type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
        "vocab": {token: index for index, token in enumerate(vocab)}, "merges": merges,
    }  # fmt: skip
    added = [
        {"id": index, "content": vocab[index], "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for index in range(3)
    ]  # fmt: skip
    normalizer = {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ],
    }
    content = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normalizer,
        "pre_tokenizer": None, "post_processor": None, "decoder": None, "model": model,
    }  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    fields = tokenizer_fields(tmp_path, {})
    assert fields["tokenizer.ggml.model"] == "llama"
    assert fields["tokenizer.ggml.token_type"][:5] == [2, 3, 3, 6, 6]
    back = Tokenizer.from_str(tokenizer_files(fields)["tokenizer.json"])
    first = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in ("hello the a hello", "the cat", "zebra hello", "a"):
        assert back.encode(text).tokens == first.encode(text).tokens


def quantized_folder(tmp_path: Path, scheme: WeightFormat) -> Path:
    """Make a tiny GPTQ folder by our own codec from round-to-nearest codes."""
    from quantlab.checkpoint.open import read
    from quantlab.formats import FORMATS

    source = make_folder(tmp_path / "dense", "llama", dtype=torch.float16)
    target = tmp_path / "gptq"
    target.mkdir()
    tensors: dict[str, torch.Tensor] = {}
    schemes = {}
    for name, tensor in weights(source).items():
        if "_proj." in name:
            module = name.removesuffix(".weight")
            weight = quantize(tensor, scheme)
            schemes[module] = weight.format
            tensors |= FORMATS["gptq"].encode(module, weight)
        else:
            tensors[name] = tensor
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = FORMATS["gptq"].config(schemes, ("lm_head",), read(source))
    (target / "config.json").write_text(json.dumps(config))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (target / file).write_bytes((source / file).read_bytes())
    return target


def test_symmetric_gptq_becomes_q4_0_with_the_same_numbers(tmp_path: Path) -> None:
    source = quantized_folder(tmp_path, WeightFormat(INT4, "group", 32))
    result = folder_to_gguf(source, tmp_path / "out.gguf", "Q4_0")
    assert len(result.report.exact) == 14
    assert result.report.types == {"F16": 2, "F32": 5, "Q4_0": 14}
    assert result.compared == 14 + 5
    with pytest.raises(ConversionRefused, match=r"_proj\.weight: Q8_0 cannot hold the codes .*int4"):
        folder_to_gguf(source, tmp_path / "other.gguf", "Q8_0")
    assert [file.name for file in tmp_path.glob("*.gguf*")] == ["out.gguf"]
    forced = folder_to_gguf(source, tmp_path / "other.gguf", "Q8_0", requantize=True)
    assert forced.report.exact == ()


@pytest.mark.parametrize("kind", ["qwen2_moe", "qwen3_moe", "mixtral"])
def test_experts_are_stacked_and_taken_apart(kind: str, tmp_path: Path) -> None:
    sizes = {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 64, "num_experts_per_tok": 2}
    MODELS[kind] = {**sizes, "num_experts": 4, "num_local_experts": 4, "head_dim": 16, "tie_word_embeddings": False}
    source = make_folder(tmp_path / "model", kind)
    folder_to_gguf(source, tmp_path / "model.gguf", "BF16")
    gguf_to_folder(tmp_path / "model.gguf", tmp_path / "back")
    before, after = weights(source), weights(tmp_path / "back")
    assert before.keys() == after.keys()
    assert any(".experts.3." in name for name in before)
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_llama3_rope_scaling_survives_as_factors(tmp_path: Path) -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    source = make_folder(tmp_path / "model", "llama")
    config = json.loads((source / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "llama3", "rope_theta": 500000.0, **scaling}
    (source / "config.json").write_text(json.dumps(config))
    folder_to_gguf(source, tmp_path / "model.gguf", "F16")
    assert read_model(tmp_path / "model.gguf").config["rope_scaling"] == {"rope_type": "llama3", **scaling}
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    reference = AutoConfig.from_pretrained(source)
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](reference, "cpu")
    plain = 1.0 / (500000.0 ** (torch.arange(0, 16, 2).float() / 16))
    factors = torch.tensor(llama3_factors(500000.0, 16, scaling))
    torch.testing.assert_close(plain / factors, frequencies)


BREAKS = {
    "not gguf": (lambda raw: b"GGML" + raw[4:], "does not begin with GGUF"),
    "cut in the metadata": (lambda raw: raw[:300], "damaged or cut short"),
    "cut in the weights": (lambda raw: raw[:-4000], "damaged or cut short"),
    "absurd count": (lambda raw: raw[:8] + b"\xff" * 8 + raw[16:], "damaged or cut short"),
}


@pytest.mark.parametrize("case", BREAKS)
def test_damaged_files_are_one_clear_error(case: str, tmp_path: Path) -> None:
    source = make_folder(tmp_path / "model", "llama")
    folder_to_gguf(source, tmp_path / "model.gguf", "Q8_0")
    breaks, message = BREAKS[case]
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(breaks((tmp_path / "model.gguf").read_bytes()))
    with pytest.raises(CheckpointError, match=message):
        gguf_to_folder(damaged, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_refusals_leave_nothing(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "model", "llama")
    taken = tmp_path / "taken.gguf"
    taken.write_bytes(b"mine")
    with pytest.raises(CheckpointError, match="exists already"):
        folder_to_gguf(source, taken, "F16")
    assert taken.read_bytes() == b"mine"
    (source / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing"):
        folder_to_gguf(source, tmp_path / "out.gguf", "F16")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))
    with pytest.raises(CheckpointError, match="'mamba' cannot be written as GGUF"):
        folder_to_gguf(source, tmp_path / "out.gguf", "F16")
    assert [file.name for file in tmp_path.iterdir() if "gguf" in file.name] == ["taken.gguf"]


def test_values_beyond_float16_are_refused(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "model", "llama")
    tensors = weights(source)
    tensors["model.layers.0.mlp.up_proj.weight"][0, 0] = 1e30
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConversionRefused, match=r"up_proj\.weight has values that F16 cannot hold"):
        folder_to_gguf(source, tmp_path / "out.gguf", "F16")
    assert not (tmp_path / "out.gguf").exists()
