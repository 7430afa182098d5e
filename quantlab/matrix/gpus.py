"""Groups of gpu architectures, and what people call a device in a question.

Products are the hardware catalogue's; here are the groups that statements speak of (``ampere``, ``cdna3``) and
the words for whole vendors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantlab.errors import UnknownNameError
from quantlab.matrix.data import read_section


@dataclass(frozen=True, slots=True)
class GpuGroups:
    """Architecture ids by group name.

    Attributes:
        groups: group name to architecture ids.
        aliases: words to architecture ids.
        vendors: vendor word to the group of all its gpus.
        typical: vendor to the architectures that stand for it where a question names none.
        backends: architecture id to the backend that drives it.
    """

    groups: Mapping[str, tuple[str, ...]]
    aliases: Mapping[str, str]
    vendors: Mapping[str, str]
    typical: Mapping[str, tuple[str, ...]]
    backends: Mapping[str, str]

    def expand(self, names: Iterable[str]) -> frozenset[str]:
        """Return the architectures of groups and ids.

        Raises:
            KeyError: a name is neither.
        """
        found: set[str] = set()
        for name in names:
            if name in self.groups:
                found.update(self.groups[name])
            elif name in self.backends:
                found.add(name)
            else:
                raise KeyError(name)
        return frozenset(found)

    def architecture(self, word: str) -> str | None:
        """Return the architecture id of an id as people write it (``sm_80+``, ``8.6``, ``gfx942:sramecc+``)."""
        plain = word.strip().lower()
        if plain in self.backends:
            return plain
        if plain in self.aliases:
            return self.aliases[plain]
        plain = plain.split(":")[0].rstrip("+").replace(" ", "")
        match = re.fullmatch(r"(?:sm_?|compute_?|cc)?(\d{1,2})\.?(\d)[af]?", plain)
        candidate = f"sm_{match.group(1)}{match.group(2)}" if match else plain
        return candidate if candidate in self.backends else self.aliases.get(plain)

    def backend(self, architecture: str | None) -> str | None:
        """Return the backend of an architecture."""
        return None if architecture is None else self.backends.get(architecture)


def read_groups(folder: Path | None = None) -> GpuGroups:
    """Read matrix/gpu-groups.yaml."""
    raw: Mapping[str, Any] = read_section("gpu-groups", folder=folder)["gpu-groups"]
    backends = {gpu: backend for backend, gpus in raw["backends"].items() for gpu in gpus}
    groups: dict[str, tuple[str, ...]] = {}
    for name, members in raw["groups"].items():
        expanded: list[str] = []
        for member in members:
            expanded.extend(groups.get(member, (member,)))
        groups[name] = tuple(dict.fromkeys(expanded))
    for backend, gpus in raw["backends"].items():
        groups.setdefault(backend, tuple(gpus))
    aliases = {str(word).lower(): str(gpu) for word, gpu in raw["aliases"].items()}
    typical = {name: tuple(gpus) for name, gpus in raw["typical"].items()}
    return GpuGroups(groups, aliases, raw["vendors"], typical, backends)


def find_gpu(groups: GpuGroups, name: str) -> str:
    """Return the architecture id of an id, a group with one member, or a product.

    Raises:
        UnknownNameError: nothing is called so.
    """
    found = groups.architecture(name)
    if found is not None:
        return found
    from quantlab.hardware.catalogue import gpu

    try:
        return gpu(name).arch
    except UnknownNameError as error:
        raise UnknownNameError("gpu", name, groups.backends, hint=error.hint) from None
