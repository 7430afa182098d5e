"""The campaigns' plans read, and name presets and options that exist."""

import argparse
from pathlib import Path

import pytest

from quantlab.cli import convert, evaluate
from quantlab.conversion.presets import preset_names
from quantlab.sweep.plan import read_plan

CAMPAIGNS = sorted((Path(__file__).resolve().parents[2] / "scripts" / "campaigns").glob("*.yaml"))


@pytest.mark.parametrize("file", CAMPAIGNS, ids=lambda file: file.stem)
def test_every_command_of_a_campaign_parses(file):
    plan = read_plan(file)
    for cell in plan.cells:
        for command, *words in cell.commands(plan.output):
            parser = argparse.ArgumentParser(exit_on_error=False)
            {"convert": convert, "evaluate": evaluate}[command].add_arguments(parser)
            options = parser.parse_args(words)
            if command == "convert" and options.to is not None:
                assert options.to in preset_names()


def test_there_are_campaigns():
    assert len(CAMPAIGNS) >= 3
