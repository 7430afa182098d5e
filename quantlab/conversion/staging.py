"""Output that appears whole or not at all: a hidden folder beside it, renamed when everything is right.

The staging folder lies in the output's own parent, so on the same file system: a rename across file systems is a
copy, which can stop half way.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from quantlab.errors import EnvironmentProblem, UsageError

SPARE_BYTES = 16 << 20
"""Room for config, tokenizer and file system bookkeeping, on top of the weights."""


def staging_folder(output: Path) -> Path:
    """Return where an unfinished output lies."""
    return output.parent / f".{output.name}.quantlab-partial"


def download_folder(output: Path) -> Path:
    """Return where shards of a source on the hub lie while they are needed."""
    return output.parent / f".{output.name}.quantlab-download"


def check_output(output: Path) -> None:
    """Refuse an output that already holds something.

    Raises:
        UsageError: a file, or a folder that is not empty.
    """
    if output.is_dir():
        if any(output.iterdir()):
            raise UsageError(f"{output} is not empty", hint="name a new folder, or remove what is there")
    elif output.exists() or output.is_symlink():
        raise UsageError(f"{output} exists and is not a folder")


def open_staging(output: Path, *, resume: bool = False) -> Path:
    """Make the staging folder, or find it again.

    Raises:
        UsageError: an unfinished output lies there and ``resume`` was not asked for.
        EnvironmentProblem: the folder cannot be made.
    """
    check_output(output)
    staging = staging_folder(output)
    if staging.exists() and not resume and any(staging.iterdir()):
        raise UsageError(
            f"an unfinished conversion to {output} lies in {staging}",
            hint="finish it with --resume, or remove that folder",
        )
    try:
        staging.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentProblem(f"{staging} cannot be made: {error.strerror}") from error
    return staging


def check_space(folder: Path, needed: int) -> None:
    """Refuse to start what the disk cannot hold.

    Args:
        folder: any existing folder of the file system.
        needed: bytes that will be written.

    Raises:
        EnvironmentProblem: names both numbers.
    """
    free = shutil.disk_usage(folder).free
    if free < needed + SPARE_BYTES:
        raise EnvironmentProblem(
            f"the output needs {size_text(needed)} and {folder} has {size_text(free)} free",
            hint="free some space, or write to another disk",
        )


def publish(staging: Path, output: Path) -> None:
    """Flush everything to the disk and give the folder its name."""
    for path in staging.iterdir():
        if path.is_file():
            flush(path)
    flush(staging)
    os.replace(staging, output)  # noqa: PTH105 - replaces an empty folder, which Path.rename may not
    flush(output.parent)


def discard(staging: Path) -> None:
    """Remove an output that will never be finished."""
    shutil.rmtree(staging, ignore_errors=True)


def flush(path: Path) -> None:
    """Wait until a file's or folder's content is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def size_text(count: float) -> str:
    """Return bytes for people, in decimal units."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
