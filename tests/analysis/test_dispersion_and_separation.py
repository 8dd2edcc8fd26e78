"""δ and Δ: worked by hand, against a loop in plain Python, and under shifts, scalings and permutations of the keys."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_semfocus.analysis import dispersion, separation


def row(*values):
    return torch.tensor([[[values]]])


@pytest.mark.parametrize(
    ("scores", "keep", "delta", "gap"),
    [
        ((1.0, 4.0, -2.0), (True, True, True), 6.0, math.nan),
        ((1.0, 4.0, -2.0), (True, True, False), 3.0, 3.0),
        ((1.0, 4.0, -2.0), (False, True, False), 0.0, 3.0),
        ((1.0, 4.0, -2.0), (False, False, True), 0.0, -6.0),
        ((1.0, 1.0, 0.0), (True, False, False), 0.0, 0.0),
        ((1.0, 4.0, -2.0), (False, False, False), math.nan, math.nan),
    ],
)
def test_by_hand(scores, keep, delta, gap):
    torch.testing.assert_close(dispersion(row(*scores), row(*keep)), torch.tensor([[[delta]]]), equal_nan=True)
    torch.testing.assert_close(separation(row(*scores), row(*keep)), torch.tensor([[[gap]]]), equal_nan=True)


def test_keys_that_are_not_valid_are_neither_kept_nor_left_out():
    scores, keep = row(5.0, 3.0, 9.0), row(True, False, False)
    assert separation(scores, keep).item() == -4.0
    assert separation(scores, keep, valid=row(True, True, False)).item() == 2.0
    assert math.isnan(separation(scores, keep, valid=row(True, False, False)).item())


def by_loop(scores, keep, valid):
    """The definition, one query at a time, in Python numbers."""
    deltas, gaps = [], []
    for scores_K, keep_K, valid_K in zip(scores.flatten(0, 2), keep.flatten(0, 2), valid.flatten(0, 2), strict=True):
        kept = [s.item() for s, k in zip(scores_K, keep_K, strict=True) if k]
        out = [s.item() for s, k, v in zip(scores_K, keep_K, valid_K, strict=True) if v and not k]
        deltas.append(max(kept) - min(kept) if kept else math.nan)
        gaps.append(min(kept) - max(out) if kept and out else math.nan)
    shape = scores.shape[:-1]
    return torch.tensor(deltas).double().view(shape), torch.tensor(gaps).double().view(shape)


def drawn(seed, shape=(2, 3, 4, 5)):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(shape, generator=generator, dtype=torch.float64) * 3
    valid = torch.rand(shape, generator=generator) < 0.8
    return scores, valid & (torch.rand(shape, generator=generator) < 0.5), valid


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31))
def test_equals_the_definition_query_by_query(seed):
    scores, keep, valid = drawn(seed)
    deltas, gaps = by_loop(scores, keep, valid)
    torch.testing.assert_close(dispersion(scores, keep), deltas, equal_nan=True)
    torch.testing.assert_close(separation(scores, keep, valid), gaps, equal_nan=True)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.floats(-50, 50), st.floats(0.1, 10))
def test_shifts_scalings_and_permutations(seed, shift, factor):
    scores, keep, valid = drawn(seed)
    order = torch.randperm(scores.shape[-1], generator=torch.Generator().manual_seed(seed))
    for measure in (dispersion, lambda s, k: separation(s, k, valid)):
        plain = measure(scores, keep)
        torch.testing.assert_close(measure(scores + shift, keep), plain, equal_nan=True)
        torch.testing.assert_close(measure(scores * factor, keep), plain * factor, equal_nan=True)
    torch.testing.assert_close(
        dispersion(scores[..., order], keep[..., order]), dispersion(scores, keep), equal_nan=True
    )
    torch.testing.assert_close(
        separation(scores[..., order], keep[..., order], valid[..., order]),
        separation(scores, keep, valid),
        equal_nan=True,
    )


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 5))
def test_top_k_separates_and_never_spreads_more_than_full(seed, k):
    scores, _, valid = drawn(seed)
    chosen = scores.masked_fill(~valid, -math.inf).topk(k, -1).indices
    keep = torch.zeros_like(valid).scatter(-1, chosen, True) & valid
    gap = separation(scores, keep, valid)
    assert (gap[~gap.isnan()] >= 0).all()
    known = keep.any(-1)
    assert (dispersion(scores, keep)[known] <= dispersion(scores, valid)[known]).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_scores_are_subtracted_in_single(dtype):
    scores = row(60000.0, -60000.0).to(dtype)
    delta = dispersion(scores, torch.ones(1, 1, 1, 2, dtype=torch.bool))
    assert delta.dtype == torch.float32
    assert delta.item() == scores.float()[..., 0].item() * 2


def test_masks_broadcast_and_what_does_not_is_refused():
    scores = torch.randn(2, 3, 4, 5)
    keep = torch.rand(2, 1, 1, 5) < 0.7
    torch.testing.assert_close(dispersion(scores, keep), dispersion(scores, keep.expand(2, 3, 4, 5)), equal_nan=True)
    with pytest.raises(ValueError, match=r"does not broadcast"):
        dispersion(scores, torch.ones(1, 1, 4, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"torch\.bool"):
        separation(scores, torch.ones(2, 3, 4, 5))
    with pytest.raises(ValueError, match=r"\(B, H, Q, K\)"):
        dispersion(scores[0], keep)
