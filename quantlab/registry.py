"""A registry of strings that imports a member on first use.

Seams (formats, quantizers, engines) list their members as ``"module:attribute"``, so that naming a member
costs nothing and only the one in use imports its library.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar, cast

from quantlab.errors import UnknownNameError

Member = TypeVar("Member")


class Registry(Generic[Member]):
    """Members of one seam by id.

    Args:
        kind: the seam's name in error messages, such as ``"format"``.
        members: id to ``"module:attribute"``; the attribute is the member itself.
    """

    def __init__(self, kind: str, members: Mapping[str, str]) -> None:
        self._kind = kind
        self._members = dict(members)

    def __getitem__(self, name: str) -> Member:
        """Return the member, importing its module on first use.

        Raises:
            UnknownNameError: no member has that id.
        """
        if name not in self._members:
            raise UnknownNameError(self._kind, name, self._members)
        module, attribute = self._members[name].split(":")
        return cast("Member", getattr(importlib.import_module(module), attribute))

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)
