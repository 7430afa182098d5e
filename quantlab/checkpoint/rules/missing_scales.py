"""Codes mean nothing without their scales, and scales nothing without codes."""

from __future__ import annotations

from collections.abc import Iterator

from quantlab.checkpoint.facts import Finding
from quantlab.checkpoint.layers import LayerTensors
from quantlab.checkpoint.open import Opened
from quantlab.checkpoint.rules.interface import MOST
from quantlab.checkpoint.values import strings
from quantlab.matrix.data import read_section

_PACKED = {"U8", "I8", "I32", "U32", "I16", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F4"}


def check(opened: Opened) -> Iterator[Finding]:
    """Report layers without scales or zero points, scales without codes, and packed weights of a dense model."""
    form = read_section("formats").get(opened.facts.format.partition("/")[0])
    if not opened.headers:
        return
    if form is None:
        yield from _undeclared(opened)
        return
    layers = opened.layout.layers
    if strings(form["tensors"].get("scales")):
        bare = [layer for layer in layers.values() if not layer.scales]
        yield from _report(bare, "missing-scale", "codes but no scale")
    if form.get("zeros_required"):
        bare = [layer for layer in layers.values() if layer.scales and not layer.zeros]
        yield from _report(bare, "missing-zero-point", "scales but no zero points")
    orphans = {name: layer for name, layer in opened.layout.orphans.items() if not _dense_beside(name, opened)}
    yield from _report(list(orphans.values()), "scale-without-codes", "scales but no codes")
    if not layers and opened.facts.scheme.weights is not None and opened.layout.dense:
        message = f"the config says {opened.facts.format}, but no tensor is quantized"
        yield Finding("nothing-quantized", "warning", opened.recognition.where or "config.json", message,
                      "the weights may have been dequantized, or are quantized while loading")  # fmt: skip


def _dense_beside(module: str, opened: Opened) -> bool:
    """KV cache and activation scales lie at modules whose weight is dense, or that have none."""
    return f"{module}.weight" in opened.layout.dense


def _report(layers: list[LayerTensors], rule: str, what: str) -> Iterator[Finding]:
    for layer in layers[:MOST]:
        held = layer.codes or next(iter((*layer.scales.values(), *layer.zeros.values())))
        yield Finding(rule, "error", f"{held.file}: {layer.module}", f"{layer.module} has {what}",
                      "the checkpoint is incomplete; quantize or download it again")  # fmt: skip
    if len(layers) > MOST:
        yield Finding(rule, "error", "", f"{len(layers)} layers have {what}", "quantize or download it again")


def _undeclared(opened: Opened) -> Iterator[Finding]:
    packed = [
        tensor
        for name, tensor in opened.facts.tensors.items()
        if tensor.dtype in _PACKED and len(tensor.shape) >= 2 and name.endswith((".weight", ".qweight", "_packed"))
    ]
    if packed and opened.facts.format == "dense":
        message = (
            f"{len(packed)} weights are stored as {packed[0].dtype}, but no config says how, such as {packed[0].name}"
        )
        yield Finding("undeclared-quantization", "error", "config.json", message,
                      "add the quantization_config that the checkpoint was written with")  # fmt: skip
