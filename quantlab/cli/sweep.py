"""``quantlab sweep``: run a plan, list its cells, or print a cluster's array job."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from dataclasses import asdict
from pathlib import Path

from quantlab.errors import Exit, UnknownNameError
from quantlab.sweep.plan import Plan, read_plan
from quantlab.sweep.run import CellRecord, run_plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``quantlab sweep``."""
    parser.add_argument("plan", type=Path, help="the plan, a YAML file")
    parser.add_argument("--only", action="append", metavar="CELL", help="run this cell (id, or its number from 1)")
    parser.add_argument("--list", action="store_true", help="print the cells and their commands, run nothing")
    parser.add_argument("--slurm", action="store_true", help="print a Slurm array job that runs one cell a task")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="wall time for the whole sweep")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="cells at a time (default: 1)")
    parser.add_argument("--retry-failed", action="store_true", help="run failed cells again")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(options: argparse.Namespace) -> int:
    """Run the plan; exit 0 when every cell is done, 1 when one is not."""
    plan = read_plan(options.plan)
    if options.budget is not None:
        plan = Plan(plan.output, plan.cells, options.budget)
    if options.slurm:
        print(_slurm_job(options.plan, plan))
        return int(Exit.YES)
    if options.list:
        _print_cells(plan, options.format)
        return int(Exit.YES)
    records = []
    for record in run_plan(
        plan, only=_chosen(plan, options.only), retry_failed=options.retry_failed, jobs=options.jobs
    ):
        records.append(record)
        if options.format == "text":
            print(_line(record), flush=True)
    if options.format == "json":
        print(json.dumps([asdict(record) for record in records], indent=1))
    print(f"results are in {plan.output / 'results'}", file=sys.stderr)
    return int(Exit.YES if all(record.state == "done" for record in records) else Exit.NO)


def _chosen(plan: Plan, wanted: list[str] | None) -> set[str] | None:
    if wanted is None:
        return None
    numbered = {str(number): cell.id for number, cell in enumerate(plan.cells, 1)}
    known = {**numbered, **{cell.id: cell.id for cell in plan.cells}}
    for name in wanted:
        if name not in known:
            raise UnknownNameError("cell", name, known)
    return {known[name] for name in wanted}


def _line(record: CellRecord) -> str:
    last = record.words.strip().splitlines()
    told = f"  {last[-1]}" if last and record.state != "done" else ""
    return f"{record.state:<8} {record.id:<40} {sum(record.seconds):8.1f} s{told}"


def _print_cells(plan: Plan, form: str) -> None:
    cells = [{"id": cell.id, "commands": cell.commands(plan.output)} for cell in plan.cells]
    if form == "json":
        print(json.dumps(cells, indent=1))
        return
    for number, cell in enumerate(plan.cells, 1):
        print(f"{number:>3}  {cell.id}")
        for command in cell.commands(plan.output):
            print(f"       quantlab {shlex.join(command)}")


def _slurm_job(path: Path, plan: Plan) -> str:
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            f"#SBATCH --job-name=quantlab-{path.stem}",
            f"#SBATCH --array=1-{len(plan.cells)}",
            "#SBATCH --gpus=1",
            f"#SBATCH --output={plan.output}/slurm-%a.log",
            f'exec quantlab sweep {shlex.quote(str(path))} --only "$SLURM_ARRAY_TASK_ID"',
        ]
    )
