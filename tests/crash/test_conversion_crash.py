"""A conversion that is killed anywhere leaves nothing that looks finished, and resumes to the same bytes.

Each run is a process of its own that kills itself with SIGKILL at one of the points where it touches the disk: the
n-th call that opens, writes, copies, renames, removes or flushes. Counting these calls in one whole run first gives
all points; fifty are drawn from them.
"""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import quantlab
from quantlab.conversion import native
from quantlab.conversion.journal import JOURNAL
from quantlab.conversion.shard_writer import ShardWriter
from quantlab.conversion.staging import staging_folder
from quantlab.errors import EnvironmentProblem, InterruptedRun, UsageError
from quantlab.progress import Progress
from tests.tiny_checkpoint import file_bytes, tiny_tensors, write_shards, write_tiny

POINTS = 50

CHILDREN = """
import os, signal, sys

EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.truncate", "shutil.copyfile"}
calls, last = 0, None

def count(inside):
    global calls
    if inside in str(here):
        calls += 1
        if calls == last:
            os.kill(os.getpid(), signal.SIGKILL)

def audit(event, arguments):
    global here
    if event in EVENTS:
        here = arguments
        count(place)

def wrapped(name):
    real = getattr(os, name)
    def call(*arguments, **more):
        global here
        here = place
        count(place)
        result = real(*arguments, **more)
        count(place)
        return result
    return call

import torch
import quantlab
from quantlab.conversion import native, proof, api, hub_origin
from quantlab.formats import FORMATS
for form in ("dense", "compressed-tensors/pack-quantized"):
    FORMATS[form]

source, output, place = sys.argv[1:4]
for name in ("pwrite", "copy_file_range", "fsync", "replace"):
    setattr(os, name, wrapped(name))
sys.addaudithook(audit)

for job in sys.stdin:
    last, resume, target = job.split()
    pid = os.fork()
    if pid == 0:
        last = int(last)
        try:
            quantlab.convert(source, target, "w4a16", settings={"group_size": 32}, threads=1, resume=resume == "1")
            os.write(1, f"done {calls}\\n".encode())
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        os.write(1, f"killed {os.WTERMSIG(status)}\\n".encode())
"""


class Runner:
    """A process that forks one conversion for each line that it is given: imports cost once."""

    def __init__(self, source, place):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", CHILDREN, str(source), "-", str(place)]
        self.child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True, cwd=Path.cwd()
        )

    def __call__(self, kill_at, output, *, resume=False):
        self.child.stdin.write(f"{kill_at} {int(resume)} {output}\n")
        self.child.stdin.flush()
        word, number = self.child.stdout.readline().split()
        return word, int(number)

    def close(self):
        self.child.stdin.close()
        self.child.wait(timeout=30)
        self.child.stdout.close()


@pytest.fixture
def source(tmp_path):
    return write_tiny(tmp_path / "in", shards=3)


def test_killed_at_fifty_random_points_it_resumes_to_the_same_bytes(source, tmp_path):
    place = tmp_path / "work"
    place.mkdir()
    runner = Runner(source, place)
    try:
        word, points = runner(0, place / "whole")
        assert word == "done"
        assert points > POINTS
        whole = file_bytes(place / "whole")
        resumed = 0
        for number, point in enumerate(sorted(random.Random(4).sample(range(1, points + 1), POINTS))):
            output = place / f"out{number:03d}"
            word, signal_number = runner(point, output)
            assert (word, signal_number) == ("killed", signal.SIGKILL)
            if output.exists():  # killed after the rename: then it is whole
                assert file_bytes(output) == whole
                continue
            resumed += (staging_folder(output) / JOURNAL).exists()
            assert runner(0, output, resume=True)[0] == "done"
            assert file_bytes(output) == whole
            assert not staging_folder(output).exists()
        assert resumed > POINTS // 2
    finally:
        runner.close()


class Stop:
    """Observes, and interrupts after so many shards."""

    def __init__(self, shards):
        self.left = shards

    def __call__(self, event: Progress):
        if event.task == "convert" and event.detail.endswith(".safetensors"):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt


def half_way(source, output, shards=1, **options):
    with pytest.raises(InterruptedRun, match=f"{shards} of 3 shards are done") as stop:
        quantlab.convert(source, output, "fp8", observe=Stop(shards), **options)
    assert stop.value.exit_code == 3
    assert not output.exists()
    return staging_folder(output)


def test_finished_shards_are_not_made_again(source, tmp_path):
    staging = half_way(source, tmp_path / "out", shards=2)
    kept = {path.name: path.stat().st_ino for path in staging.glob("*.safetensors")}
    assert len(kept) == 2
    quantlab.convert(source, tmp_path / "out", "fp8", resume=True)
    assert {name: (tmp_path / "out" / name).stat().st_ino for name in kept} == kept
    quantlab.convert(source, tmp_path / "whole", "fp8")
    assert file_bytes(tmp_path / "out") == file_bytes(tmp_path / "whole")


