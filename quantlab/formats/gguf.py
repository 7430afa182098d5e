"""Read a GGUF file as a Hugging Face checkpoint: config, tensors by their usual names, tokenizer.

A GGUF file is one piece: header, typed metadata, tensor table, aligned tensor data. Rows are stored
``[out, in]`` in blocks along ``in`` (see ``gguf_blocks``), so a quantized row is a whole number of bytes. The
file is mapped into memory and tensors are decoded one at a time; nothing is kept.

Parsing and the block arithmetic are the ``gguf`` package's (ggml-org/llama.cpp: gguf-py); names and config keys
are ``gguf_names``'.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantlab.errors import CheckpointError, MissingExtraError
from quantlab.formats.gguf_names import (
    GgufArchitecture,
    Target,
    architecture_of_gguf,
    folder_target,
    rows_to_folder,
)
from quantlab.formats.gguf_rope import ROPE_FACTORS, rope_config
from quantlab.formats.gguf_tokenizer import tokenizer_files, write_tokenizer

if TYPE_CHECKING:
    import numpy as np
    import torch
    from gguf import ReaderTensor

    from quantlab.tensors.quantized import QuantizedTensor


@dataclass(frozen=True)
class GgufEntry:
    """One tensor of the file and where it goes.

    Attributes:
        name: GGUF name.
        type: GGUF type, such as ``Q4_1``.
        shape: logical shape, outermost first.
        target: the names in the folder and the change of arrangement.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    target: Target


