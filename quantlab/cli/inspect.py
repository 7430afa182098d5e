"""``quantlab inspect CHECKPOINT``: what is in it, and what is wrong with it."""

from __future__ import annotations

import argparse
import json

from quantlab.errors import Exit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("checkpoint", help="folder, config.json, .gguf or .safetensors file, or hub id (owner/name)")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="how to print (default: text)")
    parser.add_argument("--deep", action="store_true", help="read the scale tensors too: NaN, zero, absurd values")
    parser.add_argument("--revision", help="branch, tag or commit of a hub checkpoint")


def run(options: argparse.Namespace) -> int:
    """Print the facts and findings; exit 1 if a finding is an error."""
    from quantlab.checkpoint.inspection import inspect

    facts = inspect(options.checkpoint, deep=options.deep, revision=options.revision)
    if options.format == "json":
        print(json.dumps(facts.to_dict(), ensure_ascii=False, indent=1))
    else:
        from quantlab.checkpoint.summary import summary

        print(summary(facts))
    wrong = any(finding.severity == "error" for finding in facts.findings)
    return int(Exit.NO if wrong else Exit.YES)
