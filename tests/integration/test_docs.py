"""Generated pages are fresh, and what the README and CONTRIBUTING tell to type exists."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from quantlab.cli import COMMANDS, main

ROOT = Path(__file__).resolve().parents[2]


def test_generated_pages_are_fresh():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "generate_docs.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def told_commands():
    """Every quantlab command in a shell block of the pages that people read first."""
    for page in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        for block in re.findall(r"^```(?:sh|console)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                found = re.match(r"^(?:\$ )?(quantlab .*)$", line)
                if found:
                    yield found.group(1)


@pytest.mark.parametrize("command", sorted(set(told_commands())))
def test_the_pages_commands_parse(command, capsys):
    name, *words = shlex.split(command, comments=True)[1:]
    assert name in COMMANDS
    assert main([name, "--help"]) == 0
    help_text = capsys.readouterr().out
    for word in words:
        if word.startswith("--"):
            assert word.split("=")[0] in help_text, f"{word} is no option of quantlab {name}"


def test_the_readme_s_check_examples_answer_as_shown(capsys):
    """Examples of `check` in the README are run: the first line printed is the first line shown."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\$ quantlab (check .*)\n(.+)$", text, re.MULTILINE)
    assert shown
    for command, first_line in shown:
        if "local" not in command:
            main(shlex.split(command))
            assert capsys.readouterr().out.splitlines()[0].strip() == first_line.strip()