class GgufModel:
    """An open GGUF file.

    Attributes:
        path: the file.
        fields: metadata, key to value.
        architecture: what its architecture is called on both sides.
        config: ``config.json`` of the folder that this file stands for (``torch_dtype`` is bfloat16).
        generation_config: ``generation_config.json``.
        entries: the weights, in file order; tensors that only restate the config are left out.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        reader = _open(path)
        self.fields: dict[str, Any] = {key: field.contents() for key, field in reader.fields.items()}
        self._tensors: dict[str, ReaderTensor] = {tensor.name: tensor for tensor in reader.tensors}
        name = self._text("general.architecture")
        experts = int(self.fields.get(f"{name}.expert_count") or 0) > 0
        self.architecture: GgufArchitecture = architecture_of_gguf(name, experts=experts)
        self.config = self._config()
        self.generation_config = _token_ids(self.fields)
        self.entries = [self._entry(tensor) for tensor in reader.tensors if tensor.name != ROPE_FACTORS]

    def tensors(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every weight under its folder name, decoded, in ``dtype`` (default bfloat16), one at a time.

        A block decodes to float32 (``gguf.quants.dequantize``) and is rounded once to ``dtype``.
        """
        import torch

        for entry in self.entries:
            yield from self.named(entry, self.read(entry).to(dtype or torch.bfloat16))

    def read(self, entry: GgufEntry) -> torch.Tensor:
        """Return one tensor in float32, in the file's own arrangement.

        Raises:
            CheckpointError: the ``gguf`` package cannot decode its type.
        """
        import torch
        from gguf.quants import dequantize

        tensor = self._tensors[entry.name]
        try:
            values = dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            message = f"{self.path.name}: tensor {entry.name!r} has type {entry.type}, which cannot be decoded"
            raise CheckpointError(message, hint="convert it with llama.cpp to a type that can") from error
        if not values.flags.writeable or values.base is not None:
            values = values.copy()
        return torch.from_numpy(values).reshape(entry.shape).float()

    def raw(self, entry: GgufEntry) -> np.ndarray[Any, Any]:
        """Return a copy of a quantized tensor's bytes, ``uint8`` ``[rows, row bytes]``, as the file has them."""
        import numpy as np

        return np.array(self._tensors[entry.name].data, dtype=np.uint8)

    def quantized(self, entry: GgufEntry) -> Iterator[tuple[str, QuantizedTensor]] | None:
        """Return a tensor's codes and scales under its folder names, or None where its type has no such form."""
        import torch

        from quantlab.formats.gguf_blocks import BLOCKS, decode_blocks

        if entry.type not in BLOCKS or len(entry.shape) < 2 or entry.target.row:
            return None
        raw = torch.from_numpy(self.raw(entry))
        return ((name, decode_blocks(part, entry.type)) for name, part in self.named(entry, raw))

    def write_tokenizer(self, folder: Path) -> list[str]:
        """Write tokenizer.json, tokenizer_config.json and chat_template.jinja; return their names."""
        return write_tokenizer(self.fields, folder)

    def tokenizer_files(self) -> dict[str, str]:
        """Return the tokenizer's files by name."""
        return tokenizer_files(self.fields)

    def named(self, entry: GgufEntry, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield a tensor (values or raw rows) in the folder's arrangement, one name an expert."""
        target = entry.target
        if len(target.names) > 1 or tensor.ndim == 3:
            for index, name in enumerate(target.names):
                yield name, tensor[index].contiguous()
            return
        if target.heads is not None:
            tensor = rows_to_folder(tensor, target.heads)
        yield target.names[0], tensor.unsqueeze(0) if target.row else tensor

    def _entry(self, tensor: ReaderTensor) -> GgufEntry:
        shape = tuple(int(size) for size in reversed(tensor.shape))
        target = folder_target(self.architecture, tensor.name, shape, self.config)
        if target.heads is not None and shape[0] % (2 * target.heads):
            message = f"{self.path.name}: {tensor.name!r} has {shape[0]} rows, which {target.heads} heads do not divide"
            raise CheckpointError(message)
        return GgufEntry(tensor.name, tensor.tensor_type.name, shape, target)

    def _text(self, key: str) -> str:
        value = self.fields.get(key)
        if not isinstance(value, str):
            raise CheckpointError(f"{self.path.name}: metadata has no {key}")
        return value

    def _config(self) -> dict[str, Any]:
        entry, prefix = self.architecture, self.architecture.gguf
        config: dict[str, Any] = {"architectures": [entry.model_class], "model_type": entry.model_type}
        for key, name in entry.config.items():
            if f"{prefix}.{key}" in self.fields:
                config[name] = _tidy(self.fields[f"{prefix}.{key}"])
        for needed in ("hidden_size", "num_hidden_layers", "num_attention_heads"):
            if not isinstance(config.get(needed), int):
                raise CheckpointError(f"{self.path.name}: metadata lacks the number for {needed}")
        config.setdefault("num_key_value_heads", config["num_attention_heads"])
        config["head_dim"] = self._head_dim(config)
        config["vocab_size"] = self._vocabulary()
        config["tie_word_embeddings"] = "output.weight" not in self._tensors
        config |= {key: f"blk.0.{name}" in self._tensors for key, name in entry.bias_flags.items()}
        config |= entry.constants
        config |= rope_config(self.fields, prefix, self._rope_factors(), config)
        config |= _token_ids(self.fields)
        return config | {"torch_dtype": "bfloat16"}

    def _head_dim(self, config: Mapping[str, Any]) -> int:
        key = self.architecture.head_dim
        stated = None if key is None else self.fields.get(f"{self.architecture.gguf}.{key}")
        return stated if isinstance(stated, int) else config["hidden_size"] // config["num_attention_heads"]

    def _vocabulary(self) -> int:
        embedding = self._tensors.get("token_embd.weight")
        if embedding is None:
            raise CheckpointError(f"{self.path.name}: tensor token_embd.weight is missing")
        return int(embedding.shape[-1])

    def _rope_factors(self) -> list[float] | None:
        factors = self._tensors.get(ROPE_FACTORS)
        return None if factors is None else [float(value) for value in factors.data.ravel()]


def read_model(path: str | Path) -> GgufModel:
    """Open a GGUF file.

    Raises:
        CheckpointError: not a GGUF file, truncated, or of an architecture without names in ``matrix/gguf.yaml``.
        MissingExtraError: the ``gguf`` package is not installed.
    """
    return GgufModel(Path(path))


def _open(path: Path) -> Any:
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise MissingExtraError("gguf", "gguf", "reading a GGUF file") from error
    if not path.is_file():
        raise CheckpointError(f"there is no file {path}")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise CheckpointError(f"{path.name} does not begin with GGUF, so it is not a GGUF file")
    try:
        return GGUFReader(path)
    except (ValueError, IndexError, KeyError, OverflowError, MemoryError, UnicodeDecodeError, struct.error) as error:
        message = f"{path.name} is damaged or cut short: {error}"
        raise CheckpointError(message, hint="compare its size and hash with the place it came from") from error


def _tidy(value: Any) -> Any:
    """Return a float32 as the shortest decimal that gives the same float32 (9.999999747378752e-06 is 1e-05)."""
    if not isinstance(value, float):
        return value
    import numpy as np

    return float(str(np.float32(value)))


def _token_ids(fields: Mapping[str, Any]) -> dict[str, int]:
    roles = {"bos": "bos", "eos": "eos", "padding": "pad"}
    found = {f"{name}_token_id": fields.get(f"tokenizer.ggml.{role}_token_id") for role, name in roles.items()}
    return {key: value for key, value in found.items() if isinstance(value, int)}
