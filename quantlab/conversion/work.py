"""One job: from the tensors of the source to those of the output."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from quantlab.conversion.edges import Exactness
from quantlab.conversion.jobs import Job, LayerPlan, Plan
from quantlab.conversion.source import TensorSource
from quantlab.errors import ConversionRefused
from quantlab.formats import FORMATS
from quantlab.formats.interface import FormatCodec, Layer, Obstacle
from quantlab.tensors.clipping import Clip
from quantlab.tensors.dequantize import dense_weight, dequantize
from quantlab.tensors.quantize import largest, quantize
from quantlab.tensors.quantized import QuantizedTensor, WeightFormat
from quantlab.tensors.scales import global_scale_divisor


@dataclass(frozen=True, slots=True)
class Changed:
    """A layer whose scheme in the output is not the planned one.

    Attributes:
        name: module name.
        scheme: what it is now.
        reason: why.
        requantized: its numbers changed, since the target could not hold them; otherwise the source's tensors are
            of another scheme than its config says, and they were taken at their word.
    """

    name: str
    scheme: WeightFormat
    reason: str
    requantized: bool


@dataclass
class Made:
    """What a job gives: tensors by full name, and layers whose scheme is not the planned one."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    changed: list[Changed] = field(default_factory=list)


class Workshop:
    """Does jobs of one plan; has no state of its own, so any number of threads may use it.

    Args:
        plan: the conversion.
        source: its tensors.
        device: torch device on which is worked.
    """

    def __init__(self, plan: Plan, source: TensorSource, device: str = "cpu") -> None:
        self._plan = plan
        self._source = source
        self._device = device
        self._reader: FormatCodec | None = None if plan.facts.format == "dense" else FORMATS[plan.facts.format]
        self._writer: FormatCodec = FORMATS[plan.target_format]

    def make(self, job: Job) -> Made:
        """Do one job that is no plain copy.

        Raises:
            ConversionRefused: the target cannot hold a layer; names the layer and the reason.
        """
        made = Made()
        with torch.inference_mode():
            match job.action:
                case "cast":
                    for layer in job.layers:
                        dense = self._source.read(layer.weight_name, self._device)
                        made.tensors[layer.weight_name] = self._cast(dense, layer.name)
                case "quantize":
                    self._quantize(job, made)
                case "dequantize":
                    for layer in job.layers:
                        made.tensors[layer.weight_name] = self._multiplied_out(layer)
                case "repack" | "requantize":
                    for layer in job.layers:
                        self._repack(layer, made)
                case "copy":
                    raise ValueError("a copy needs no workshop")
        return made

    def decoded(self, layer: LayerPlan) -> QuantizedTensor:
        """Return a quantized layer of the source."""
        assert layer.source is not None
        assert self._reader is not None
        return decode_layer(self._reader, layer.source, self._source, self._device)

    def dense(self, layer: LayerPlan) -> torch.Tensor:
        """Return a layer of the source in float32, or as it is where it is dense."""
        if layer.source is None:
            return self._source.read(layer.weight_name, self._device)
        return dense_weight(self.decoded(layer), torch.float32)

    def _cast(self, dense: torch.Tensor, name: str) -> torch.Tensor:
        cast = dense.to(getattr(torch, self._plan.preset.dtype or "bfloat16"))
        if torch.isinf(cast).any() and not torch.isinf(dense).any():
            raise ConversionRefused(f"{name} has values that {cast.dtype} cannot hold", hint="use --to bf16")
        return cast

    def _multiplied_out(self, layer: LayerPlan) -> torch.Tensor:
        weight = self.decoded(layer)
        if not self._plan.requantize:
            self._refuse_doubt(layer, weight)
        return dense_weight(weight, getattr(torch, self._plan.preset.dtype or weight.dtype))

    def _quantize(self, job: Job, made: Made) -> None:
        weights = [self._source.read(layer.weight_name, self._device) for layer in job.layers]
        self._encode_rounded(list(job.layers), weights, made)

    def _encode_rounded(self, layers: list[LayerPlan], weights: list[torch.Tensor], made: Made) -> None:
        clip = Clip() if self._plan.preset.clip else None
        scheme = layers[0].target
        assert scheme is not None
        divisor = None
        if len(weights) > 1:
            top = torch.stack([largest(weight, scheme, clip).float() for weight in weights]).amax()
            divisor = global_scale_divisor(top.to(weights[0].dtype))
        for layer, weight in zip(layers, weights, strict=True):
            assert layer.target is not None
            codes = quantize(weight, layer.target, global_divisor=divisor, clip=clip, name=layer.name)
            self._refuse(layer, codes)
            made.tensors.update(self._writer.encode(layer.name, codes))

    def _repack(self, layer: LayerPlan, made: Made) -> None:
        weight = self.decoded(layer)
        assert layer.source is not None
        if layer.target == layer.source.format:
            if weight.format != layer.target:
                reason = "the tensors are of another scheme than the config says"
                made.changed.append(Changed(layer.name, weight.format, reason, requantized=False))
            obstacle = self._writer.obstacle(weight) or _doubt(weight)
            if obstacle is None:
                made.tensors.update(self._writer.encode(layer.name, weight))
                return
            if not self._plan.requantize:
                self._refuse(layer, weight)
            again = self._again(layer, weight)
            made.changed = [change for change in made.changed if change.name != layer.name]
            made.changed.append(Changed(layer.name, again.format, obstacle.reason, requantized=True))
        else:
            assert layer.target is not None
            again = _rounded(weight, layer.target, layer.name)
            self._refuse(layer, again)
        made.tensors.update(self._writer.encode(layer.name, again))

    def _again(self, layer: LayerPlan, weight: QuantizedTensor) -> QuantizedTensor:
        """Round a decoded weight to the nearest scheme that the target can hold."""
        first = self._plan.preset.weights or weight.format
        for scheme in (first, replace(first, symmetric=True, scale_type=None)):
            again = _rounded(weight, scheme, layer.name)
            if self._writer.obstacle(again) is None:
                return again
        self._refuse(layer, again)
        return again

    def _refuse_doubt(self, layer: LayerPlan, weight: QuantizedTensor) -> None:
        doubt = _doubt(weight)
        if doubt is not None:
            raise ConversionRefused(f"{layer.name} ({doubt.rule}): {doubt.reason}", hint=doubt.fix)

    def _refuse(self, layer: LayerPlan, weight: QuantizedTensor) -> None:
        obstacle = self._writer.obstacle(weight) or (None if self._plan.requantize else _doubt(weight))
        if obstacle is None:
            return
        can_change = self._plan.case == "repack" and not self._plan.requantize
        hint = "--requantize changes the numbers and measures the error" if can_change else obstacle.fix
        raise ConversionRefused(f"{layer.name} ({obstacle.rule}): {obstacle.reason}", hint=hint)