def test_an_unfinished_run_is_not_started_over_by_accident(source, tmp_path):
    staging = half_way(source, tmp_path / "out")
    before = file_bytes(staging)
    with pytest.raises(UsageError, match="an unfinished conversion") as refusal:
        quantlab.convert(source, tmp_path / "out", "fp8")
    assert "--resume" in refusal.value.hint
    assert file_bytes(staging) == before


@pytest.mark.parametrize("change", ["source", "config", "recipe", "version"])
def test_a_changed_source_recipe_or_version_is_noticed_and_the_work_is_kept(source, tmp_path, monkeypatch, change):
    staging = half_way(source, tmp_path / "out")
    preset = "fp8"
    if change == "source":
        write_shards(source, tiny_tensors(seed=1), 3)
    elif change == "config":
        (source / "config.json").write_text((source / "config.json").read_text().replace("96", "96 "))
    elif change == "recipe":
        preset = "w8a16"
    else:
        monkeypatch.setattr(native, "__version__", "99")
    with pytest.raises(UsageError, match=f"has another {'source' if change == 'config' else change}"):
        quantlab.convert(source, tmp_path / "out", preset, resume=True)
    assert (staging / "model-00001-of-00003.safetensors").is_file()


def test_a_source_that_changes_meanwhile_gives_no_output(source, tmp_path, monkeypatch):
    real = native.prove

    def meanwhile(*arguments, **more):
        proof = real(*arguments, **more)
        os.utime(source / "model-00001-of-00003.safetensors", ns=(1, 1))
        return proof

    monkeypatch.setattr(native, "prove", meanwhile)
    with pytest.raises(UsageError, match="changed while it was converted"):
        quantlab.convert(source, tmp_path / "out", "fp8")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_shard_that_was_cut_off_is_made_again(source, tmp_path):
    staging = half_way(source, tmp_path / "out", shards=2)
    path = staging / "model-00002-of-00003.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    journal = staging / JOURNAL
    journal.write_text(journal.read_text() + '{"file": "model-00003-of-0')
    quantlab.convert(source, tmp_path / "out", "fp8", resume=True)
    quantlab.convert(source, tmp_path / "whole", "fp8")
    assert file_bytes(tmp_path / "out") == file_bytes(tmp_path / "whole")


@pytest.mark.parametrize(("full_at", "kept"), [(1, 0), (25, 2)])
def test_a_full_disk_leaves_nothing_that_looks_finished(source, tmp_path, monkeypatch, full_at, kept):
    real, calls = ShardWriter.write, []

    def write(self, tensor, offset):
        calls.append(offset)
        if len(calls) >= full_at:
            raise OSError(28, "No space left on device")
        real(self, tensor, offset)

    monkeypatch.setattr(ShardWriter, "write", write)
    with pytest.raises(EnvironmentProblem, match=f"the disk is full; {kept} shards are kept") as problem:
        quantlab.convert(source, tmp_path / "out", "fp8", threads=1)
    assert problem.value.exit_code == 2
    assert not (tmp_path / "out").exists()
    staging = staging_folder(tmp_path / "out")
    assert staging.exists() == (kept > 0)
    monkeypatch.setattr(ShardWriter, "write", real)
    quantlab.convert(source, tmp_path / "out", "fp8", resume=kept > 0)
    quantlab.convert(source, tmp_path / "whole", "fp8")
    assert file_bytes(tmp_path / "out") == file_bytes(tmp_path / "whole")


def test_a_really_full_disk(tmp_path, monkeypatch):
    """/dev/full is a device that is always full: writing a shard to it fails as on a full disk."""
    source = write_tiny(tmp_path / "in")
    output = tmp_path / "out"
    staging = staging_folder(output)
    staging.mkdir()
    (staging / "model.safetensors.part").symlink_to("/dev/full")
    monkeypatch.setattr(native.Journal, "begin", lambda self: {})  # which would clear the link away
    with pytest.raises(EnvironmentProblem, match="the disk is full"):
        quantlab.convert(source, output, "fp8", resume=True)
    assert not output.exists()
    assert not staging.exists()


def test_the_journal_names_what_was_asked(source, tmp_path):
    staging = half_way(source, tmp_path / "out")
    first = json.loads((staging / JOURNAL).read_text().splitlines()[0])
    assert first["version"] == quantlab.__version__
    assert first["recipe"]["to"] == "fp8"
    assert set(first["source"]) == {*(f"model-{n:05d}-of-00003.safetensors" for n in (1, 2, 3)), "config.json"}
