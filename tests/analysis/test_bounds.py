"""The two ℓ1 bounds of a softmax: by hand, against measured changes, at scores of ±10⁴."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_semfocus.analysis import dispersion, is_vacuous, loose_bound, sharp_bound


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_by_hand():
    assert loose_bound(tensor(0), 20).item() == pytest.approx(0.1)  # 2/20
    assert loose_bound(tensor(1), 20).item() == pytest.approx(math.e / 10)
    assert loose_bound(tensor(9), 20).item() == 0.5
    assert sharp_bound(tensor(0), 4).item() == pytest.approx(2 * 0.25 * 0.75)
    assert sharp_bound(tensor(math.log(2)), 4).item() == pytest.approx(2 * 0.4 * 0.6)  # p = 2/(2 + 3)
    assert sharp_bound(tensor(9), 4).item() == 0.5
    torch.testing.assert_close(loose_bound(tensor(0, 0), torch.tensor([20, 40])), tensor(0.1, 0.05))
    assert loose_bound(tensor(math.nan), 3).isnan().all()
    assert sharp_bound(tensor(math.nan), 3).isnan().all()


def test_the_loose_one_is_vacuous_from_a_quarter_on():
    edge = math.log(20 / 4)  # e^δ/20 = ¼
    assert is_vacuous(tensor(edge - 1e-9, edge + 1e-9, math.nan), 20).tolist() == [False, True, False]
    assert is_vacuous(tensor(0.0, 0.0), torch.tensor([4, 5])).tolist() == [True, False]


def test_no_overflow_at_ten_thousand():
    delta = dispersion(torch.tensor([[[[1e4, -1e4, 0.0]]]]), torch.ones(1, 1, 1, 3, dtype=torch.bool))
    assert delta.item() == 2e4
    assert loose_bound(delta, 3).item() == sharp_bound(delta, 3).item() == 0.5
    assert is_vacuous(delta, 3).item()


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 40), st.floats(0.0, 6.0), st.sampled_from(["random", "spike", "near"]))
def test_both_bound_what_a_softmax_does(seed, n, delta, kind):
    generator = torch.Generator().manual_seed(seed)
    z = torch.rand(2, n, generator=generator, dtype=torch.float64)
    if kind == "spike":  # one key stands out: the rows that come closest to the sharp bound
        z = torch.zeros(2, n, dtype=torch.float64)
        z[:, 0] = torch.tensor([1.0, 1 - 1e-6])
    elif kind == "near":
        z[1] = z[0] + 1e-6 * z[1]
    spread = (z.amax(-1) - z.amin(-1)).amax().clamp_min(1e-9)
    z = z / spread * delta
    measured = (z.amax(-1) - z.amin(-1)).amax()
    moved, changed = (z[0] - z[1]).abs().sum(), (z[0].softmax(-1) - z[1].softmax(-1)).abs().sum()
    sharp, loose = sharp_bound(measured, n), loose_bound(measured, n)
    assert changed <= sharp * moved + 1e-12
    assert sharp <= loose + 1e-12


@pytest.mark.parametrize(("n", "delta"), [(5, 0.5), (20, 2.0), (600, 5.0)])
def test_a_row_with_one_spike_comes_within_one_percent_of_the_sharp_bound(n, delta):
    step = 1e-4
    z = torch.zeros(2, n, dtype=torch.float64)
    z[0, 0], z[1, 0] = delta, delta - step
    changed = (z[0].softmax(-1) - z[1].softmax(-1)).abs().sum().item()
    assert 0.99 <= changed / (sharp_bound(tensor(delta), n).item() * step) <= 1


def test_shifts_and_permutations_of_the_keys_change_nothing():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 2, 6, 6, generator=generator, dtype=torch.float64)
    keep = torch.rand(2, 2, 6, 6, generator=generator) < 0.6
    order = torch.randperm(6, generator=generator)
    for bound in (loose_bound, sharp_bound):
        plain = bound(dispersion(scores, keep), keep.sum(-1))
        shifted = bound(dispersion(scores + 12, keep), keep.sum(-1))
        permuted = bound(dispersion(scores[..., order], keep[..., order]), keep[..., order].sum(-1))
        torch.testing.assert_close(shifted, plain, equal_nan=True)
        torch.testing.assert_close(permuted, plain, equal_nan=True)
