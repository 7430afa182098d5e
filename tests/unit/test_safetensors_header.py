"""Headers of strangers: every malformed file is one error that names file and field."""

import json
import struct

import pytest
from safetensors.numpy import save_file

from quantlab.checkpoint.documents import parse_object, read_json
from quantlab.checkpoint.safetensors_header import read_header
from quantlab.errors import CheckpointError
from tests.unit.made_checkpoints import safetensors_bytes, tensor


def with_header(entries, data=b""):
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype="U8", shape=(4,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def test_a_file_of_the_library_is_read_with_absolute_offsets(tmp_path):
    import numpy as np

    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    path = tmp_path / "model.safetensors"
    save_file({"b": values, "a": np.zeros(3, dtype=np.int8)}, path, metadata={"format": "pt"})
    header = read_header(path)
    found = header.tensors["b"]
    assert (found.dtype, found.shape, found.file) == ("F32", (2, 3), "model.safetensors")
    assert path.read_bytes()[found.start : found.end] == values.tobytes()
    assert header.metadata == {"format": "pt"}
    assert header.size == path.stat().st_size


BAD = {
    "too few": b"\x01\x02",
    "limit": struct.pack("<Q", 2**30) + b"{}",
    "does not fit": struct.pack("<Q", 500) + b"{}",
    "pickle": b"PK\x03\x04" + bytes(64),
    "Git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n",
    "not JSON": with_header(b"{nonsense}"),
    "not an object": with_header(b"[]"),
    "occurs twice": with_header(b'{"x": 1, "x": 2}'),
    "levels deep": with_header(b"[" * 100_000),
    "unknown dtype": with_header({"x": entry("Q4_0")}, bytes(4)),
    "has shape": with_header({"x": entry(shape=(-4,))}, bytes(4)),
    "data_offsets": with_header({"x": entry(offsets=(-1, 3))}, bytes(4)),
    "needs 4 bytes": with_header({"x": entry(offsets=(0, 3))}, bytes(4)),
    "overlaps": with_header({"x": entry(), "y": entry(offsets=(2, 6))}, bytes(6)),
    "leaves a hole": with_header({"x": entry(), "y": entry(offsets=(6, 10))}, bytes(10)),
    "is truncated": with_header({"x": entry()}, bytes(3)),
    "behind its last": with_header({"x": entry()}, bytes(9)),
    "__metadata__": with_header({"__metadata__": 3, "x": entry()}, bytes(4)),
    "entry of tensor": with_header({"x": [1]}, bytes(4)),
}


@pytest.mark.parametrize("words", BAD)
def test_a_malformed_header_is_one_error(tmp_path, words):
    path = tmp_path / "evil.safetensors"
    path.write_bytes(BAD[words])
    with pytest.raises(CheckpointError) as caught:
        read_header(path)
    assert words in caught.value.message
    assert "evil.safetensors" in caught.value.message
    assert "\n" not in caught.value.message


def test_shape_products_that_overflow_are_refused(tmp_path):
    path = tmp_path / "evil.safetensors"
    path.write_bytes(with_header({"x": entry("F64", (2**40, 2**40), (0, 8))}, bytes(8)))
    with pytest.raises(CheckpointError, match="needs"):
        read_header(path)


def test_empty_tensors_and_scalars_are_honest(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_bytes({"none": tensor("F32", (0, 4)), "one": tensor("F32", ())}))
    assert {name: found.shape for name, found in read_header(path).tensors.items()} == {"none": (0, 4), "one": ()}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not JSON"),
        (b"[1]", "not an object"),
        (b"\xff\xfe", "not text"),
        (b'{"a": ' * 80 + b"1" + b"}" * 80, "levels deep"),
        (b'{"a":' * 200_000, "levels deep"),
        (b"version https://git-lfs.github.com/spec/v1", "not JSON"),
    ],
)
def test_a_malformed_document_is_one_error(content, words):
    with pytest.raises(CheckpointError, match=words) as caught:
        parse_object(content, "config.json")
    assert "config.json" in caught.value.message


def test_a_document_of_fifty_megabytes_is_answered(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", "noise": ["x" * 1000] * 50_000}))
    assert path.stat().st_size > 50 * 10**6
    assert read_json(path)["model_type"] == "llama"
