"""The index names a shard for each tensor: shards must be there and hold exactly those."""

from __future__ import annotations

from collections.abc import Iterator

from quantlab.checkpoint.facts import Finding
from quantlab.checkpoint.folder import INDEX
from quantlab.checkpoint.open import Opened
from quantlab.checkpoint.rules.interface import MOST
from quantlab.checkpoint.values import integer


def check(opened: Opened) -> Iterator[Finding]:
    """Compare the index with the shards' headers; without any shard (configs only) there is nothing to compare."""
    index = opened.listing.index
    if index is None or not opened.headers:
        return
    shards = sorted(set(index.values()))
    missing = [shard for shard in shards if shard not in opened.headers]
    for shard in missing[:MOST]:
        count = sum(file == shard for file in index.values())
        yield Finding("missing-shard", "error", shard, f"the index names {shard} for {count} tensors, it is not there",
                      "download the shard again")  # fmt: skip
    if len(missing) > MOST:
        message = f"{len(missing)} of {len(shards)} shards are not there"
        yield Finding("missing-shard", "error", INDEX, message, "download them again")
    yield from _tensors(opened, index, set(missing))
    yield from _total(opened, bool(missing))


def _tensors(opened: Opened, index: dict[str, str], missing: set[str]) -> Iterator[Finding]:
    held = {name: file for file, header in opened.headers.items() for name in header.tensors}
    absent = [name for name, file in index.items() if file not in missing and name not in held]
    moved = [name for name, file in index.items() if name in held and name not in opened.headers[held[name]].tensors]
    moved += [name for name, file in index.items() if name in held and file in opened.headers and held[name] != file
              and name not in opened.headers[file].tensors]  # fmt: skip
    unlisted = [name for name in held if name not in index]
    where = INDEX
    if absent:
        message = f"{len(absent)} tensors of the index are in no shard, such as {absent[0]}"
        yield Finding("missing-tensor", "error", where, message, "the shards belong to another version of the model")
    if moved:
        message = f"{len(moved)} tensors lie in another shard than the index says, such as {moved[0]}"
        yield Finding("misplaced-tensor", "error", where, message, "rewrite the index from the shards' headers")
    if unlisted:
        message = f"{len(unlisted)} tensors of the shards are not in the index, such as {unlisted[0]}"
        yield Finding("unlisted-tensor", "warning", where, message, "loaders skip them; rewrite the index")


def _total(opened: Opened, incomplete: bool) -> Iterator[Finding]:
    stated = integer(opened.listing.index_metadata.get("total_size"))
    held = opened.facts.bytes.get("total", 0)
    # Some writers count the files, some the tensors; a tenth apart is neither.
    if stated and not incomplete and abs(stated - held) > held / 10:
        message = f"total_size is {stated}, the tensors have {held} bytes"
        yield Finding("total-size", "info", INDEX, message, "harmless to most loaders; rewrite the index")
