"""The k-th largest number of each row, against sorting."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_semfocus.model import topk as module
from hf_semfocus.model.topk import kth_largest, sorting_network


@pytest.mark.parametrize("size", [*range(1, 12), 16])
def test_the_network_sorts(size):
    # The 0-1 principle: a network that sorts every row of zeros and ones sorts every row.
    rows = torch.tensor(list(itertools.product([0, 1], repeat=size)))
    columns = list(rows.unbind(1))
    for i, j in sorting_network(size):
        assert i < j
        columns[i], columns[j] = torch.maximum(columns[i], columns[j]), torch.minimum(columns[i], columns[j])
    assert torch.equal(torch.stack(columns, 1), rows.sort(1, descending=True).values)


@settings(max_examples=150, deadline=None)
@given(
    rows=st.integers(1, 40), keys=st.integers(1, 140), k=st.integers(1, 20), ties=st.booleans(),
    masked=st.booleans(), chunk=st.sampled_from([1, 64, 2**18]), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_it_is_the_kth_of_the_sorted_row(rows, keys, k, ties, masked, chunk, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(rows, keys, generator=generator)
    if ties:
        scores = scores.round()
    if masked:
        scores[torch.rand(rows, keys, generator=generator) < 0.5] = -torch.inf
    k = min(k, keys)
    old, module.CHUNK = module.CHUNK, chunk
    try:
        got = kth_largest(scores[None], k)
    finally:
        module.CHUNK = old
    assert torch.equal(got[0], scores.sort(-1, descending=True).values[:, k - 1 : k])


def test_low_precision_empty_rows_and_views():
    scores = torch.randn(6, 4, 10).to(torch.bfloat16).transpose(0, 1)
    assert torch.equal(kth_largest(scores, 3), scores.float().sort(-1).values[..., -3:-2].to(torch.bfloat16))
    assert kth_largest(torch.zeros(0, 5), 2).shape == (0, 1)


def test_it_has_no_gradient():
    assert not kth_largest(torch.randn(2, 5, requires_grad=True), 2).requires_grad
