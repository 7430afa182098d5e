"""GGUF heads: equal to the gguf package's reading, and one error for each malformed file."""

import struct

import numpy as np
import pytest

from quantlab.checkpoint.gguf_header import ArrayLength, read_gguf_header
from quantlab.checkpoint.open import read
from quantlab.errors import CheckpointError

gguf = pytest.importorskip("gguf")


@pytest.fixture
def model(tmp_path):
    """A GGUF file that the package wrote: one Q8_0, one Q4_1, one F32 tensor and a vocabulary."""
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_embedding_length(64)
    writer.add_context_length(2048)
    writer.add_head_count(4)
    writer.add_token_list([f"token{n}" for n in range(5000)])
    writer.add_float32("llama.rope.freq_base", 10000.0)
    weights = np.random.default_rng(0).normal(size=(32, 64)).astype(np.float32)
    for name, kind in (("token_embd.weight", "Q8_0"), ("blk.0.ffn_up.weight", "Q4_1")):
        quant = getattr(gguf.GGMLQuantizationType, kind)
        writer.add_tensor(name, gguf.quantize(weights, quant), raw_dtype=quant)
    writer.add_tensor("output_norm.weight", np.ones(64, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_head_is_what_the_package_reads(model):
    header, theirs = read_gguf_header(model), gguf.GGUFReader(model)
    assert list(header.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        ours = header.tensors[tensor.name]
        assert ours.dtype == tensor.tensor_type.name
        assert ours.shape == tuple(int(size) for size in tensor.shape[::-1])
        assert (ours.start, ours.end - ours.start) == (tensor.data_offset, tensor.n_bytes)
    assert header.metadata["general.architecture"] == "llama"
    assert header.metadata["llama.rope.freq_base"] == 10000.0
    assert header.metadata["tokenizer.ggml.tokens"] == ArrayLength(5000)


def test_facts_of_a_gguf_file(model):
    facts = read(model)
    assert (facts.format, facts.scheme.mixed) == ("gguf", True)
    assert {(group.weights.bits, group.targets) for group in facts.scheme.groups} == {
        (8, ("token_embd",)), (4, ("blk.*.ffn_up",)),
    }  # fmt: skip
    assert facts.parameters["total"] == 2 * 32 * 64 + 64
    assert facts.architecture.vocab_size == 5000
    assert facts.tied_embeddings is True
    assert read(model.parent).format == "gguf", "a folder that holds one GGUF file is that file"


def test_every_type_that_the_package_sizes_has_the_same_size_here():
    from quantlab.matrix.data import read_section

    known = {str(kind["name"]): kind for kind in read_section("formats")["gguf"]["types"].values()}
    for kind, (block, width) in gguf.GGML_QUANT_SIZES.items():
        assert (known[kind.name]["block"], known[kind.name]["bytes"]) == (block, width), kind.name


def test_a_truncated_file_is_an_error_wherever_it_is_cut(model):
    content = model.read_bytes()
    start = read_gguf_header(model).tensors["token_embd.weight"].start
    for cut in [0, 3, 10, 23, 24, 60, start // 2, start - 1, len(content) - 1]:
        model.write_bytes(content[:cut])
        with pytest.raises(CheckpointError, match=r"model\.gguf"):
            read_gguf_header(model)


def test_forged_counts_are_refused_at_once(model):
    content = bytearray(model.read_bytes())
    content[8:16] = struct.pack("<Q", 2**60)
    model.write_bytes(content)
    with pytest.raises(CheckpointError, match="do not fit"):
        read_gguf_header(model)


def test_other_versions_and_files_are_named(tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF" + struct.pack(">I", 3) + bytes(32))
    with pytest.raises(CheckpointError, match="big endian"):
        read_gguf_header(path)
    path.write_bytes(b"ggml" + bytes(64))
    with pytest.raises(CheckpointError, match="does not begin with GGUF"):
        read_gguf_header(path)


def test_several_models_in_one_folder_are_not_guessed_between(model):
    model.with_name("other.gguf").write_bytes(model.read_bytes())
    with pytest.raises(CheckpointError, match="2 GGUF files"):
        read(model.parent)


def test_a_missing_part_of_a_split_file_is_named(model):
    model.rename(model.with_name("m-00001-of-00002.gguf"))
    with pytest.raises(CheckpointError, match=r"m-00002-of-00002\.gguf"):
        read(model.parent)
