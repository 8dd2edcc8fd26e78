"""Dropout by places: the law of independent draws, and gradients that fall where the values do."""

import numpy as np
import pytest
import torch
from scipy import stats

from hf_semfocus.model.dropout import FEWEST_ELEMENTS, Dropout, draws_places, dropout, dropped_places, relu_dropped

P = 0.03


def test_places_are_those_of_independent_draws():
    torch.manual_seed(0)
    samples = [dropped_places(500, P).numpy() for _ in range(4000)]
    assert all((np.diff(places) > 0).all() and (len(places) == 0 or places[-1] < 500) for places in samples)
    counts = np.bincount([len(places) for places in samples], minlength=60)[:60]
    expected = stats.binom(500, P).pmf(np.arange(60)) * len(samples)
    likely = expected > 5
    observed = np.append(counts[likely], counts[~likely].sum())
    assert stats.chisquare(observed, np.append(expected[likely], expected[~likely].sum())).pvalue > 1e-3
    # Every place equally often, and neighbours independent of each other.
    dropped = np.zeros((len(samples), 500))
    for row, places in zip(dropped, samples, strict=True):
        row[places] = 1
    assert stats.chisquare(dropped.sum(0)).pvalue > 1e-3
    both = (dropped[:, 1:] * dropped[:, :-1]).sum()
    assert abs(both - 499 * len(samples) * P**2) < 5 * np.sqrt(499 * len(samples)) * P


def test_a_short_draw_is_continued(monkeypatch):
    # No slack: nearly every draw ends before the last element and has to go on.
    monkeypatch.setattr("hf_semfocus.model.dropout.math.sqrt", lambda x: -x / 10)
    torch.manual_seed(0)
    dropped = torch.zeros(2000)
    for _ in range(500):
        dropped[dropped_places(2000, P)] += 1
    assert dropped.sum() / dropped.numel() / 500 == pytest.approx(P, rel=0.03)
    assert dropped[-500:].mean() / 500 == pytest.approx(P, rel=0.06)


@pytest.mark.parametrize("what", ["dropout", "add", "relu"])
def test_gradients_fall_where_the_values_do(what):
    torch.manual_seed(0)
    x = torch.randn(8, 16, 40, dtype=torch.float64, requires_grad=True)
    residual = torch.randn_like(x, requires_grad=True)
    assert draws_places(x, P)
    assert x.numel() >= FEWEST_ELEMENTS
    module = Dropout(P).train()
    out = {
        "dropout": lambda: dropout(x, P),
        "add": lambda: module.add(residual, x),
        "relu": lambda: relu_dropped(x, P),
    }
    y = out[what]()
    if what == "add":
        y = y - residual
    g = torch.randn_like(y)
    y.backward(g)
    kept = (y.detach().abs() > 1e-12) if what != "relu" else (y > 0)
    values = x.detach().clamp_min(0) if what == "relu" else x.detach()
    torch.testing.assert_close(y.detach(), values * kept / (1 - P))
    torch.testing.assert_close(x.grad, g * kept / (1 - P))
    if what != "relu":
        assert 0.5 * P < 1 - kept.double().mean() < 2 * P
    if what == "add":
        torch.testing.assert_close(residual.grad, torch.zeros_like(g))


def test_off_in_evaluation_and_plain_for_large_rates():
    x = torch.randn(4, 2000)
    assert Dropout(P).eval()(x) is x
    assert not draws_places(x, 0.5)
    assert 0.4 < (Dropout(0.5).train()(x) == 0).double().mean() < 0.6
    assert (Dropout(1.0).train()(x) == 0).all()
