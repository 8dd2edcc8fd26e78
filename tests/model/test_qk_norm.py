"""QK-norm against torch's own root-mean-square norm, and what it promises about scores."""

import math

import pytest
import torch
from torch import nn

from hf_semfocus.model.modeling_semfocus import QKNorm


def vectors(*shape, scale=1.0, dtype=torch.float32, seed=0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def test_it_is_torchs_norm_in_each_head_gradients_included():
    norm = QKNorm(8).double()
    query, key = vectors(2, 3, 5, 8, dtype=torch.float64), vectors(2, 3, 6, 8, dtype=torch.float64, seed=1)
    with torch.no_grad():
        norm.query_weight.copy_(vectors(8, seed=2))
        norm.key_weight.copy_(vectors(8, seed=3))
    for given, weight, found in zip((query, key), norm.parameters(), norm(query, key), strict=True):
        theirs = nn.RMSNorm(8, eps=1e-6).double()
        theirs.weight.data.copy_(weight.data)
        torch.testing.assert_close(found, theirs(given))
    leaf = query.requires_grad_()
    assert torch.autograd.gradcheck(lambda q: norm(q, key)[0], leaf)


@pytest.mark.parametrize("learnable", [True, False])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_scores_have_their_stated_bound_whatever_the_weights_before(learnable, scale):
    norm = QKNorm(16, initial_scale=3.0, learnable=learnable, eps=0)
    query, key = norm(vectors(4, 16, scale=scale), vectors(9, 16, scale=scale, seed=1))
    bound = 3.0 * math.sqrt(16)
    assert (query @ key.T / 16**0.5).abs().max() <= bound * (1 + 1e-5)
    same, other = norm(query, -query)
    assert ((same * other).sum(-1) / 16**0.5).tolist() == pytest.approx([-bound] * 4, rel=1e-4)
    assert len(list(norm.parameters())) == (2 if learnable else 0)


def test_a_zero_vector_and_low_precision_stay_finite():
    norm = QKNorm(4)
    query = torch.zeros(1, 4, requires_grad=True)
    norm(query, query)[0].sum().backward()
    assert query.grad.isfinite().all()
    half, _ = norm(vectors(3, 4, scale=2e4, dtype=torch.float16), vectors(3, 4, dtype=torch.float16))
    assert half.dtype == torch.float16
    assert half.isfinite().all()


def test_an_impossible_scale_is_refused():
    with pytest.raises(ValueError, match="initial_scale is 0"):
        QKNorm(4, initial_scale=0)
