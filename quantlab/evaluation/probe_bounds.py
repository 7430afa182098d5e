"""How far a loaded layer may be from its file, derived from the arithmetic of the scheme.

A rounding to a floating type of unit roundoff ``u`` moves each number by at most ``u`` of itself, so it moves a
product of many by no more than ``u`` in the 2-norm of a row's outputs over many random inputs. A layer that holds
what the file says may therefore differ from float32 arithmetic by the sum of

- ``u`` of the type that codes are multiplied out to,
- ``u`` of the type that the kernel keeps scales in (a float16 scale is another number in bfloat16),
- ``2 u`` of the output's type: partial sums are added in it once or twice (split-K), and the result is stored in it,
- for integer codes, ``u`` of the zero point's share: kernels that subtract ``scale * zero`` from ``scale * code``
  (both unsigned) round both products, and the first is larger than the weight,
- what rounding the inputs costs, where the scheme rounds them: ``2^-4`` for e4m3 (three bits of mantissa),
  ``2^-2`` for e2m1 (one bit), half a step over the root mean square for integers, from the very inputs used.

These are bounds of each element's error; root mean squares lie below them, and a wrong zero point, scale or column
order lies far above: one scale of one group that is doubled in a row of ``g`` groups gives that row an error of
``1 / sqrt(g)``. Sums of ``n`` products in float32 add ``sqrt(n) u`` on either side (rounding errors of either
sign). Source of the roundoffs: N. Higham, Accuracy and Stability of Numerical Algorithms, 2.2 and 3.1.
"""

from __future__ import annotations

import torch

from quantlab.checkpoint.facts import ActivationScheme
from quantlab.tensors.dequantize import dequantize, effective_scales
from quantlab.tensors.quantized import QuantizedTensor

ROUNDOFF = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float64: 2.0**-53}
"""Unit roundoff by dtype."""

FLOAT_INPUTS = {8: 2.0**-4, 6: 2.0**-3, 4: 2.0**-2}
"""Largest relative error of an input rounded to e4m3, e2m3 or e2m1 (within its range)."""


def allowed_error(
    computed: torch.dtype, activations: ActivationScheme | None, inputs: torch.Tensor, weight: QuantizedTensor
) -> float:
    """Return the relative error that a row of a layer may have.

    Args:
        computed: dtype of the layer's inputs and outputs.
        activations: how the scheme rounds inputs, or None.
        inputs: the inputs ``[tokens, in]`` that were used.
        weight: the layer's codes and scales.
    """
    roundoff = ROUNDOFF.get(computed, ROUNDOFF[torch.bfloat16])
    sums: float = 2 * inputs.shape[-1] ** 0.5 * ROUNDOFF[torch.float32]
    return roundoff * (4 + zero_point_share(weight)) + sums + rounded_inputs(activations, inputs)


def zero_point_share(weight: QuantizedTensor) -> float:
    """Return the norm of ``scale * unsigned zero point`` over the weight's; 0 for other numbers than packed integers.

    A typical row counts (the median): a row of zeros would make it infinite.
    """
    number = weight.format.number
    if number.kind != "int" or number.bits > 4 or weight.scales.ndim != 2:
        return 0.0
    scales = effective_scales(weight)
    zeros = 2.0 ** (number.bits - 1) + (0 if weight.zeros is None else weight.zeros.float())
    products = (scales * zeros).square().mean(dim=1).sqrt()
    sizes = dequantize(weight).square().mean(dim=1).sqrt()
    return float((products / sizes.clamp_min(1e-30)).median())


def rounded_inputs(activations: ActivationScheme | None, inputs: torch.Tensor) -> float:
    """Return what rounding the inputs may cost, relative."""
    if activations is None or not activations.bits or activations.bits >= 16:
        return 0.0
    if activations.type == "int":
        values = inputs.float()
        step = values.abs().amax(dim=-1, keepdim=True) / (2 ** (activations.bits - 1) - 1)
        return float((step / 2).max() / values.square().mean().sqrt())
    return FLOAT_INPUTS.get(activations.bits, 0.0)
