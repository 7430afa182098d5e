"""Run a plan that quantlab does itself: stage, convert, prove, hash, publish."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from quantlab.conversion.documents import (
    PROVENANCE,
    output_config,
    provenance,
    sha256_of,
    write_index,
    write_json,
)
from quantlab.conversion.driver import Driver
from quantlab.conversion.jobs import Plan
from quantlab.conversion.journal import Journal, ShardRecord
from quantlab.conversion.origin import Origin, carry_files
from quantlab.conversion.proof import Proof, prove
from quantlab.conversion.result import Conversion
from quantlab.conversion.source import TensorSource
from quantlab.conversion.staging import check_space, discard, open_staging, publish
from quantlab.errors import ConversionRefused, EnvironmentProblem, InterruptedRun, QuantlabError, UsageError
from quantlab.progress import Observer
from quantlab.version import __version__

Result = TypeVar("Result")

_FULL = (errno.ENOSPC, errno.EDQUOT)


def run_plan(
    plan: Plan,
    origin: Origin,
    recipe: Mapping[str, Any],
    *,
    verify: str,
    resume: bool,
    device: str,
    threads: int | None,
    observe: Observer,
) -> Conversion:
    """Do the whole conversion.

    Args:
        plan: what to do.
        origin: the source.
        recipe: everything that decides the output's bytes; a resumed run must have the same.
        verify: ``decode`` compares the decoded output with the source, ``load`` also opens it with transformers,
            ``quality`` also measures its perplexity, ``none`` does nothing.
        resume: go on with an unfinished run.
        device: torch device.
        threads: worker threads, or None for one a core.
        observe: receives progress.

    Raises:
        ConversionRefused: a layer cannot be held, or the proof failed; nothing is left.
        EnvironmentProblem: the disk is full; finished shards are kept for ``--resume``.
        InterruptedRun: the user stopped it; finished shards are kept.
    """
    staging = open_staging(plan.output, resume=resume)
    identity = {"version": __version__, "recipe": dict(recipe), "source": origin.identity()}
    run = _Run(
        plan,
        origin,
        staging,
        identity=identity,
        verify=verify,
        device=device,
        threads=threads or min(8, os.cpu_count() or 1),
        observe=observe,
    )
    try:
        return run.all(recipe)
    except KeyboardInterrupt as stop:
        raise InterruptedRun(
            f"interrupted; {run.kept()} of {len(plan.shards)} shards are done", hint="--resume finishes the work"
        ) from stop
    except OSError as error:
        raise _disk_problem(error, run) from error
    except EnvironmentProblem:
        raise  # another machine state helps: what is done is kept
    except QuantlabError:
        if not run.foreign:
            discard(staging)
        raise


class _Run:
    """The phases of one run and the time that each took."""

    def __init__(
        self,
        plan: Plan,
        origin: Origin,
        staging: Path,
        *,
        identity: dict[str, Any],
        verify: str,
        device: str,
        threads: int,
        observe: Observer,
    ) -> None:
        self._plan = plan
        self._origin = origin
        self._staging = staging
        self._identity = identity
        self._verify = verify
        self._device = device
        self._threads = threads
        self._observe = observe
        self._seconds: dict[str, float] = {}
        self._done: dict[str, ShardRecord] = {}
        self._warnings: tuple[str, ...] = ()
        self.foreign = False
        """The staging folder is another conversion's, and is left alone."""

    def kept(self) -> int:
        """Return how many shards are finished, and remove the folder if none is."""
        count = sum((self._staging / shard.file).is_file() for shard in self._plan.shards)
        if count == 0 and not self.foreign:
            discard(self._staging)
        return count

    def all(self, recipe: Mapping[str, Any]) -> Conversion:
        """Do everything and return the result."""
        journal = Journal(self._staging, self._identity)
        try:
            self._done = journal.begin()
        except UsageError:
            self.foreign = True
            raise
        check_space(self._staging, self._missing_bytes())
        with TensorSource(self._plan.facts, self._origin.files) as source:
            records = self._timed("convert", lambda: self._convert(source, journal))
            self._documents(records)
            proof = None
            if self._verify != "none":
                proof = self._timed("verify", lambda: self._prove(source, records))
            if self._verify in ("load", "quality"):
                self._timed("load", self._load)
            hashes = self._timed("hash", self._hashes)
            origin = self._timed("hash", self._source_hashes)
        self._unchanged()
        error = None if proof is None else {"mean": proof.mean_error, "worst": proof.to_dict()["worst"]}
        content = provenance(self._plan, recipe=recipe, source=origin, records=records, hashes=hashes, error=error)
        write_json(self._staging / PROVENANCE, content)
        journal.remove()
        self._timed("flush", lambda: publish(self._staging, self._plan.output))
        return self._result(records, proof)

    def _convert(self, source: TensorSource, journal: Journal) -> list[ShardRecord]:
        driver = Driver(self._plan, source, self._staging, device=self._device, threads=self._threads)
        return driver.run(journal, self._done, self._observe)

    def _documents(self, records: list[ShardRecord]) -> None:
        write_json(self._staging / "config.json", output_config(self._plan, self._origin.config, records))
        write_index(self._staging, records, self._origin.index_metadata)
        carry_files(self._origin, self._staging)

    def _prove(self, source: TensorSource, records: list[ShardRecord]) -> Proof:
        return prove(
            self._plan,
            source,
            self._staging,
            {change["name"] for record in records for change in record.changed if change["requantized"]},
            device=self._device,
            threads=self._threads,
            observe=self._observe,
        )

    def _load(self) -> None:
        """Open the output in a fresh process with transformers, as a user would.

        Raises:
            ConversionRefused: it does not load whole, or (``quality``) its perplexity is ruined.
        """
        from quantlab.quantizers.verification import verify

        depth: Literal["load", "quality"] = "quality" if self._verify == "quality" else "load"
        source = Path(self._plan.source)
        if not source.is_dir():
            raise UsageError("the source is on the hub; only --verify decode can check its conversion")
        found = verify(source, self._staging, depth, device=self._device, observe=self._observe)
        if found is None:
            return
        if not found.ok:
            raise ConversionRefused(f"the output failed its check: {'; '.join(found.problems)}")
        self._warnings += found.warnings

    def _hashes(self) -> dict[str, str]:
        names = [shard.file for shard in self._plan.shards]
        return sha256_of({name: self._staging / name for name in names}, self._threads)

    def _source_hashes(self) -> dict[str, Any]:
        """Return what the source was: its format, and a hash or commit of its weights."""
        identity = self._identity["source"]
        content: dict[str, Any] = {"name": self._origin.name, "format": self._plan.facts.format}
        if "commit" in identity:
            return {**content, "commit": identity["commit"]}
        files = sorted({info.file for info in self._plan.facts.tensors.values()})
        paths = {file: self._origin.files.fetch(file) for file in files}
        return {**content, "sha256": sha256_of(paths, self._threads)}

    def _unchanged(self) -> None:
        if self._origin.identity() != self._identity["source"]:
            raise UsageError(f"{self._plan.source} changed while it was converted", hint="run it again")

    def _missing_bytes(self) -> int:
        return sum(shard.written_bytes for shard in self._plan.shards if shard.file not in self._done)

    def _timed(self, phase: str, work: Callable[[], Result]) -> Result:
        started = time.perf_counter()
        try:
            return work()
        finally:
            self._seconds[phase] = self._seconds.get(phase, 0.0) + time.perf_counter() - started

    def _result(self, records: list[ShardRecord], proof: Proof | None) -> Conversion:
        changed = tuple(change for record in records for change in record.changed)
        again = {change["name"] for change in changed if change["requantized"]}
        promised: dict[str, int] = {}
        for job in self._plan.jobs:
            for layer in job.layers:
                exactness = "requantize" if layer.name in again else job.exactness
                promised[exactness] = promised.get(exactness, 0) + 1
        return Conversion(
            self._plan.source,
            str(self._plan.output),
            self._plan.case,
            self._plan.facts.format,
            self._plan.target_format,
            promised,
            self._plan.kept_dense,
            changed,
            {
                "read": sum(job.read_bytes for job in self._plan.jobs),
                "written": sum(record.size for record in records),
            },
            self._seconds,
            None if proof is None else proof.to_dict(),
            (*self._plan.notes, *self._warnings),
        )


def _disk_problem(error: OSError, run: _Run) -> QuantlabError:
    kept = run.kept()
    hint = "free some space; --resume goes on where it stopped" if kept else "free some space, or write elsewhere"
    what = "the disk is full" if error.errno in _FULL else f"the output cannot be written: {error.strerror or error}"
    return EnvironmentProblem(f"{what}; {kept} shards are kept", hint=hint if error.errno in _FULL else None)
