"""A source on the hub: download, convert, drop, one shard at a time."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from quantlab.checkpoint.open import Opened
from quantlab.conversion.origin import Origin, is_carried
from quantlab.errors import CheckpointError, EnvironmentProblem

SMALL_FILE_BYTES = 100 << 20
"""Larger files that are no weights are not carried along."""


class HubFiles:
    """Shards of one commit of a repository, each on the disk only as long as it is needed.

    Args:
        repository: ``owner/name``.
        commit: the commit that all files are taken from.
        scratch: folder for downloads.
    """

    def __init__(self, repository: str, commit: str, scratch: Path) -> None:
        self._repository = repository
        self._commit = commit
        self._scratch = scratch

    def fetch(self, file: str) -> Path:
        """Download one file into the scratch folder; one that a cache holds is not fetched again.

        Raises:
            EnvironmentProblem: the hub is out of reach.
        """
        from huggingface_hub import hf_hub_download, try_to_load_from_cache

        cached = try_to_load_from_cache(self._repository, file, revision=self._commit)
        if isinstance(cached, str):
            return Path(cached)
        try:
            return Path(hf_hub_download(self._repository, file, revision=self._commit, local_dir=self._scratch))
        except Exception as error:
            first = (str(error).splitlines() or [""])[0]
            raise EnvironmentProblem(
                f"{file} of {self._repository} could not be downloaded: {first or type(error).__name__}",
                hint="the same command with --resume goes on where it stopped",
            ) from error

    def release(self, file: str) -> None:
        """Remove the downloaded file."""
        (self._scratch / file).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove all downloads."""
        shutil.rmtree(self._scratch, ignore_errors=True)


def hub_origin(name: str, opened: Opened, scratch: Path) -> Origin:
    """Return the origin of a hub id (``owner/name`` or ``owner/name@revision``).

    Raises:
        CheckpointError: the repository cannot be read.
    """
    from huggingface_hub import HfApi

    repository, _, revision = name.partition("@")
    try:
        information = HfApi().model_info(repository, revision=revision or None, files_metadata=True)
    except Exception as error:
        raise CheckpointError(f"the hub does not answer for {name}: {error}") from error
    commit = str(information.sha)
    siblings = information.siblings or []
    sizes = {file.rfilename: int(file.size or 0) for file in siblings}
    carried = [
        file for file, size in sizes.items() if "/" not in file and is_carried(file) and size <= SMALL_FILE_BYTES
    ]
    files = HubFiles(repository, commit, scratch)
    identity: dict[str, Any] = {"commit": commit}
    return Origin(
        f"{repository}@{commit}",
        opened.facts,
        dict(opened.listing.config),
        opened.listing.index_metadata,
        files,
        lambda: identity,
        tuple(sorted(carried)),
        files.fetch,
    )
