"""Tiny random models with a real tokenizer, made once a session; every library really runs on them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quantlab.text import builtin

VOCABULARY = 512


def write_tokenizer(folder: Path) -> None:
    """A byte-level BPE tokenizer, trained on the built-in text, without a padding token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([builtin("calibration").content[:40_000]], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "LICENSE").write_text("Apache-2.0\n")


def write_model(folder: Path, config) -> Path:
    """Random bf16 weights (seed 0) of a transformers config."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def _sizes(**more):
    common = {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 256,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": None,
    }
    return common | more


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory) -> Path:
    from transformers import LlamaConfig

    return write_model(tmp_path_factory.mktemp("models") / "tiny-llama", LlamaConfig(**_sizes()))


@pytest.fixture(scope="session")
def tiny_mixtral(tmp_path_factory) -> Path:
    from transformers import MixtralConfig

    config = MixtralConfig(**_sizes(num_local_experts=4, num_experts_per_tok=2))
    return write_model(tmp_path_factory.mktemp("models") / "tiny-mixtral", config)


@pytest.fixture(scope="session")
def tiny_qwen3_moe(tmp_path_factory) -> Path:
    from transformers import Qwen3MoeConfig

    config = Qwen3MoeConfig(
        **_sizes(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=128, head_dim=32, norm_topk_prob=True)
    )
    return write_model(tmp_path_factory.mktemp("models") / "tiny-qwen3-moe", config)


@pytest.fixture(scope="session")
def tiny_gpt_oss(tmp_path_factory) -> Path:
    from transformers import GptOssConfig

    config = GptOssConfig(
        **_sizes(num_local_experts=4, num_experts_per_tok=2, intermediate_size=128, head_dim=32, sliding_window=64)
    )
    return write_model(tmp_path_factory.mktemp("models") / "tiny-gpt-oss", config)
