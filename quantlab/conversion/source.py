"""The tensors of a checkpoint folder, read by ranges: only what a job needs is in memory.

Reads go into buffers of our own (``pread``), not through a map, so that resident memory is what we hold and a read
error is an error, not a bus fault.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import torch

from quantlab.checkpoint.facts import CheckpointFacts, TensorInfo
from quantlab.conversion.jobs import Job, Plan
from quantlab.conversion.shard_writer import SAFETENSORS_DTYPES, ShardWriter, read_into
from quantlab.errors import CheckpointError


class Files(Protocol):
    """Gives the shards of a checkpoint."""

    def fetch(self, file: str) -> Path:
        """Return where a shard lies, getting it first if need be."""

    def release(self, file: str) -> None:
        """Take note that a shard is not needed any more."""


class Needs:
    """Which shards of the source jobs still need; lets go of each after the last.

    Args:
        plan: the conversion.
        source: its tensors.
    """

    def __init__(self, plan: Plan, source: TensorSource) -> None:
        self._files = {name: info.file for name, info in plan.facts.tensors.items()}
        self._source = source
        self._left = Counter(file for job in plan.jobs for file in self._of(job))

    def met(self, jobs: Iterable[Job]) -> None:
        """Take note that these jobs are done."""
        for job in jobs:
            for file in self._of(job):
                self._left[file] -= 1
                if self._left[file] == 0:
                    self._source.release(file)

    def _of(self, job: Job) -> set[str]:
        return {self._files[name] for name in job.tensors}


class TensorSource:
    """Open shards of a checkpoint; safe to use from several threads.

    Args:
        facts: headers of all tensors.
        files: where the shards come from.
    """

    def __init__(self, facts: CheckpointFacts, files: Files) -> None:
        self._tensors: Mapping[str, TensorInfo] = facts.tensors
        self._files = files
        self._open: dict[str, int] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in list(self._open):
            self.release(file)

    def read(self, name: str, device: str = "cpu") -> torch.Tensor:
        """Return one tensor.

        Raises:
            CheckpointError: the bytes cannot be read, or the dtype is unknown.
        """
        info = self._tensors[name]
        dtype = SAFETENSORS_DTYPES.get(info.dtype)
        if dtype is None:
            raise CheckpointError(f"{info.file}: tensor {name!r} has the unknown dtype {info.dtype}")
        buffer = torch.empty(info.end - info.start, dtype=torch.uint8)
        try:
            read_into(self._descriptor(info.file), buffer.numpy().data, info.start)
        except (OSError, EOFError) as error:
            raise CheckpointError(f"{info.file}: tensor {name!r} cannot be read: {error}") from error
        return buffer.view(dtype).reshape(info.shape).to(device)

    def copy(self, name: str, writer: ShardWriter, offset: int) -> None:
        """Copy one tensor's bytes into an output file without looking at them."""
        info = self._tensors[name]
        try:
            writer.copy(self._descriptor(info.file), info.start, info.end - info.start, offset)
        except EOFError as error:
            raise CheckpointError(f"{info.file}: tensor {name!r} cannot be read: {error}") from error

    def release(self, file: str) -> None:
        """Close a shard that no further job needs."""
        with self._lock:
            descriptor = self._open.pop(file, None)
            if descriptor is not None:
                os.close(descriptor)
                self._files.release(file)

    def _descriptor(self, file: str) -> int:
        with self._lock:
            if file not in self._open:
                try:
                    self._open[file] = os.open(self._files.fetch(file), os.O_RDONLY)
                except OSError as error:
                    raise CheckpointError(f"{file} cannot be opened: {error.strerror}") from error
            return self._open[file]
