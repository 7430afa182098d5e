"""``quantlab evidence``: bundle what was recorded here, import what others send."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from quantlab.errors import Exit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``quantlab evidence``."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="bundle|import|list")
    for name, words in (
        ("bundle", "write all evidence into one archive"),
        ("import", "take evidence out of an archive"),
        ("list", "what is recorded"),
    ):
        action = actions.add_parser(name, help=words, description=words, allow_abbrev=False)
        if name != "list":
            action.add_argument("file", type=Path, help="the archive (.tar.gz)")
        action.add_argument("--evidence", type=Path, metavar="FOLDER", help="folder (default: the user's data folder)")
        action.add_argument("--format", choices=("text", "json"), default="text")


def run(options: argparse.Namespace) -> int:
    """Bundle, import or list."""
    from quantlab.evaluation.evidence import bundle, import_bundle, read_folder, user_folder

    folder = options.evidence or user_folder()
    if options.action == "list":
        found = [{"file": path.name, **content["statement"]} for path, content in read_folder(folder)]
        if options.format == "json":
            print(json.dumps(found, indent=1))
        for item in found if options.format == "text" else []:
            print(f"{item['date']}  {item['engine']} {item['format']} on {item['gpu']}: {item['outcome']}")
        return int(Exit.YES)
    count = bundle(options.file, folder) if options.action == "bundle" else import_bundle(options.file, folder)
    words = "files in the bundle" if options.action == "bundle" else "new files"
    print(json.dumps({"files": count}) if options.format == "json" else f"{count} {words}")
    return int(Exit.YES)
