"""Work through a plan: several threads, a bounded window of jobs, one shard after the other.

Jobs are started in order and their bytes are placed in order, but made and written at the same time. A job starts
when the memory of all that run, together with its own, stays within twice the largest job's (never less than
``WINDOW_FLOOR``), so memory does not grow with the model or the number of threads.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from quantlab.conversion.jobs import Job, Plan, ShardPlan
from quantlab.conversion.journal import Journal, ShardRecord
from quantlab.conversion.shard_writer import Piece, ShardWriter, piece_of
from quantlab.conversion.source import Needs, TensorSource
from quantlab.conversion.work import Changed, Workshop
from quantlab.progress import Observer, Progress

WINDOW_FLOOR = 128 << 20
HEADER_TENSORS = 8
"""Tensors that one layer has at most in any format (bitsandbytes with double quantization has six)."""

HEADER_BYTES = 140
"""Bytes of one header entry besides the tensor's name."""


class Driver:
    """Runs the jobs of a plan.

    Args:
        plan: the conversion.
        source: its tensors.
        staging: folder that the shards are written to.
        device: torch device.
        threads: worker threads; the number of cores by default.
    """

    def __init__(
        self, plan: Plan, source: TensorSource, staging: Path, *, device: str = "cpu", threads: int | None = None
    ) -> None:
        self._plan = plan
        self._source = source
        self._staging = staging
        self._workshop = Workshop(plan, source, device)
        self._threads = threads or min(8, os.cpu_count() or 1)
        self._budget = max(2 * plan.largest_job, WINDOW_FLOOR)
        self._needs = Needs(plan, source)

    def run(self, journal: Journal, done: Mapping[str, ShardRecord], observe: Observer) -> list[ShardRecord]:
        """Make every shard that is not done and return the records of all.

        Raises:
            QuantlabError: a job cannot be done; finished shards stay, the one in work does not.
            OSError: a file cannot be written.
        """
        records = []
        total, written = self._plan.written_bytes, 0
        with _one_torch_thread(self._threads), ThreadPoolExecutor(self._threads, "convert") as pool:
            for shard in self._plan.shards:
                record = done.get(shard.file)
                if record is None:
                    record = self._shard(shard, pool, observe, written)
                    journal.finished(record)
                else:
                    self._needs.met(shard.jobs)
                records.append(record)
                written += shard.written_bytes
                observe(Progress("convert", written, total, "bytes", shard.file))
        return records

    def _shard(self, shard: ShardPlan, pool: ThreadPoolExecutor, observe: Observer, before: int) -> ShardRecord:
        room = sum(header_room(job) for job in shard.jobs) + 256
        writer = ShardWriter(self._staging / shard.file, room, {"format": "pt"})
        try:
            changed = self._work(shard, writer, pool, observe, before)
            size = writer.finish()
        finally:
            writer.abandon()
        return ShardRecord(shard.file, size, writer.names, [_plain(change) for change in changed])

    def _work(
        self, shard: ShardPlan, writer: ShardWriter, pool: ThreadPoolExecutor, observe: Observer, before: int
    ) -> list[Changed]:
        running: dict[Future[list[Changed]], Job] = {}
        finished: dict[int, list[Changed]] = {}
        numbers: dict[Future[list[Changed]], int] = {}
        try:
            for number, job in enumerate(shard.jobs):
                while running and not self._fits(running.values(), job):
                    before += self._collect(running, numbers, finished, observe, before)
                future = pool.submit(self._one, job, number, writer)
                running[future], numbers[future] = job, number
            while running:
                before += self._collect(running, numbers, finished, observe, before)
        except BaseException:
            writer.stop()
            wait(running)
            raise
        return [change for number in sorted(finished) for change in finished[number]]

    def _fits(self, running: Iterable[Job], job: Job) -> bool:
        jobs = list(running)
        return len(jobs) < 2 * self._threads and sum(one.peak_bytes for one in jobs) + job.peak_bytes <= self._budget

    def _collect(
        self,
        running: dict[Future[list[Changed]], Job],
        numbers: dict[Future[list[Changed]], int],
        finished: dict[int, list[Changed]],
        observe: Observer,
        before: int,
    ) -> int:
        """Wait for at least one job, and return the bytes that those now ended have written."""
        ended, _ = wait(running, return_when=FIRST_COMPLETED)
        written = 0
        for future in sorted(ended, key=numbers.__getitem__):
            job = running.pop(future)
            finished[numbers[future]] = future.result()
            written += job.written_bytes
            self._needs.met([job])
            observe(Progress("convert", before + written, self._plan.written_bytes, "bytes", job.tensors[0]))
        return written

    def _one(self, job: Job, number: int, writer: ShardWriter) -> list[Changed]:
        """Do one job and write what it gives; any failure ends the jobs that wait for their turn."""
        try:
            if job.action == "copy":
                self._copy(job, number, writer)
                return []
            made = self._workshop.make(job)
            pieces = [piece_of(name, tensor) for name, tensor in made.tensors.items()]
            offsets = writer.claim(number, pieces)
            for tensor, offset in zip(made.tensors.values(), offsets, strict=True):
                writer.write(tensor, offset)
        except BaseException:
            writer.stop()
            raise
        return made.changed

    def _copy(self, job: Job, number: int, writer: ShardWriter) -> None:
        infos = [self._plan.facts.tensors[name] for name in job.tensors]
        pieces = [Piece(info.name, info.dtype, info.shape, info.end - info.start) for info in infos]
        for info, offset in zip(infos, writer.claim(number, pieces), strict=True):
            self._source.copy(info.name, writer, offset)


def header_room(job: Job) -> int:
    """Return bytes that are enough for a job's entries in the header."""
    if not job.layers:
        return sum(len(name.encode()) + HEADER_BYTES for name in job.tensors)
    if job.action in ("cast", "dequantize"):
        return sum(len(layer.weight_name.encode()) + HEADER_BYTES for layer in job.layers)
    return sum(HEADER_TENSORS * (len(layer.name.encode()) + HEADER_BYTES) for layer in job.layers)


def _plain(change: Changed) -> dict[str, Any]:
    scheme = asdict(change.scheme)
    return {
        "name": change.name,
        "reason": change.reason,
        "requantized": change.requantized,
        "scheme": {**scheme, "number": change.scheme.number.name},
    }


class _one_torch_thread:  # noqa: N801 - used like a function
    """Let torch use one thread a worker while several workers run, and restore its setting."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._before = torch.get_num_threads()

    def __enter__(self) -> None:
        if self._workers > 1:
            torch.set_num_threads(1)

    def __exit__(self, *reason: object) -> None:
        torch.set_num_threads(self._before)
