"""Parameter counts and memory equal what the published models have."""

import json
from pathlib import Path

import pytest

from quantlab.checkpoint.open import read
from quantlab.errors import CheckpointError
from quantlab.hardware.memory import count_parameters, footprint, kv_cache_bytes

SHAPES = Path(__file__).resolve().parents[2] / "scripts" / "shapes"

DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 7168,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128,
    "num_key_value_heads": 128, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280, "tie_word_embeddings": False,
}  # fmt: skip


def facts(tmp_path, config):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    return read(str(file))


@pytest.mark.parametrize(
    ("shape", "billions"),
    [("llama-3.1-8b", 8.030), ("llama-3.2-1b", 1.236), ("qwen3-30b-a3b", 30.532)],
)
def test_counts_from_a_config_are_the_model_cards_counts(shape, billions):
    assert count_parameters(read(str(SHAPES / f"{shape}.json"))).total / 1e9 == pytest.approx(billions, abs=0.001)


def test_latent_attention_and_shared_experts_are_counted(tmp_path):
    found = facts(tmp_path, DEEPSEEK_V3)
    assert count_parameters(found).total / 1e9 == pytest.approx(671.03, abs=0.01)
    assert kv_cache_bytes(found, context=1000, batch=1) == (512 + 64) * 61 * 1000 * 2


def test_headers_and_config_give_the_same_count(sample_model):
    config_only = read(str(sample_model / "config.json"))
    assert count_parameters(read(str(sample_model))).total == count_parameters(config_only).total


def test_grouped_heads_and_windows_shrink_the_cache(tmp_path):
    llama = read(str(SHAPES / "llama-3.1-8b.json"))
    assert kv_cache_bytes(llama, context=8192, batch=2) == 2 * 8 * 128 * 32 * 8192 * 2 * 2
    config = json.loads((SHAPES / "llama-3.1-8b.json").read_text())
    window = facts(tmp_path, {**config, "sliding_window": 1024})
    assert kv_cache_bytes(window, context=8192, batch=1) == 2 * 8 * 128 * 32 * 1024 * 2
    kinds = ["full_attention", "sliding_attention", "linear_attention", "sliding_attention"] * 8
    hybrid = facts(tmp_path, {**config, "sliding_window": 1024, "layer_types": kinds})
    assert kv_cache_bytes(hybrid, context=8192, batch=1) == 2 * 8 * 128 * (8 * 8192 + 16 * 1024) * 2


def test_a_step_reads_only_active_experts():
    moe = read(str(SHAPES / "qwen3-30b-a3b.json"))
    one = footprint(moe, bits_per_weight=16, context=1, batch=1)
    many = footprint(moe, bits_per_weight=16, context=1, batch=64)
    assert one.weights == many.weights == pytest.approx(2 * 30.532e9, rel=1e-3)
    assert one.read_per_step < 7e9
    assert many.read_per_step == pytest.approx(one.weights, rel=0.02)


def test_embeddings_stay_in_sixteen_bit():
    llama = read(str(SHAPES / "llama-3.2-1b.json"))
    counts = count_parameters(llama)
    four = footprint(llama, bits_per_weight=4.125, context=1, batch=1)
    assert four.weights == pytest.approx(counts.linear * 4.125 / 8 + 2 * (counts.embeddings + counts.other), abs=8)
    assert counts.embeddings == 128256 * 2048


def test_a_config_without_a_size_says_which(tmp_path):
    with pytest.raises(CheckpointError, match="vocab_size"):
        count_parameters(facts(tmp_path, {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2}))
