"""``quantlab doctor``: what this machine is, what is wrong with it, and what works here."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from quantlab.errors import Exit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``quantlab doctor``."""
    parser.add_argument("--machine", type=Path, metavar="FILE", help="a recorded description instead of this machine")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(options: argparse.Namespace) -> int:
    """Print the diagnosis; exit 1 when a finding is an error."""
    from quantlab.hardware.diagnosis import doctor
    from quantlab.report.doctor_text import doctor_text

    diagnosis = doctor(options.machine)
    print(json.dumps(diagnosis.to_dict(), indent=1) if options.format == "json" else doctor_text(diagnosis))
    return int(Exit.YES if diagnosis.ok else Exit.NO)
