"""log ξ: by hand, at the edges of Δ, without overflow, and the ℓ1 bounds that ξ stands for."""

import math

import pytest
import torch

from hf_semfocus.analysis import aggregate, dispersion, improvement, log_stability


def test_by_hand():
    delta, gap = torch.tensor([2.0, 0.0]), torch.tensor([1.0, 3.0])
    torch.testing.assert_close(log_stability(delta, 4), torch.tensor([2 - math.log(4), -math.log(4)]))
    expected = torch.tensor([2 - math.log(4) + math.log(2), -math.log(4) + math.log(4 / 3)])
    torch.testing.assert_close(log_stability(delta, 4, gap), expected)
    torch.testing.assert_close(log_stability(delta, torch.tensor([4, 4]), gap), expected)


def test_the_edges_of_the_separation():
    delta = torch.ones(7, dtype=torch.float64)
    gap = torch.tensor([0.0, -0.5, -3.0, math.nan, 1e-300, 1e300, math.inf], dtype=torch.float64)
    value = log_stability(delta, 1, gap)
    assert value[0] == math.inf
    assert value[1].isnan()
    assert value[2].isnan()
    assert value[3] == 1  # nothing was left out: no penalty
    assert value[4].item() == pytest.approx(1 + 300 * math.log(10))  # 1/Δ is near the largest double
    assert value[5] == value[6] == 1
    tiny = log_stability(torch.ones(1), 1, torch.tensor([1e-44]))  # 1/Δ overflows fp32
    assert tiny.isfinite().all()


def test_no_overflow_at_ten_thousand():
    scores = torch.tensor([[[[1e4, -1e4, 0.0]]]])
    keep = torch.tensor([[[[True, False, True]]]])
    everything = torch.ones_like(keep)
    assert log_stability(dispersion(scores, everything), 3).item() == pytest.approx(2e4 - math.log(3))
    # (2e4 − log 3) − (1e4 − log 2 + log(1 + 1e-4))
    assert improvement(scores, keep).item() == pytest.approx(1e4 - math.log(3) + math.log(2) - math.log(1 + 1e-4))


def test_improvement_by_hand():
    scores = torch.tensor([[[[3.0, 0.0, 0.0, -1.0]]]])
    keep = torch.tensor([[[[True, False, False, False]]]])
    full = 4 - math.log(4)
    assert improvement(scores, keep).item() == pytest.approx(full - math.log(1 + 1 / 3))
    assert improvement(scores, keep, input_dependent=False).item() == pytest.approx(full)
    # the last key is padding: full attention sees three keys of dispersion 3
    valid = torch.tensor([[[[True, True, True, False]]]])
    assert improvement(scores, keep, valid).item() == pytest.approx(3 - math.log(3) - math.log(1 + 1 / 3))
    assert improvement(scores, valid, valid).isnan().all()  # everything valid is kept: nothing to improve
    assert improvement(scores, torch.zeros_like(keep)).isnan().all()
    tied = torch.tensor([[[[1.0, 1.0]]]])
    assert improvement(tied, torch.tensor([[[[True, False]]]])).item() == -math.inf


def test_improvement_does_not_change_with_a_shift_or_an_order_of_keys():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 2, 6, 6, generator=generator, dtype=torch.float64)
    keep = torch.zeros(2, 2, 6, 6, dtype=torch.bool).scatter(-1, scores.topk(3, -1).indices, True)
    plain = improvement(scores, keep)
    torch.testing.assert_close(improvement(scores - 7, keep), plain)
    order = torch.randperm(6, generator=generator)
    torch.testing.assert_close(improvement(scores[..., order], keep[..., order]), plain)


def test_aggregate_ignores_nan_and_matches_numpy():
    import numpy as np

    values = torch.tensor([[5.0, math.nan, 1.0], [2.0, 8.0, math.nan]])
    known = [5.0, 1.0, 2.0, 8.0]
    found = aggregate(values)
    assert found == {
        "mean": pytest.approx(4.0),
        "median": pytest.approx(np.median(known)),
        "q95": pytest.approx(np.quantile(known, 0.95)),
        "max": 8.0,
    }
    assert all(math.isnan(value) for value in aggregate(torch.tensor([math.nan])).values())
    assert aggregate(torch.tensor([math.inf] * 3))["q95"] == math.inf
