"""How many parameters and bytes a checkpoint has, by what they belong to.

Keys of parameters: ``total`` and the kinds of ``matrix/architectures.yaml`` (experts, attention, mlp, embeddings,
head, norms, vision) or ``other``. Bytes have the same kinds, and say how they are stored: ``codes``, ``scales``
(zero points and the like included) and ``dense``.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from functools import lru_cache

from quantlab.checkpoint.facts import Scheme, TensorInfo
from quantlab.checkpoint.layers import Layout, elements
from quantlab.matrix.data import read_section


@lru_cache(maxsize=1)
def _patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    kinds = read_section("architectures")["architectures"]["kinds"]
    return tuple((str(entry["kind"]), re.compile(entry["pattern"])) for entry in kinds)


_LAYER = re.compile(r"\.\d+(?=\.)")


def kind_of(name: str) -> str:
    """Return what a tensor belongs to, by its name."""
    return _kind(_LAYER.sub(".0", name))


@lru_cache(maxsize=8192)
def _kind(name: str) -> str:
    return next((kind for kind, pattern in _patterns() if pattern.search(name)), "other")


def measure(layout: Layout, scheme: Scheme, storage_bits: float | None = None) -> tuple[dict[str, int], dict[str, int]]:
    """Return (parameters by kind, bytes by kind); packed codes count as the weights they stand for."""
    parameters: Counter[str] = Counter()
    sizes: Counter[str] = Counter()

    def add(tensor: TensorInfo, stored: str, count: int) -> None:
        length = tensor.end - tensor.start
        kind = kind_of(tensor.name)
        sizes.update({kind: length, stored: length, "total": length})
        parameters.update({kind: count, "total": count})

    for layer in layout.layers.values():
        assert layer.codes is not None
        add(layer.codes, "codes", elements(layer, scheme, storage_bits))
        for suffix, tensor in layer.extra.items():
            bias = suffix.endswith("bias")
            add(tensor, "dense" if bias else "scales", math.prod(tensor.shape) if bias else 0)
        for tensor in (*layer.scales.values(), *layer.zeros.values()):
            add(tensor, "scales", 0)
    for layer in layout.orphans.values():
        for tensor in (*layer.scales.values(), *layer.zeros.values()):
            add(tensor, "scales", 0)
    for tensor in layout.dense.values():
        add(tensor, "dense", math.prod(tensor.shape))
    return dict(parameters), dict(sizes)
