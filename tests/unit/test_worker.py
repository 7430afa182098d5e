"""A worker that answers, raises, crashes, hangs or eats memory is always a value."""

import os
import signal
import time

from quantlab.progress import Progress
from quantlab.worker import Limits, run


def answer(argument, report):
    report(Progress("count", 1, 2, "steps"))
    report({"seen": argument["x"]})
    print("noise on stdout")
    return {"twice": 2 * argument["x"]}


def raises(argument, report):
    report({"before": True})
    raise ValueError("bad x")


def leaves(argument, report):
    report({"before": True})
    os._exit(7)


def segfaults(argument, report):
    os.kill(os.getpid(), signal.SIGSEGV)


def hangs(argument, report):
    report({"before": True})
    time.sleep(60)


def eats(argument, report):
    kept = bytearray(400_000_000)
    kept[::4096] = b"x" * len(kept[::4096])
    time.sleep(60)


def target(function):
    return f"tests.unit.test_worker:{function.__name__}"


def test_an_answer_comes_with_progress_and_the_noise_goes_to_the_log(tmp_path):
    events = []
    outcome = run(target(answer), {"x": 21}, log=tmp_path / "log", observe=events.append)
    assert (outcome.kind, outcome.result, outcome.partial) == ("done", {"twice": 42}, {"seen": 21})
    assert events == [Progress("count", 1, 2, "steps")]
    assert "noise on stdout" in outcome.last_lines()
    assert outcome.peak_resident_bytes > 1_000_000


def test_an_exception_is_a_result_with_its_words(tmp_path):
    outcome = run(target(raises), {}, log=tmp_path / "log")
    assert (outcome.kind, outcome.error, outcome.message) == ("raised", "ValueError", "bad x")
    assert outcome.partial == {"before": True}
    assert "Traceback" in outcome.log.read_text()


def test_os_exit_and_a_signal_are_crashes(tmp_path):
    left = run(target(leaves), {}, log=tmp_path / "a")
    assert (left.kind, left.partial) == ("crashed", {"before": True})
    assert "exit code 7" in left.message
    killed = run(target(segfaults), {}, log=tmp_path / "b")
    assert (killed.kind, killed.error) == ("crashed", "SIGSEGV")


def test_a_hang_ends_at_the_limit(tmp_path):
    outcome = run(target(hangs), {}, log=tmp_path / "log", limits=Limits(seconds=3))
    assert outcome.kind == "timeout"
    assert outcome.partial == {"before": True}
    assert outcome.seconds < 30


def test_too_much_memory_is_stopped_and_named(tmp_path):
    outcome = run(target(eats), {}, log=tmp_path / "log", limits=Limits(seconds=30, resident_bytes=200_000_000))
    assert outcome.kind == "out-of-memory"
    assert "200000000" in outcome.message
