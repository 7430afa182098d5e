"""bitsandbytes: ``absmax`` must have one dimension.

After a forward pass on a CPU with AVX512-BF16 the library keeps it transposed for its kernel; a model saved then
has right codes with scales in the wrong order, and loads without an error.
"""

from __future__ import annotations

from collections.abc import Iterator

from quantlab.checkpoint.facts import Finding
from quantlab.checkpoint.open import Opened


def check(opened: Opened) -> Iterator[Finding]:
    """Report layers whose absmax has another number of dimensions than one."""
    if opened.facts.format != "bitsandbytes":
        return
    wrong = [
        scale
        for layer in opened.layout.layers.values()
        for suffix, scale in layer.scales.items()
        if suffix.endswith("absmax") and len(scale.shape) != 1
    ]
    if wrong:
        shape, name = list(wrong[0].shape), wrong[0].name
        message = f"{len(wrong)} absmax tensors have shape like {shape} ({name}): scales are reordered"
        yield Finding("absmax-shape", "error", wrong[0].file, message,
                      "the model was saved after a forward pass; quantize again and save before any")  # fmt: skip
