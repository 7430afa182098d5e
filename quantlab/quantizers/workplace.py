"""Where a run writes: beside the output until the result is whole and checked, so that it appears at once or not.

Whatever ends the run, an interrupt included, takes the staging and scratch folders away with it.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from quantlab.errors import ConversionRefused


@dataclass(frozen=True, slots=True)
class Workplace:
    """Folders of one run.

    Attributes:
        output: the folder to make.
        staging: where the library writes; on the output's file system; does not exist at first.
        scratch: temporary files of the library and of ours.
        log: everything the library prints; outlives the run.
    """

    output: Path
    staging: Path
    scratch: Path
    log: Path

    def publish(self) -> None:
        """Give the staged folder its name, in one step."""
        if self.output.is_dir():
            self.output.rmdir()
        self.staging.rename(self.output)

    def keep_as_rejected(self) -> Path:
        """Keep the staged folder under a name that says what it is, and return that name."""
        base = self.output.with_name(self.output.name + ".rejected")
        names = itertools.chain([base], (base.with_name(f"{base.name}-{n}") for n in itertools.count(2)))
        kept = next(name for name in names if not name.exists())
        self.staging.rename(kept)
        return kept


@contextmanager
def workplace(output: Path) -> Iterator[Workplace]:
    """Make the folders of a run beside ``output`` and remove them at its end."""
    descriptor, log = tempfile.mkstemp(prefix="quantlab-", suffix=".log")
    os.close(descriptor)
    with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as work:
        scratch = Path(work) / "scratch"
        scratch.mkdir()
        yield Workplace(output, Path(work) / "staging", scratch, Path(log))


def require_free(output: Path) -> None:
    """Refuse an output that is there already.

    Raises:
        ConversionRefused: it is a file, or a folder that holds something.
    """
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        message = f"{output} exists and is not an empty folder"
        raise ConversionRefused(message, hint="name a folder that does not exist yet")


def existing_parent(path: Path) -> Path:
    """Return the nearest folder above ``path`` that exists."""
    return next(parent for parent in path.absolute().parents if parent.is_dir())
