"""Sparsemax and entmax-1.5 against the package `entmax`, against bisection, and what masks and odd rows do to them."""

import math

import entmax
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_semfocus.model.sparse_normalizers import NORMALIZERS, entmax15, sparsemax

THEIRS = {"sparsemax": entmax.sparsemax, "entmax15": entmax.entmax15}
BOTH = pytest.mark.parametrize("name", THEIRS)
EVERY = torch.tensor(True)


def scores_and_mask(shape=(5, 3, 17), scale=2.0, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(shape, generator=generator, dtype=torch.float64).mul(scale).to(dtype)
    keep = torch.rand(shape, generator=generator) < 0.6
    keep[..., 0] = True
    return scores, keep


def with_gradient(function, scores, *arguments):
    leaf = scores.clone().requires_grad_()
    weights = function(leaf, *arguments)
    upstream = torch.linspace(-1, 2, weights.numel(), dtype=weights.dtype).view_as(weights)
    return weights.detach(), torch.autograd.grad(weights, leaf, upstream)[0]


def by_bisection(name, scores):
    """From the definition: the threshold at which the weights of one row sum to 1."""
    z, power = (scores / 2, 2) if name == "entmax15" else (scores, 1)
    low, high = z.max() - 1, z.max()
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if (z - middle).clamp(min=0).pow(power).sum() > 1 else (low, middle)
    return (z - low).clamp(min=0).pow(power)


@BOTH
@pytest.mark.parametrize("scale", [0.01, 1.0, 20.0])
def test_values_and_gradients_are_those_of_the_package(name, scale):
    scores, _ = scores_and_mask(scale=scale)
    ours = with_gradient(NORMALIZERS[name], scores, EVERY)
    theirs = with_gradient(THEIRS[name], scores)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


@BOTH
def test_masked_keys_are_as_if_they_were_not_there(name):
    scores, keep = scores_and_mask()
    weights, gradient = with_gradient(NORMALIZERS[name], scores, keep)
    assert (weights[~keep] == 0).all()
    assert (gradient[~keep] == 0).all()
    for row in range(5):
        kept = keep[row, 0]
        torch.testing.assert_close(weights[row, 0, kept], THEIRS[name](scores[row, 0, kept]), rtol=1e-9, atol=1e-11)
    poisoned = scores.masked_fill(~keep, torch.nan)
    torch.testing.assert_close(with_gradient(NORMALIZERS[name], poisoned, keep), (weights, gradient), rtol=0, atol=0)


@BOTH
def test_gradients_are_those_of_finite_differences(name):
    scores, keep = scores_and_mask((4, 6))
    assert torch.autograd.gradcheck(lambda z: NORMALIZERS[name](z, keep), scores.requires_grad_())


@BOTH
@given(values=st.lists(st.floats(-50, 50), min_size=1, max_size=9))
@settings(deadline=None, max_examples=50)
def test_the_definition_by_bisection(name, values):
    row = torch.tensor(values, dtype=torch.float64)
    torch.testing.assert_close(NORMALIZERS[name](row, EVERY), by_bisection(name, row), rtol=1e-7, atol=1e-7)


def test_by_hand():
    """Two keys a score of 1 apart: √A₁ − √A₂ = ½ and A₁ + A₂ = 1, so √A₂ = (√7 − 1) / 4."""
    weights = entmax15(torch.tensor([1.0, 0.0], dtype=torch.float64), EVERY)
    assert weights[1].item() == pytest.approx(((math.sqrt(7) - 1) / 4) ** 2)
    assert sparsemax(torch.tensor([0.4, 0.0]), EVERY).tolist() == pytest.approx([0.7, 0.3])


@BOTH
def test_odd_rows(name):
    normalize = NORMALIZERS[name]
    nothing, gradient = with_gradient(normalize, torch.randn(2, 4), torch.zeros(2, 4, dtype=torch.bool))
    assert (nothing == 0).all()
    assert (gradient == 0).all()
    one = torch.tensor([False, True, False])
    assert normalize(torch.tensor([9.0, -9.0, 3.0]), one).tolist() == [0, 1, 0]
    assert normalize(torch.zeros(4), EVERY).tolist() == [0.25] * 4  # ties
    nan = normalize(torch.tensor([[torch.nan, 1.0], [2.0, 2.0]]), EVERY)
    assert nan[0].isnan().all()
    assert nan[1].tolist() == pytest.approx([0.5, 0.5])


@BOTH
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_is_computed_in_fp32(name, dtype):
    scores, keep = scores_and_mask(dtype=dtype)
    weights, gradient = with_gradient(NORMALIZERS[name], scores, keep)
    exact, exact_gradient = with_gradient(NORMALIZERS[name], scores.double(), keep)
    assert weights.dtype == gradient.dtype == dtype
    epsilon = torch.finfo(dtype).eps
    torch.testing.assert_close(weights.double(), exact, rtol=2 * epsilon, atol=2 * epsilon)
    # The root of a weight near 0 has lost half of its digits.
    torch.testing.assert_close(gradient.double(), exact_gradient, rtol=0, atol=8 * epsilon**0.5)
    huge = torch.tensor([[30000.0, -30000.0, 29999.0], [-30000.0] * 3], dtype=dtype)
    large = NORMALIZERS[name](huge, EVERY)
    assert large.isfinite().all()
    assert large.sum(-1).tolist() == pytest.approx([1, 1], abs=4 * epsilon)


@BOTH
def test_long_rows_sum_to_one_in_fp32(name):
    scores = torch.randn(8, 2048, generator=torch.Generator().manual_seed(0)) * 0.01
    weights = NORMALIZERS[name](scores, EVERY)
    assert weights.sum(-1).tolist() == pytest.approx([1.0] * 8, abs=2e-5)
    torch.testing.assert_close(weights.double(), THEIRS[name](scores.double()), rtol=0, atol=1e-6)


@BOTH
def test_it_compiles_in_one_graph(name):
    scores, keep = scores_and_mask(dtype=torch.float32)
    compiled = torch.compile(NORMALIZERS[name], backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(
        with_gradient(compiled, scores, keep), with_gradient(NORMALIZERS[name], scores, keep), rtol=0, atol=0
    )


@BOTH
def test_vmap_and_its_gradients(name):
    scores, keep = scores_and_mask()
    mapped = torch.vmap(NORMALIZERS[name])
    torch.testing.assert_close(with_gradient(mapped, scores, keep), with_gradient(NORMALIZERS[name], scores, keep))
