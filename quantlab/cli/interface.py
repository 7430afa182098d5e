"""What a command is: one module of ``quantlab.cli`` with these two functions."""

from __future__ import annotations

import argparse
from typing import Protocol


class Command(Protocol):
    """A module that parses, calls and prints one command; nothing else."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's options on its own parser."""

    def run(self, options: argparse.Namespace) -> int:
        """Do it and return the exit code; errors are raised as QuantlabError."""
