"""From a checkpoint folder to one GGUF file and back.

A GGUF file is no folder of shards with a config beside them, so neither way goes through the plan of jobs: weights
stream one after the other, the output appears whole or not at all, and what must be exact is read back and compared.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from quantlab.conversion.origin import Origin, open_origin
from quantlab.conversion.shard_writer import ShardWriter, piece_of
from quantlab.conversion.source import TensorSource
from quantlab.conversion.staging import check_output
from quantlab.errors import ConversionRefused
from quantlab.formats import FORMATS
from quantlab.formats.gguf import GgufModel, read_model
from quantlab.formats.gguf_write import GgufReport, GgufSource, Weight, write_model
from quantlab.formats.interface import Layer
from quantlab.progress import Observer, Progress, silent
from quantlab.tensors.dequantize import dense_weight
from quantlab.tensors.quantized import QuantizedTensor

if TYPE_CHECKING:
    from quantlab.formats.interface import FormatCodec


@dataclass(frozen=True, slots=True)
class GgufConversion:
    """What was done.

    Attributes:
        report: the file, its size and types.
        compared: weights that were read back and found equal to the source.
        seconds: wall time of ``write`` and ``verify``.
    """

    report: GgufReport
    compared: int
    seconds: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "output": str(self.report.path),
            "bytes": self.report.bytes,
            "types": dict(self.report.types),
            "exact": len(self.report.exact),
            "compared": self.compared,
            "seconds": dict(self.seconds),
        }


def folder_to_gguf(
    source: str | Path,
    output: str | Path,
    kind: str,
    *,
    requantize: bool = False,
    verify: bool = True,
    observe: Observer = silent,
) -> GgufConversion:
    """Write a checkpoint folder, dense or quantized, as one GGUF file.

    Args:
        source: folder with safetensors, config and tokenizer.
        output: file to write; must not exist.
        kind: ``F16``, ``BF16``, ``Q8_0``, ``Q4_0``, ``Q4_1`` or ``MXFP4``.
        requantize: codes that the type cannot hold may change.
        verify: read the file back and compare every weight that must be equal.
        observe: receives progress.

    Raises:
        CheckpointError: the source is malformed, or has a tensor without a name in GGUF.
        ConversionRefused: the type cannot hold the weights as they are, or the file is not what was written.
    """
    target = Path(output)
    started = time.perf_counter()
    origin = open_origin(source, scratch=target.with_name(f".{target.name}.download"))
    with TensorSource(origin.facts, origin.files) as tensors:
        weights = _Weights(origin, tensors)
        model = GgufSource(
            origin.config, weights.shapes, weights.read, Path(source), quantized=weights.quantized, name=origin.name
        )
        report = write_model(target, model, kind, requantize=requantize, observe=observe)
        written = time.perf_counter()
        compared = _compare(target, weights, report, observe) if verify else 0
    seconds = {"write": written - started, "verify": time.perf_counter() - written}
    return GgufConversion(report, compared, seconds)


def gguf_to_folder(source: str | Path, output: str | Path, *, observe: Observer = silent) -> int:
    """Write a GGUF file as a folder of bfloat16 safetensors with config, tokenizer and chat template.

    Returns:
        Number of weights written.

    Raises:
        CheckpointError: the file is damaged or of an architecture without names.
    """
    target = Path(output)
    check_output(target)
    model = read_model(source)
    staging = target.with_name(f".{target.name}.partial")
    if staging.exists():
        shutil.rmtree(staging)
    try:
        staging.mkdir(parents=True)
        count = _write_folder(model, staging, observe)
        if target.is_dir():
            target.rmdir()
        staging.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return count


def _write_folder(model: GgufModel, folder: Path, observe: Observer) -> int:
    for name, content in (("config.json", model.config), ("generation_config.json", model.generation_config)):
        (folder / name).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    model.write_tokenizer(folder)
    total = sum(len(entry.target.names) for entry in model.entries)
    room = sum(160 + max(len(name) for name in entry.target.names) for entry in model.entries) + 160 * total
    writer = ShardWriter(folder / "model.safetensors", room, {"format": "pt"})
    try:
        for number, (name, tensor) in enumerate(model.tensors()):
            (offset,) = writer.claim(number, [piece_of(name, tensor)])
            writer.write(tensor, offset)
            observe(Progress("read gguf", number + 1, total, "tensors", name))
        writer.finish()
    finally:
        writer.abandon()
    return total


class _Weights:
    """The weights of a folder under the names of a dense checkpoint."""

    def __init__(self, origin: Origin, tensors: TensorSource) -> None:
        facts = origin.facts
        self._codec: FormatCodec | None = None if facts.format == "dense" else FORMATS[facts.format]
        layers = [] if self._codec is None else self._codec.layers(facts)
        self._layers: dict[str, Layer] = {layer.weight_name: layer for layer in layers}
        self._tensors = tensors
        owned = {name for layer in layers for name in layer.tensors.values()}
        self.shapes: dict[str, tuple[int, ...]] = {
            name: info.shape for name, info in facts.tensors.items() if name not in owned
        }
        self.shapes |= {layer.weight_name: layer.shape for layer in layers}
        self.quantized = frozenset(self._layers)
        if any(len(layer.shape) != 2 for layer in layers):
            raise ConversionRefused("fused 3-D experts cannot be written as GGUF yet", hint="convert to bf16 first")

    def read(self, name: str) -> Weight:
        """Return one weight, as codes where it is quantized."""
        layer = self._layers.get(name)
        if layer is None:
            return self._tensors.read(name)
        assert self._codec is not None
        return self._codec.decode(layer, {role: self._tensors.read(one) for role, one in layer.tensors.items()})

    def dense(self, name: str) -> torch.Tensor:
        """Return one weight in float32."""
        weight = self.read(name)
        return dense_weight(weight, torch.float32) if isinstance(weight, QuantizedTensor) else weight.float()


def _compare(path: Path, weights: _Weights, report: GgufReport, observe: Observer) -> int:
    """Compare each weight that must be equal with the source, as float32 numbers.

    Raises:
        ConversionRefused: one differs; the file is removed.
    """
    model = read_model(path)
    exact = set(report.exact)
    compared = 0
    for done, entry in enumerate(model.entries):
        if entry.name not in exact and entry.type not in {"F32", "BF16"}:
            continue
        observe(Progress("verify gguf", done, len(model.entries), "tensors", entry.name))
        for name, tensor in model.named(entry, model.read(entry)):
            if not _equal(tensor, weights.dense(name), entry.type):
                path.unlink()
                raise ConversionRefused(f"{name} read back from {path.name} is not what was written")
            compared += 1
    return compared


def _equal(written: torch.Tensor, source: torch.Tensor, kind: str) -> bool:
    if kind == "BF16":
        source = source.to(torch.bfloat16).float()
    return written.shape == source.shape and torch.equal(written, source)
