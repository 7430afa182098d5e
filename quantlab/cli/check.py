"""``quantlab check``: will this checkpoint or method run there, and why."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from quantlab.errors import Exit, UsageError
from quantlab.matrix.api import Answer, check, check_lines
from quantlab.matrix.model import OPERATIONS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``quantlab check``."""
    parser.add_argument("target", nargs="?", help="a folder, a hub id, a config.json, a .gguf file, or a method")
    parser.add_argument("--gpu", metavar="G", help="architecture or product, such as sm_90, 'RTX 3090', MI300X, local")
    parser.add_argument(
        "--engine", metavar="E", help="transformers, vllm, sglang, llama.cpp, ... (all main ones if left out)"
    )
    parser.add_argument("--operation", choices=OPERATIONS, help="what is to be done (load and run if left out)")
    parser.add_argument("--with", dest="packages", action="append", default=[], metavar="PACKAGE=VERSION",
                        help="a version that is installed there (newest release if left out)")  # fmt: skip
    parser.add_argument("--tensor-parallel", type=int, metavar="N", help="gpus that each layer is split over")
    parser.add_argument("--queries", metavar="FILE", help="answer JSON Lines from FILE or - instead")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(options: argparse.Namespace) -> int:
    """Answer; exit 0 for works and works-with-fallback, 1 for everything else."""
    if options.queries is not None:
        return _queries(options)
    if options.target is None:
        raise UsageError("nothing to check", hint="quantlab check TARGET --gpu G, or quantlab check --queries FILE")
    answer = check(
        options.target,
        gpu=options.gpu,
        engine=options.engine,
        operation=options.operation,
        versions=_versions(options.packages),
        tensor_parallel=options.tensor_parallel,
    )
    if options.format == "json":
        print(json.dumps(answer.to_dict(), indent=1))
    else:
        print(_text(answer))
    return int(Exit.YES if answer.ok else Exit.NO)


def _versions(words: list[str]) -> dict[str, str]:
    found = {}
    for word in words:
        package, equals, version = word.partition("=")
        if not equals or not package.strip() or not version.strip("= "):
            raise UsageError(f"--with {word!r} is not PACKAGE=VERSION", hint="--with vllm=0.33.0")
        found[package.strip()] = version.strip("= ")
    return found


def _queries(options: argparse.Namespace) -> int:
    if options.target is not None:
        raise UsageError("--queries takes no target", hint="quantlab check --queries FILE")
    for answer in check_lines(_lines(options.queries)):
        print(json.dumps(answer))
    return int(Exit.YES)


def _lines(name: str) -> Iterator[str]:
    if name != "-" and not Path(name).is_file():
        raise UsageError(f"no such file: {name}", hint="--queries FILE, or - for standard input")
    if name == "-":
        yield from sys.stdin
        return
    with Path(name).open(encoding="utf-8", errors="replace") as file:
        yield from file


def _text(answer: Answer) -> str:
    rows = [f"{answer.subject}"]
    for verdict in answer.verdicts:
        where = " on ".join(filter(None, [verdict.engine, verdict.gpu]))
        mode = f" ({verdict.mode})" if verdict.mode else ""
        rows.append("")
        rows.append(f"{where}: {verdict.outcome}{mode}")
        rows.append(f"  why      {verdict.reason}")
        if verdict.kernel:
            rows.append(f"  kernel   {verdict.kernel}")
        if verdict.fix:
            rows.append(f"  way out  {verdict.fix}")
        sources = f", {', '.join(verdict.sources)}" if verdict.sources else ""
        rows.append(f"  source   {verdict.confidence}{sources}")
    return "\n".join(rows)
