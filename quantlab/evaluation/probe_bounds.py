"""How far a loaded layer may be from its file, derived from the arithmetic of the scheme.

A rounding to a floating type of unit roundoff ``u`` moves each number by at most ``u`` of itself, so it moves a
product of many by no more than ``u`` in the 2-norm of a row's outputs over many random inputs. A layer that holds
what the file says may therefore differ from float32 arithmetic by the sum of

- ``u`` of the type that codes are multiplied out to,
- ``u`` of the type that the kernel keeps scales in (a float16 scale is another number in bfloat16),
- ``2 u`` of the output's type: partial sums are added in it once or twice (split-K), and the result is stored in it,
- what rounding the inputs costs, where the scheme rounds them: ``2^-4`` for e4m3 (three bits of mantissa),
  ``2^-2`` for e2m1 (one bit), half a step over the root mean square for integers, from the very inputs used.

These are bounds of each element's error; root mean squares lie below them, and a wrong zero point, scale or column
order lies far above: one scale of one group that is doubled in a row of ``g`` groups gives that row an error of
``1 / sqrt(g)``. Source of the roundoffs: N. Higham, Accuracy and Stability of Numerical Algorithms, 2.2 and 3.1.
"""

from __future__ import annotations

import torch

from quantlab.checkpoint.facts import ActivationScheme

ROUNDOFF = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float64: 2.0**-53}
"""Unit roundoff by dtype."""

FLOAT_INPUTS = {8: 2.0**-4, 6: 2.0**-3, 4: 2.0**-2}
"""Largest relative error of an input rounded to e4m3, e2m3 or e2m1 (within its range)."""


def allowed_error(computed: torch.dtype, activations: ActivationScheme | None, inputs: torch.Tensor) -> float:
    """Return the relative error that a row of a layer may have.

    Args:
        computed: dtype of the layer's inputs and outputs.
        activations: how the scheme rounds inputs, or None.
        inputs: the inputs ``[tokens, in]`` that were used.
    """
    roundoff = ROUNDOFF.get(computed, ROUNDOFF[torch.bfloat16])
    return 4 * roundoff + rounded_inputs(activations, inputs)


def rounded_inputs(activations: ActivationScheme | None, inputs: torch.Tensor) -> float:
    """Return what rounding the inputs may cost, relative."""
    if activations is None or not activations.bits or activations.bits >= 16:
        return 0.0
    if activations.type == "int":
        values = inputs.float()
        step = values.abs().amax(dim=-1, keepdim=True) / (2 ** (activations.bits - 1) - 1)
        return float((step / 2).max() / values.square().mean().sqrt())
    return FLOAT_INPUTS.get(activations.bits, 0.0)
