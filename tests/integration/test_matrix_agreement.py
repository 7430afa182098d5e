"""A checkpoint's folder and a question with the same config get the same answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quantlab.matrix.api import check, judge
from quantlab.matrix.question import read_question

GPUS = (
    "sm_70",
    "sm_75",
    "sm_86",
    "sm_89",
    "sm_90",
    "sm_100",
    "sm_120",
    "gfx90a",
    "gfx942",
    "gfx950",
    "gfx1100",
    "gfx1201",
)
ENGINES = ("vllm", "transformers", "sglang")

CT_GROUP = {
    "targets": ["Linear"],
    "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True},
}
CONFIGS: dict[str, dict[str, Any]] = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False},
    "gptq-order": {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": True},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"},
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    "bnb": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "mxfp4": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
    "ct": {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": CT_GROUP}},
    "hqq": {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64, "axis": 1}}},
}
MODEL = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "vocab_size": 151936,
    "eos_token_id": [1, 2],
}


@pytest.mark.parametrize("name", CONFIGS)
def test_folder_and_question_agree(name: str, tmp_path: Path) -> None:
    config = CONFIGS[name]
    (tmp_path / "config.json").write_text(json.dumps({**MODEL, "quantization_config": config}), encoding="utf-8")
    for gpu in GPUS:
        for engine in ENGINES:
            folder = check(tmp_path, gpu=gpu, engine=engine).verdict
            words = {"quantization_config": config, "architecture": MODEL, "engine": engine, "device": {"arch": [gpu]}}
            question = judge(read_question(words))
            assert (folder.outcome, folder.sources) == (question.outcome, question.sources), (gpu, engine)
            assert folder == question
