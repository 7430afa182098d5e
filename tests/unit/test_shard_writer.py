"""Files that are written piece by piece are ordinary safetensors files."""

import os
import threading

import pytest
import torch
from safetensors import safe_open

from quantlab.conversion.shard_writer import DTYPE_WORDS, ShardWriter, copy_range, piece_of, read_into


def write(path, tensors, room=4096):
    writer = ShardWriter(path, room, {"format": "pt"})
    for number, (name, tensor) in enumerate(tensors.items()):
        (offset,) = writer.claim(number, [piece_of(name, tensor)])
        writer.write(tensor, offset)
    return writer.finish()


@pytest.mark.parametrize("room", [64, 4096])
def test_safetensors_reads_every_dtype_even_when_the_header_outgrows_its_room(tmp_path, room):
    tensors = {
        str(dtype): torch.arange(6).reshape(2, 3).to(dtype)
        for dtype in DTYPE_WORDS
        if dtype not in (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)  # the installed reader knows none of them
    }
    tensors |= {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 4), "transposed": torch.arange(6).reshape(2, 3).T}
    size = write(tmp_path / "a.safetensors", tensors, room)
    assert size == (tmp_path / "a.safetensors").stat().st_size
    with safe_open(tmp_path / "a.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert set(file.keys()) == set(tensors)
        for name, tensor in tensors.items():
            found = file.get_tensor(name)
            assert found.dtype == tensor.dtype
            assert found.shape == tensor.shape
            assert torch.equal(found.reshape(-1).view(torch.uint8), tensor.contiguous().reshape(-1).view(torch.uint8))
    assert list(tmp_path.iterdir()) == [tmp_path / "a.safetensors"]


def test_the_bytes_do_not_depend_on_which_thread_is_first(tmp_path):
    tensors = {f"t{number}": torch.full((100 + number,), number) for number in range(20)}
    write(tmp_path / "plain", tensors)
    writer = ShardWriter(tmp_path / "threads", 4096, {"format": "pt"})

    def one(number, name, tensor):
        (offset,) = writer.claim(number, [piece_of(name, tensor)])
        writer.write(tensor, offset)

    threads = [
        threading.Thread(target=one, args=(number, name, tensor))
        for number, (name, tensor) in reversed(list(enumerate(tensors.items())))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.finish()
    assert (tmp_path / "threads").read_bytes() == (tmp_path / "plain").read_bytes()


def test_a_stopped_shard_wakes_those_who_wait_and_leaves_nothing(tmp_path):
    writer = ShardWriter(tmp_path / "a", 64, {})
    seen = []

    def wait():
        try:
            writer.claim(5, [])
        except InterruptedError as error:
            seen.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    writer.stop()
    thread.join(timeout=10)
    writer.abandon()
    assert seen == ["another job of this shard failed"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kernel", [True, False])
def test_ranges_are_copied_and_a_short_file_is_noticed(tmp_path, monkeypatch, kernel):
    if not kernel:
        monkeypatch.delattr(os, "copy_file_range", raising=False)
    (tmp_path / "in").write_bytes(bytes(range(100)))
    source, target = os.open(tmp_path / "in", os.O_RDONLY), os.open(tmp_path / "out", os.O_RDWR | os.O_CREAT)
    try:
        copy_range(source, 10, 50, target, 3)
        assert (tmp_path / "out").read_bytes() == bytes(3) + bytes(range(10, 60))
        with pytest.raises(EOFError):
            copy_range(source, 90, 50, target, 0)
        with pytest.raises(EOFError, match="5 bytes too early"):
            read_into(source, memoryview(bytearray(15)), 90)
    finally:
        os.close(source)
        os.close(target)
