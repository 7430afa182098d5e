"""How exact the way from one format to another is: the edges of ``matrix/edges.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from quantlab.errors import DataError
from quantlab.matrix.data import read_section

Exactness = Literal["identical", "exact-value", "rescaled", "rounded", "requantize"]
"""What is promised of a layer and proved. ``rounded`` is a decode rounded once to a dense dtype."""

DEFAULT_BOUND = 2.0**-20
"""Relative bound of a rescaled float32 decode: one rounding of the scale, doubled for the reciprocal."""


@dataclass(frozen=True, slots=True)
class Edge:
    """One way between two formats.

    Attributes:
        source: format id.
        target: format id.
        exactness: what holds, under the condition where there is one.
        condition: what the tensors must fulfil, in words; the codecs test it on every layer.
        decode_dtype: dtype in which the decodes are compared.
        bound: relative bound of the decode where the edge is ``rescaled``.
        note: what else a user should know.
    """

    source: str
    target: str
    exactness: Exactness = "identical"
    condition: str | None = None
    decode_dtype: str = "float32"
    bound: float = 0.0
    note: str | None = None


def find_edge(source: str, target: str) -> Edge:
    """Return the edge between two formats; one that no data names is held to ``identical``."""
    for edge in all_edges():
        if (edge.source, edge.target) == (source, target):
            return edge
    return Edge(source, target)


def all_edges() -> tuple[Edge, ...]:
    """Return every edge of the data.

    Raises:
        DataError: an edge has no such class, or lacks a field.
    """
    entries = read_section("edges")["edges"]["edges"]
    return tuple(_edge(number, entry) for number, entry in enumerate(entries, 1))


def _edge(number: int, entry: Mapping[str, Any]) -> Edge:
    try:
        exactness = entry["class"]
        if exactness == "exact-if":
            exactness = entry["holds"]
        if exactness not in get_args(Exactness):
            raise DataError(f"edges.yaml: edge {number} has the unknown class {exactness!r}")
        return Edge(
            entry["from"],
            entry["to"],
            cast("Exactness", exactness),
            entry.get("condition"),
            entry.get("decode_dtype", "float32"),
            float(entry.get("bound", DEFAULT_BOUND if exactness == "rescaled" else 0.0)),
            entry.get("note"),
        )
    except KeyError as error:
        raise DataError(f"edges.yaml: edge {number} lacks {error.args[0]!r}") from error
