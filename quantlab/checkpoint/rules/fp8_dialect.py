"""FP8 has two dialects, and only one of them is read by each loader.

Per tensor, vLLM, SGLang and AutoFP8 keep the factor in ``weight_scale``, transformers in ``weight_scale_inv``. Run
with transformers 5.17 on a CPU: a per-tensor checkpoint with ``weight_scale`` loads with its scales reported as
unexpected keys and weights that are wrong; so do blocks that do not divide the rows.
"""

from __future__ import annotations

from collections.abc import Iterator

from quantlab.checkpoint.facts import Finding, TensorInfo
from quantlab.checkpoint.open import Opened


def check(opened: Opened) -> Iterator[Finding]:
    """Report scales that transformers ignores, and blocks that do not divide the weights."""
    weights = opened.facts.scheme.weights
    if opened.facts.format != "fp8" or weights is None:
        return
    layers = opened.layout.layers.values()
    other = [layer for layer in layers if ".weight_scale" in layer.scales and ".weight_scale_inv" not in layer.scales]
    if other:
        module = other[0].module
        message = f"{len(other)} layers keep their scale in weight_scale, such as {module}"
        fix = "for vllm and sglang; transformers ignores these scales: convert to compressed-tensors for it"
        yield Finding("fp8-dialect", "warning", f"{module}.weight_scale", message, fix)
    if weights.granularity == "block" and isinstance(weights.group_size, tuple):
        ragged = [
            layer.codes for layer in layers if layer.codes is not None and _ragged(layer.codes, weights.group_size)
        ]
        if ragged:
            rows, columns = weights.group_size
            example = f"{ragged[0].name} {list(ragged[0].shape)}"
            message = f"blocks of {rows}x{columns} do not divide {len(ragged)} weights, such as {example}"
            fix = "some loaders decode the last blocks wrongly; compare outputs with the original model"
            yield Finding("ragged-blocks", "info", f"{ragged[0].file}: {ragged[0].name}", message, fix)


def _ragged(codes: TensorInfo, block: tuple[int, int]) -> bool:
    if len(codes.shape) != 2 or min(block) <= 0:
        return False
    return bool(codes.shape[0] % block[0] or codes.shape[1] % block[1])
