"""A projection that is quantized in most layers and dense in some, though the config leaves none out.

Loaders build every such module as a quantized one, and then find no codes for the dense ones.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from quantlab.checkpoint.facts import Finding
from quantlab.checkpoint.open import Opened
from quantlab.checkpoint.patterns import leaves_dense
from quantlab.checkpoint.rules.interface import MOST

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_MOST_MODULES = 500


def check(opened: Opened) -> Iterator[Finding]:
    """Compare modules that differ only in their layer's or expert's number."""
    layers = opened.layout.layers
    if not layers or not opened.headers:
        return
    quantized = {_NUMBER.sub("*", module) for module in layers}
    dense: dict[str, list[str]] = defaultdict(list)
    for name, tensor in opened.layout.dense.items():
        module = name.removesuffix(".weight")
        kind = _NUMBER.sub("*", module)
        if module != name and len(tensor.shape) == 2 and kind in quantized and module not in layers:
            dense[kind].append(module)
    for kind, modules in list(dense.items())[:MOST]:
        left = [module for module in modules[:_MOST_MODULES] if not leaves_dense(module, opened.facts.ignore)]
        if left:
            message = f"{kind} is quantized in some layers, but not {left[0]}, and no ignore entry names it"
            where = f"{opened.layout.dense[left[0] + '.weight'].file}: {left[0]}"
            yield Finding("uneven-layers", "warning", where, message, "add it to the ignore list, or quantize it too")
