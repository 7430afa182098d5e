"""FP8 has two dialects, and only one of them is read by each loader.

Per tensor, vLLM, SGLang and AutoFP8 keep the factor in ``weight_scale``, transformers in ``weight_scale_inv``. Run
with transformers 5.17 on a CPU: a per-tensor checkpoint with ``weight_scale`` loads with its scales reported as
unexpected keys and weights that are wrong; so do blocks that do not divide the rows.
"""

from __future__ import annotations

from collections.abc import Iterator

from quantlab.checkpoint.facts import Finding
from quantlab.checkpoint.open import Opened


def check(opened: Opened) -> Iterator[Finding]:
    """Report scales that transformers ignores, and blocks that do not divide the weights."""
    weights = opened.facts.scheme.weights
    if opened.facts.format != "fp8" or weights is None:
        return
    layers = opened.layout.layers.values()
    other = [layer for layer in layers if ".weight_scale" in layer.scales and ".weight_scale_inv" not in layer.scales]
    if other:
        message = f"{len(other)} layers keep their scale in weight_scale, such as {other[0].module}"
        yield Finding("fp8-dialect", "warning", f"{opened.listing.weights[0]}: {other[0].module}.weight_scale", message,
                      "for vllm and sglang; transformers ignores these scales: convert to compressed-tensors for it")  # fmt: skip
    if weights.granularity == "block" and isinstance(weights.group_size, tuple):
        rows, columns = weights.group_size
        ragged = [
            layer for layer in layers
            if layer.codes is not None and len(layer.codes.shape) == 2 and _ragged(layer.codes.shape, rows, columns)
        ]  # fmt: skip
        if ragged:
            shape = list(ragged[0].codes.shape) if ragged[0].codes is not None else []
            message = (
                f"blocks of {rows}x{columns} do not divide {len(ragged)} weights, such as {ragged[0].module} {shape}"
            )
            yield Finding("ragged-blocks", "info", ragged[0].module, message,
                          "some loaders decode the last blocks wrongly; compare outputs with the original model")  # fmt: skip


def _ragged(shape: tuple[int, ...], rows: int, columns: int) -> bool:
    return rows > 0 and columns > 0 and bool(shape[0] % rows or shape[1] % columns)
