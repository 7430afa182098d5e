"""``quantlab matrix``: the table, and lint, diff and sources of its data."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

from quantlab.errors import Exit, UsageError

ACTIONS = ("show", "lint", "diff", "sources")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``quantlab matrix``."""
    parser.add_argument("action", nargs="?", choices=ACTIONS, default="show", help="what to do (default: show)")
    parser.add_argument("names", nargs="*", metavar="NAME", help="diff: two folders or revisions; sources: an id")
    parser.add_argument("--method", action="append", default=[], metavar="M", help="only this method")
    parser.add_argument("--gpu", action="append", default=[], metavar="G", help="an arch, product or group of gpus")
    parser.add_argument("--backend", action="append", default=[], metavar="B", help="cuda, rocm, xpu, hpu, mps, cpu")
    parser.add_argument("--engine", action="append", default=[], metavar="E", help="only this engine")
    parser.add_argument("--format", choices=("text", "json", "markdown", "html"), default="text")


def run(options: argparse.Namespace) -> int:
    """Print what was asked for."""
    wanted = {"show": 0, "lint": 0, "diff": 2, "sources": 1}[options.action]
    if len(options.names) != wanted:
        raise UsageError(
            f"quantlab matrix {options.action} takes {wanted} names, not {len(options.names)}",
            hint="quantlab matrix --help",
        )
    return {"show": _show, "lint": _lint, "diff": _diff, "sources": _sources}[options.action](options)


def _show(options: argparse.Namespace) -> int:
    from quantlab.matrix.load import load
    from quantlab.matrix.table import build_table

    table = build_table(
        load(), methods=options.method, engines=options.engine, gpus=options.gpu, backends=options.backend
    )
    match options.format:
        case "json":
            print(json.dumps(table.to_dict(), indent=1))
        case "markdown":
            from quantlab.matrix.load import read_sources
            from quantlab.report.matrix_markdown import matrix_markdown

            print(matrix_markdown(table, read_sources()))
        case "html":
            from quantlab.report.matrix_html import matrix_html

            print(matrix_html(table))
        case _:
            from quantlab.report.matrix_text import matrix_text

            print(matrix_text(table, width=shutil.get_terminal_size((100, 24)).columns))
    return int(Exit.YES)


def _lint(options: argparse.Namespace) -> int:
    from quantlab.matrix.data import data_folder
    from quantlab.matrix.lint import run_lint

    findings = run_lint(data_folder())
    if options.format == "json":
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        for finding in findings:
            print(f"{finding.severity}: {finding.rule}: {finding.where}: {finding.message}")
    errors = sum(finding.severity == "error" for finding in findings)
    print(f"{len(findings)} findings, {errors} of them errors", file=sys.stderr)
    return int(Exit.NO if errors else Exit.YES)


def _diff(options: argparse.Namespace) -> int:
    from quantlab.matrix.difference import difference, state

    with state(options.names[0]) as before, state(options.names[1]) as after:
        found = difference(Path(before), Path(after))
    if options.format == "json":
        print(json.dumps(found.to_dict(), indent=1))
        return int(Exit.YES)
    for kind, names in (("added", found.added), ("removed", found.removed), ("changed", found.changed)):
        for name in names:
            print(f"{kind:<8} {name}")
    for cell in found.cells:
        where = f"{cell.method} in {cell.engine} on {cell.gpu}"
        print(f"answer   {where}: {cell.before or 'not there'} -> {cell.after or 'not there'}")
    return int(Exit.YES)


def _sources(options: argparse.Namespace) -> int:
    from quantlab.matrix.citation import cite
    from quantlab.matrix.load import load, read_sources

    found = cite(options.names[0], load(), read_sources())
    if options.format == "json":
        print(json.dumps(found.to_dict(), indent=1))
        return int(Exit.YES)
    for name, entry in found.sources.items():
        print(f"source {name}")
        for key, value in entry.items():
            print(f"  {key}: {value}")
    for statement in found.statements:
        print(f"statement {statement.id} ({', '.join(statement.engines)}): {statement.outcome}: {statement.reason}")
        print(f"  in matrix/{statement.file}, cites {', '.join(statement.sources)}")
    return int(Exit.YES)
