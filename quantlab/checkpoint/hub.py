"""Checkpoints on the Hugging Face hub: configs are downloaded, of weights only the headers (range requests).

Everything goes through huggingface_hub: its cache, its token, its endpoint (``HF_ENDPOINT``), its offline switch
(``HF_HUB_OFFLINE``). A snapshot that is already in the cache with all its weights is read from there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from quantlab.checkpoint.documents import read_json
from quantlab.checkpoint.folder import Listing, list_folder, listing, wanted
from quantlab.checkpoint.safetensors_header import Header, header_length, parse_header
from quantlab.errors import CheckpointError

if TYPE_CHECKING:
    from quantlab.checkpoint.open import Opened

Result = TypeVar("Result")

_FIRST_BYTES = 100_000
"""Most headers are shorter, so that one request is enough (huggingface/huggingface_hub: hf_api.py)."""

_THREADS = 8


class _OutOfReach(CheckpointError):
    """No connection, as against an answer that refuses."""


def open_hub(name: str, *, revision: str | None, token: str | bool | None, headers: bool) -> Opened:
    """Return the facts of a hub checkpoint.

    Args:
        name: ``owner/name`` or ``owner/name@revision``.
        revision: branch, tag or commit; wins over the one in the name.
        token: access token, None for the one that is logged in, False for none.
        headers: ask for the headers of the weights too.

    Raises:
        CheckpointError: no such repository or revision, no access, no connection and nothing in the cache.
    """
    from quantlab.checkpoint.open import assemble, open_checkpoint

    repository, _, named = name.partition("@")
    asked = revision or named or None
    cached = _cached_snapshot(repository, asked)
    if cached is not None and (_offline() or (headers and _complete(cached))):
        return _renamed(open_checkpoint(cached, headers=headers), name)
    try:
        found, commit = _guarded(name, lambda: _remote_listing(repository, asked, token))
    except _OutOfReach:
        if cached is None:
            raise
        return _renamed(open_checkpoint(cached, headers=headers), name)
    heads: dict[str, Header] = {}
    if headers and not found.adapter:
        heads = _guarded(name, lambda: _headers(repository, commit, found, token))
    return assemble(name, found, heads, None)


def _renamed(opened: Opened, name: str) -> Opened:
    from dataclasses import replace

    return replace(opened, facts=replace(opened.facts, path=name))


def _offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE) or os.environ.get("HF_HUB_OFFLINE", "").lower() in {"1", "true", "yes", "on"}


def _cached_snapshot(repository: str, revision: str | None) -> Path | None:
    """The cached snapshot of the revision, if its config is there; without network."""
    from huggingface_hub import try_to_load_from_cache

    for file in ("config.json", "adapter_config.json", "quantize_config.json", "hf_quant_config.json"):
        found = try_to_load_from_cache(repository, file, revision=revision)
        if isinstance(found, str):
            return Path(found).parent
    return None


def _complete(snapshot: Path) -> bool:
    """Whether the snapshot was pinned by commit or holds all weights that it names."""
    try:
        found = list_folder(snapshot)
    except CheckpointError:
        return False
    return bool(found.weights) and all(name in found.sizes for name in found.weights)


def _remote_listing(repository: str, revision: str | None, token: str | bool | None) -> tuple[Listing, str]:
    """Return the files of a repository with its JSON files' content, and the commit that they are from."""
    from huggingface_hub import HfApi, hf_hub_download

    information = HfApi().model_info(repository, revision=revision, token=token, files_metadata=True)
    commit = information.sha or revision or "main"
    sizes = {file.rfilename: int(file.size or 0) for file in information.siblings or []}
    documents: dict[str, dict[str, Any]] = {}
    for name in sizes:
        if wanted(name):
            # Asked for by branch, so that the cache learns which commit the branch is, for later without network.
            path = hf_hub_download(repository, name, revision=revision, token=token)
            documents[name] = read_json(Path(path))
    top = {name: size for name, size in sizes.items() if "/" not in name}
    found = listing(documents, top, repository)
    if not found.documents and not found.weights:
        message = f"{repository} holds no checkpoint: neither config.json nor safetensors"
        raise CheckpointError(message, hint="a GGUF repository needs the file's name; download the file first")
    return found, commit


def _headers(repository: str, commit: str, found: Listing, token: str | bool | None) -> dict[str, Header]:
    present = [name for name in found.weights if name in found.sizes]
    with ThreadPoolExecutor(_THREADS) as pool:
        heads = pool.map(lambda name: _header(repository, commit, name, token), present)
        return dict(zip(present, heads, strict=True))


def _header(repository: str, commit: str, name: str, token: str | bool | None) -> Header:
    """Fetch one header with one range request, two if it is long."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status  # type: ignore[attr-defined]

    url = hf_hub_url(repository, name, revision=commit)
    where = f"{repository}/{name}"

    def fetch(begin: int, end: int) -> tuple[bytes, int]:
        range_header = {**build_hf_headers(token=token), "range": f"bytes={begin}-{end}"}
        response = get_session().get(url, headers=range_header, timeout=30)
        hf_raise_for_status(response)
        total = re.search(r"/(\d+)$", response.headers.get("content-range", ""))
        if total is None:
            message = f"{where}: the server sends no ranges, so that headers cannot be read alone"
            raise CheckpointError(message, hint="download the checkpoint and give its folder")
        return response.content, int(total[1])

    content, size = fetch(0, _FIRST_BYTES)
    length = header_length(content[:8], size, where)
    if length > len(content) - 8:
        content = content[:8] + fetch(8, length + 7)[0]
    return parse_header(content[8 : 8 + length], size, name, where)


def _guarded(name: str, work: Callable[[], Result]) -> Result:
    """Turn the hub's errors into ours, each with what to do."""
    from huggingface_hub import errors

    try:
        return work()
    except errors.GatedRepoError as error:
        raise CheckpointError(f"{name} is gated: {_first_line(error)}", hint=_GATED) from error
    except errors.RevisionNotFoundError as error:
        raise CheckpointError(f"{name} has no such revision", hint="give a branch, tag or commit of it") from error
    except errors.RepositoryNotFoundError as error:
        raise CheckpointError(f"there is no model {name} on the hub, or it is private", hint=_PRIVATE) from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise _OutOfReach(f"{name} is not in the cache and the hub is out of reach", hint=_ONLINE) from error
    except errors.HfHubHTTPError as error:
        raise CheckpointError(f"the hub refused {name}: {_first_line(error)}") from error
    except errors.HFValidationError as error:
        raise CheckpointError(f"{name!r:.120} is no hub id: {_first_line(error)}") from error
    except CheckpointError:
        raise
    except Exception as error:
        if _is_network(error):
            raise _OutOfReach(f"the hub is out of reach: {_first_line(error)}", hint=_ONLINE) from error
        raise


_GATED = "accept its terms on its page and log in (hf auth login), or pass a token"
_PRIVATE = "check the name; for a private one log in (hf auth login) or pass a token"
_ONLINE = "check the connection, HF_HUB_OFFLINE and HF_ENDPOINT, or give a local folder"


def _is_network(error: Exception) -> bool:
    """Whether an error is one of the HTTP library's (httpx or requests, by the hub's release) or the system's."""
    return isinstance(error, OSError) or type(error).__module__.partition(".")[0] in {"httpx", "requests", "httpcore"}


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:200]
