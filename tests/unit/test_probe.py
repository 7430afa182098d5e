"""The layer probe's parts: folds, orders, scales, bounds and vocabularies."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from quantlab.checkpoint.facts import ActivationScheme
from quantlab.evaluation.layer_probe import row_error, sample
from quantlab.evaluation.probe_bounds import ROUNDOFF, allowed_error, rounded_inputs
from quantlab.evaluation.probe_cause import DRIFT, Mismatch, cause
from quantlab.evaluation.probe_folds import accepted, find_fold
from quantlab.evaluation.probe_orders import matching
from quantlab.evaluation.vocabulary import difference
from quantlab.formats.interface import Layer
from quantlab.tensors.dequantize import dequantize
from quantlab.tensors.number_types import FP8_E4M3FN, INT4
from quantlab.tensors.quantize import quantize
from quantlab.tensors.quantized import WeightFormat
from tests.awkward import awkward

pytestmark = pytest.mark.torch

INT4_GROUPS = WeightFormat(INT4, "group", 32)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def factors(count: int, seed: int) -> torch.Tensor:
    return torch.exp(0.4 * normal(count, seed=seed))


def test_a_fold_is_found_through_rounding_and_taken_back() -> None:
    """AWQ: the norm gives to gate and up, up's rows give to down's columns."""
    columns, rows = factors(128, 1), factors(256, 2) * 1.3
    up, down = normal(256, 128), normal(128, 256, seed=3)
    folds = {}
    for name, wanted, got in (
        ("up", up, up * columns * rows[:, None]),
        ("down", down, down / rows),
    ):
        fold = find_fold(wanted, dequantize(quantize(got, INT4_GROUPS)), 0.1)
        assert fold is not None
        assert float((fold.scaled - got).norm() / got.norm()) < 0.03
        folds[name] = fold
    assert accepted(folds, [1 / columns]) == {"up", "down"}
    assert accepted({"up": folds["up"]}, [1 / columns]) == set(), "nothing takes the rows back"
    assert accepted(folds, []) == set(), "nothing takes the columns back"


@pytest.mark.parametrize("heads", [1, 3])
def test_rows_of_key_value_heads_are_repeated(heads: int) -> None:
    rows = factors(64, 4)
    wide = rows.view(2, 32).repeat_interleave(heads, dim=0).flatten()
    value, output = normal(64, 96), normal(96, 64 * heads, seed=5)
    folds = {"v": find_fold(value, value * rows[:, None]), "o": find_fold(output, output / wide)}
    found = {name: fold for name, fold in folds.items() if fold is not None}
    assert accepted(found, [], head=32) == {"v", "o"}


def test_one_wrong_scale_is_no_fold() -> None:
    wanted = normal(64, 64)
    got = wanted.clone()
    got[3] *= 2
    assert find_fold(wanted, got) is None


def test_a_constant_factor_is_never_taken_back_by_nothing() -> None:
    wanted = normal(64, 64)
    fold = find_fold(wanted, 2 * wanted)
    assert fold is not None
    assert accepted({"layer": fold}, [torch.ones(64)]) == set()


def test_order_needs_matching_rows_not_matching_distributions() -> None:
    """Independent rows look alike once sorted; they must not count as permuted."""
    one, other = normal(64, 2048), normal(64, 2048, seed=9)
    assert matching(one, other) is None
    assert matching(one, one) is None
    order = torch.randperm(64, generator=torch.Generator().manual_seed(1))
    places = matching(one, one[order])
    assert places is not None
    assert torch.equal(places, order)


def test_causes_on_awkward_weights() -> None:
    """Minus zeros, subnormals, all-zero rows and outliers do not hide a mistake."""
    weight = quantize(awkward(64, 128), WeightFormat(FP8_E4M3FN, "channel"))
    decoded = dequantize(weight)
    assert "times 2: FNUZ" in cause(Mismatch(decoded, 2 * decoded, weight))
    assert "permuted columns" in cause(Mismatch(decoded, decoded.roll(5, dims=1), weight))
    assert cause(Mismatch(decoded, torch.zeros_like(decoded), weight)).startswith("all zero")


def test_drift_is_no_mistake() -> None:
    weight = quantize(normal(64, 128) + 0.3 * normal(64, 128, seed=4), INT4_GROUPS)
    said = cause(Mismatch(dequantize(weight), normal(64, 128), weight, noise=0.1, original=True))
    assert said.startswith(DRIFT)


def test_a_row_counts_on_its_own() -> None:
    reference = normal(64, 512)
    output = reference.clone()
    output[:, 100] *= 1.5
    assert row_error(reference, output) == pytest.approx(0.5, rel=1e-4)
    output[0, 0] = float("nan")
    assert row_error(reference, output) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_honest_arithmetic_stays_inside_its_bound(dtype: torch.dtype) -> None:
    """A layer that multiplies out in its own dtype, with scales cast to it, is never called bad."""
    weight = quantize(normal(96, 1024).to(dtype), INT4_GROUPS)
    cast = replace(weight, scales=weight.scales.to(torch.bfloat16 if dtype is torch.float32 else dtype))
    inputs = normal(64, 1024, seed=7).to(dtype)
    output = torch.nn.functional.linear(inputs, dequantize(weight, dtype)).float()
    reference = inputs.float() @ dequantize(weight).T
    found = row_error(reference, output)
    assert found is not None
    bound = allowed_error(dtype, None, inputs, cast)
    assert found <= bound < 40 * ROUNDOFF[dtype] + 1e-4


def test_rounding_of_inputs_is_bounded_by_what_it_does() -> None:
    inputs = normal(64, 512)
    rounded = dequantize(quantize(inputs, WeightFormat(FP8_E4M3FN, "channel")))
    error = float((rounded - inputs).norm() / inputs.norm())
    assert 0 < error < rounded_inputs(ActivationScheme(8, "float", "token", dynamic=True), inputs)
    steps = inputs.abs().amax(-1, keepdim=True) / 127
    error = float(((inputs / steps).round() * steps - inputs).norm() / inputs.norm())
    assert 0 < error < rounded_inputs(ActivationScheme(8, "int", "token", dynamic=True), inputs)
    assert rounded_inputs(ActivationScheme(16, "float"), inputs) == 0


@pytest.mark.parametrize("count", [1, 2, 3, 7, 10, 20, None])
def test_a_sample_is_spread(count: int | None) -> None:
    layers = [Layer(f"layer{number}", {}, INT4_GROUPS, (4, 4), "") for number in range(10)]
    chosen = sample(layers, count)
    assert len(chosen) == min(count or 10, 10)
    assert chosen[0] is layers[0]
    assert count == 1 or chosen[-1] is layers[-1]


def test_vocabularies_may_grow_but_not_change() -> None:
    original = {"a": 0, "b": 1}
    assert difference(original, original) is None
    assert difference({**original, "<tool>": 2}, original) is None
    said = difference({"b": 0, "a": 1}, original)
    assert said is not None
    assert "2 tokens" in said
