"""A sweep expands its plan into commands, keeps what is done, and minds its budget."""

import json
from pathlib import Path

import pytest

from quantlab.cli import main
from quantlab.errors import UsageError
from quantlab.sweep import run as sweep_run
from quantlab.sweep.plan import Plan, flags, parse_plan
from quantlab.sweep.run import result_path, run_plan

PLAN = {
    "output": "out",
    "models": {"tiny": {"path": "models/tiny"}},
    "evaluate": {"window": 128},
    "grid": {"models": ["tiny"], "convert": [None, {"to": "fp8"}, {"to": "w4a16", "set": ["group_size=32"]}]},
    "cells": [{"id": "own", "model": "tiny", "convert": {"to": "gptq", "force": True}, "evaluate": {"probe": 2}}],
}


def test_a_grid_and_single_cells_become_commands():
    plan = parse_plan(PLAN, where="plan")
    assert [cell.id for cell in plan.cells] == ["tiny", "tiny-fp8", "tiny-w4a16-group_size-32", "own"]
    plain, _, w4, own = (cell.commands(Path("out")) for cell in plan.cells)
    assert plain == [["evaluate", "models/tiny", "--format", "json", "--window", "128"]]
    out = "out/checkpoints/tiny-w4a16-group_size-32"
    assert w4[0] == ["convert", "models/tiny", out, "--to", "w4a16", "--set", "group_size=32"]
    assert w4[1][:4] == ["evaluate", out, "--baseline", "models/tiny"]
    assert own[0][-1] == "--force"
    assert own[1][-2:] == ["--probe", "2"]


def test_flags_leave_out_what_is_unset():
    assert flags({"a": None, "b": False, "c": True, "d": [1, 2]}) == ["--c", "--d", "1", "--d", "2"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"grid": {"models": ["tny"]}, "cells": []}, "tny"),
        ({"colour": 1}, "colour"),
        ({"cells": 3}, "cells is int"),
        ({"budget_seconds": "long"}, "budget_seconds is 'long'"),
        ({"grid": None, "cells": []}, "plans no cell"),
        ({"cells": [{"id": "tiny", "model": "tiny"}]}, "two cells"),
    ],
)
def test_a_wrong_plan_names_the_key(change, words):
    with pytest.raises(UsageError, match=words):
        parse_plan({**PLAN, **change}, where="plan")


@pytest.fixture
def recorded(monkeypatch):
    """Stand in for the processes of a cell: the sweep's own bookkeeping is what is tested here."""
    calls = []

    def command(words, limit):
        calls.append(words)
        if words[0] == "convert" and "gptq" in words:
            return 2, "", "error: no such preset", 0.5
        return 0, json.dumps({"ran": words[1]}), "", 1.0

    monkeypatch.setattr(sweep_run, "_run_command", command)
    return calls


def test_finished_cells_are_not_run_again_and_failed_ones_on_request(tmp_path, recorded):
    parsed = parse_plan(PLAN, where="plan")
    plan = Plan(tmp_path, parsed.cells)
    first = list(run_plan(plan))
    assert [record.state for record in first] == ["done", "done", "done", "failed"]
    assert json.loads(result_path(tmp_path, plan.cells[0]).read_text()) == {"ran": "models/tiny"}
    assert first[3].words == "error: no such preset"
    count = len(recorded)
    assert list(run_plan(plan)) == first
    assert len(recorded) == count
    list(run_plan(plan, retry_failed=True))
    assert len(recorded) == count + 1


def test_a_cell_that_would_not_end_in_time_is_skipped_and_said(tmp_path, recorded):
    cells = parse_plan({**PLAN, "grid": None, "cells": [{"model": "tiny", "seconds": 60}]}, where="plan").cells
    (record,) = run_plan(Plan(tmp_path, cells, budget_seconds=30))
    assert record.state == "skipped"
    assert "expected to take 60" in record.words
    assert recorded == []
    (record,) = run_plan(Plan(tmp_path, cells, budget_seconds=90))
    assert record.state == "done"


def test_the_command_lists_and_prints_a_cluster_job(tmp_path, capsys):
    file = tmp_path / "plan.yaml"
    file.write_text(json.dumps(PLAN))
    assert main(["sweep", str(file), "--list"]) == 0
    assert "quantlab convert models/tiny out/checkpoints/tiny-fp8 --to fp8" in capsys.readouterr().out
    assert main(["sweep", str(file), "--slurm"]) == 0
    assert "#SBATCH --array=1-4" in capsys.readouterr().out
    assert main(["sweep", str(tmp_path / "none.yaml")]) == 2
    assert "cannot read the plan" in capsys.readouterr().err
    assert main(["sweep", str(file), "--only", "tiny-fp9"]) == 2
    assert "tiny-fp8" in capsys.readouterr().err
