"""``quantlab evaluate``: prove that a checkpoint loads and works; measure quality and speed."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from quantlab.errors import Exit, UsageError

if TYPE_CHECKING:
    from quantlab.evaluation.result import Result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``quantlab evaluate``."""
    parser.add_argument("checkpoint", help="folder of the checkpoint")
    parser.add_argument("--baseline", metavar="MODEL", help="folder of the original model")
    parser.add_argument("--engine", default="transformers", help="engine to load it with (default: transformers)")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the result's JSON to FILE too")
    _add_load(parser.add_argument_group("load"))
    _add_quality(parser.add_argument_group("quality"))
    _add_speed(parser.add_argument_group("speed"))
    _add_verdict(parser.add_argument_group("verdict and evidence"))


def _add_load(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--device", default="auto", help="torch device, or auto: all gpus, else the CPU")
    group.add_argument("--dtype", help="compute dtype (default: the checkpoint's)")
    group.add_argument("--attention", metavar="NAME", help="sdpa, eager, flash_attention_2, flash_attention_3, ...")
    group.add_argument("--use-kernels", action="store_true", help="let transformers take kernels from the hub")
    group.add_argument("--compile", action="store_true", help="compile the forward pass")
    group.add_argument("--trust-remote-code", action="store_true", help="run code that comes with the checkpoint")
    group.add_argument("--timeout", type=float, metavar="SECONDS", help="end the worker after this time")
    group.add_argument("--max-memory", type=float, metavar="GB", help="end the worker above this much host memory")
    group.add_argument("--probe", type=int, metavar="N", help="layers to probe (default: all; 0: none)")
    group.add_argument("--seed", type=int, default=0)


def _add_quality(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--text", default="builtin", help="file, folder, data set NAME[:CONFIG][:SPLIT], builtin, or none"
    )
    group.add_argument("--tokens", type=int, default=16384, help="tokens to measure on, 0 for all (default: 16384)")
    group.add_argument("--window", type=int, help="tokens in a window (default: 2048 or the model's maximum)")
    group.add_argument("--stride", type=int, help="new tokens of each window (default: no overlap)")
    group.add_argument("--batch", type=int, default=1, help="windows in one forward pass (default: 1)")
    group.add_argument("--no-rounding", action="store_true", help="leave out the round-to-nearest reference")
    group.add_argument("--no-generate", action="store_true", help="leave out the continuations")


def _add_speed(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--speed-batch", default="1", metavar="N,...", help="batch sizes (default: 1; empty: no speed)")
    group.add_argument("--prompt-tokens", default="128", metavar="N,...", help="prompt lengths (default: 128)")
    group.add_argument("--new-tokens", default="16", metavar="N,...", help="new tokens (default: 16)")
    group.add_argument(
        "--speed-shape", action="append", default=[], metavar="BATCHxPROMPTxNEW",
        help="measure this shape instead of the grid; may be given again",
    )  # fmt: skip
    group.add_argument("--repeats", type=int, default=3, help="runs of each cell after the warm-up (default: 3)")


def _add_verdict(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--max-perplexity", type=float, metavar="X")
    group.add_argument("--max-perplexity-increase", type=float, metavar="SHARE", help="over the original; 0.05 is 5 %%")
    group.add_argument("--max-kl", type=float, metavar="NATS", help="mean divergence from the original")
    group.add_argument("--min-top1-agreement", type=float, metavar="SHARE")
    group.add_argument("--record", action="store_true", help="keep the result as evidence in the user's data folder")
    group.add_argument("--evidence", type=Path, metavar="FOLDER", help="keep it there instead (matrix/evidence)")


def run(options: argparse.Namespace) -> int:
    """Evaluate; exit 0 where the verdict is ok, 1 where it is not."""
    from quantlab.cli.progress_bar import terminal_observer
    from quantlab.evaluation.api import evaluate
    from quantlab.evaluation.job import LoadOptions, SpeedOptions
    from quantlab.evaluation.verdict import Thresholds
    from quantlab.worker import Limits

    load = LoadOptions(
        options.device,
        options.dtype,
        options.attention,
        options.use_kernels,
        options.compile,
        options.trust_remote_code,
    )
    speed = SpeedOptions(
        numbers(options.speed_batch),
        numbers(options.prompt_tokens),
        numbers(options.new_tokens),
        shapes=tuple(shape(words) for words in options.speed_shape),
        repeats=options.repeats,
    )
    thresholds = Thresholds(
        options.max_perplexity, options.max_perplexity_increase, options.max_kl, options.min_top1_agreement
    )
    memory = None if options.max_memory is None else int(options.max_memory * 1e9)
    with terminal_observer() as observe:
        result = evaluate(
            options.checkpoint,
            baseline=options.baseline,
            engine=options.engine,
            text=None if options.text == "none" else options.text,
            tokens=options.tokens or None,
            window=options.window,
            stride=options.stride,
            batch=options.batch,
            probe=options.probe,
            load=load,
            speed=speed,
            generate=not options.no_generate,
            rounding=not options.no_rounding,
            thresholds=thresholds,
            limits=Limits(options.timeout, memory),
            seed=options.seed,
            observe=observe,
        )
    _print(result, options)
    return int(Exit.YES if result.verdict.ok else Exit.NO)


def shape(words: str) -> tuple[int, int, int]:
    """Read ``8x512x32``: batch, prompt tokens, new tokens.

    Raises:
        UsageError: not three positive numbers.
    """
    parts = words.lower().split("x")
    if len(parts) != 3 or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise UsageError(f"{words!r} is no shape", hint="--speed-shape 8x512x32: batch, prompt tokens, new tokens")
    return int(parts[0]), int(parts[1]), int(parts[2])


def numbers(words: str) -> tuple[int, ...]:
    """Read ``1,8,32``.

    Raises:
        UsageError: something else than positive whole numbers.
    """
    try:
        found = tuple(int(word) for word in words.split(",") if word.strip())
    except ValueError:
        found = (0,)
    if any(number < 1 for number in found):
        raise UsageError(f"{words!r} is not a list of positive whole numbers", hint="such as 1,8,32")
    return found


def _print(result: Result, options: argparse.Namespace) -> None:
    from quantlab.evaluation.evidence import record
    from quantlab.evaluation.result_text import describe

    content = json.dumps(result.to_dict(), indent=1)
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(content + "\n", encoding="utf-8")
    print(content if options.format == "json" else describe(result))
    if not result.load.ok or result.worker.get("kind") != "done":
        print(f"the worker's log is in {result.worker.get('log')}", file=sys.stderr)
    if options.record or options.evidence is not None:
        print(f"evidence: {record(result, options.evidence)}", file=sys.stderr)