def _doubt(weight: QuantizedTensor) -> Obstacle | None:
    """Return what the source leaves ambiguous as an obstacle to an exact conversion."""
    if not weight.doubts:
        return None
    return Obstacle("ambiguous", "; ".join(weight.doubts), "--requantize takes the likelier reading")


def decode_layer(codec: FormatCodec, layer: Layer, source: TensorSource, device: str = "cpu") -> QuantizedTensor:
    """Read and decode one layer."""
    return codec.decode(layer, {role: source.read(name, device) for role, name in layer.tensors.items()})


def _rounded(weight: QuantizedTensor, scheme: WeightFormat, name: str) -> QuantizedTensor:
    """Multiply a weight out in float32 and round it to a scheme; scales get the model's dtype."""
    dense = dequantize(weight, torch.float32)
    rounded = quantize(dense, scheme, name=name)
    dtype = getattr(torch, weight.dtype)
    if scheme.scale_type is None and rounded.scales.dtype == torch.float32:
        rounded = quantize(dense.to(dtype), scheme, name=name)
    return replace(rounded, dtype=weight.dtype, input_scale=weight.input_scale)


def exactness_of(job: Job, changed: set[str]) -> Exactness:
    """Return what holds of a job's layers after all."""
    return "requantize" if any(layer.name in changed for layer in job.layers) else job.exactness
