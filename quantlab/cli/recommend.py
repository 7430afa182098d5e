"""``quantlab recommend``: which methods fit and run on a gpu, ranked."""

from __future__ import annotations

import argparse
import json

from quantlab.errors import Exit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``quantlab recommend``."""
    parser.add_argument("model", help="a folder, a hub id, or a config.json")
    parser.add_argument(
        "--gpu", required=True, metavar="G", help="a product such as 'RTX 3090', an architecture, or local"
    )
    parser.add_argument("--engine", metavar="E", help="only this engine")
    parser.add_argument("--context", type=int, default=4096, metavar="N", help="tokens a sequence (default: 4096)")
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="sequences at a time (default: 1)")
    parser.add_argument("--all", action="store_true", help="also what does not fit or does not run, and why")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(options: argparse.Namespace) -> int:
    """Print the recommendation; exit 1 when nothing fits and runs."""
    from quantlab.matrix.recommendation import recommend
    from quantlab.report.recommendation_text import recommendation_text

    found = recommend(
        options.model, gpu=options.gpu, engine=options.engine, context=options.context, batch=options.batch
    )
    if options.format == "json":
        print(json.dumps(found.to_dict(), indent=1))
    else:
        print(recommendation_text(found, everything=options.all))
    return int(Exit.YES if found.best is not None else Exit.NO)
