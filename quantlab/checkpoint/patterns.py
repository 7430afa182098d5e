"""Module patterns of strangers' configs: names, globs and regular expressions, matched without being stalled.

A regular expression can be written so that matching takes for ever. Patterns of such a shape (a repeat of
something that repeats or branches, or many open repeats in a row) are not run; a rule reports them.
"""

from __future__ import annotations

import re
import re._parser as parser  # type: ignore[import-not-found]
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

_LONGEST_PATTERN = 2000
_LONGEST_NAME = 512
_MOST_REPEATS = 4
_REPEATS = {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}


def matches(pattern: str, module: str) -> bool:
    """Tell whether a config's pattern means a module.

    ``re:`` begins a regular expression that must match from the module's first character (compressed-tensors'
    and Quark's rule); ``*``, ``?`` and ``[`` make a glob; anything else is a name that means the module of that
    name and what lies below it, and a fragment (``visual``, ``mlp.gate``) means whole components anywhere.
    """
    if pattern.startswith("re:"):
        expression = compiled(pattern[3:])
        return expression is not None and len(module) <= _LONGEST_NAME and expression.match(module) is not None
    if any(sign in pattern for sign in "*?["):
        return fnmatchcase(module, pattern) or fnmatchcase(module, pattern + ".*")
    return f".{pattern}." in f".{module}."


def leaves_dense(module: str, entries: tuple[str, ...]) -> bool:
    """Tell whether an ignore list may mean a module: loaders differ in how they match, so any of their ways counts.

    At most 2000 entries are looked at.
    """
    return any(entry in module or matches(entry, module) for entry in entries[:2000])


@lru_cache(maxsize=8192)
def compiled(expression: str) -> re.Pattern[str] | None:
    """Return the compiled expression, or None if it is no expression or could stall."""
    if len(expression) > _LONGEST_PATTERN:
        return None
    try:
        tree = parser.parse(expression)
        if _stalls(tree):
            return None
        return re.compile(expression)
    except (re.error, RecursionError, OverflowError):
        return None


def _stalls(tree: Any) -> bool:
    open_repeats = 0
    for name, argument, inside in _walk(tree, inside=False):
        if name in _REPEATS and argument[1] is parser.MAXREPEAT:
            open_repeats += 1
            if inside:
                return True
        if name in {"BRANCH", "GROUPREF"} and inside:
            return True
    return open_repeats > _MOST_REPEATS


def _walk(tree: Any, *, inside: bool) -> Iterator[tuple[str, Any, bool]]:
    """Yield every operation with whether it lies inside an open repeat."""
    for operation, argument in tree:
        name = str(operation)
        yield name, argument, inside
        deeper = inside or (name in _REPEATS and argument[1] is parser.MAXREPEAT)
        for part in argument if isinstance(argument, tuple | list) else (argument,):
            branches = part if isinstance(part, list) else (part,)
            for branch in branches:
                if isinstance(branch, parser.SubPattern):
                    yield from _walk(branch, inside=deeper)
