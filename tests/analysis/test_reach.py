"""Reach, computed from patterns, against closed forms and against what a change of one position really changes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_semfocus.analysis import reach
from hf_semfocus.model.mask_global_tokens import WithGlobalTokens
from hf_semfocus.model.mask_strategies import parse_mask


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 6), st.integers(0, 4))
def test_a_band_reaches_half_its_width_a_layer(length, layers, half):
    found = reach(f"banded:{2 * half + 1}", length, layers)
    expected = min(half * layers, length - 1)
    assert (found.left, found.right) == (expected, expected)
    assert found.sees_all == (half * layers >= length - 1)
    assert found.text == ("all" if found.sees_all else f"±{expected} of {length} positions")


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 12))
def test_a_block_is_never_left(length, layers, size):
    found = reach(f"block:{size}", length, layers)
    assert (found.left, found.right) == (min(size, length) - 1,) * 2
    assert found.sees_all == (size >= length)
    if 1 < size < length:
        assert found.text == f"own block of {size}"


@pytest.mark.parametrize(
    ("mask", "length", "layers", "text", "sees_all"),
    [
        ("banded:5", 20, 3, "±6 of 20 positions", False),
        ("banded:5", 40, 5, "±10 of 40 positions", False),
        ("banded:5;ends=shift", 40, 1, "5 of 40 positions", False),
        ("banded:5;ends=shift", 40, 5, "13 to 21 of 40 positions", False),
        ("banded:5;ends=shift", 5, 1, "all", True),
        ("botk:1", 40, 1, "all", True),
        ("redraw:1", 40, 1, "all", True),
        ("full", 600, 1, "all", True),
        ("topk:1", 40, 1, "all", True),  # the one key may be any
        ("topk:5+banded:3", 40, 1, "all", True),
        (
            "global:1",
            40,
            1,
            "2 to 40 of 40 positions",
            False,
        ),  # position 0 sees itself and all: the rest see 0 and themselves
        ("global:1", 40, 2, "all", True),
        ("block:5+global:1", 40, 1, "5 to 40 of 40 positions", False),
        ("block:5+global:1", 40, 2, "all", True),
        ("sink:1", 20, 4, "1 to 2 of 20 positions", False),
        ("full", 1, 1, "all", True),
    ],
)
def test_known_masks(mask, length, layers, text, sees_all):
    found = reach(mask, length, layers)
    assert (found.text, found.sees_all) == (text, sees_all)
    assert reach(parse_mask(mask), length, layers) == found


def test_one_mask_a_layer():
    assert reach(["banded:3", "banded:5"], 20, 2).text == "±3 of 20 positions"
    assert reach(["block:5", "full"], 20, 2).sees_all
    with pytest.raises(ValueError, match="2 masks for 3 layers"):
        reach(["full", "full"], 20, 3)


def test_global_tokens_carry_everything_in_two_layers():
    mask = WithGlobalTokens(parse_mask("banded:5;ends=shift"), 1)
    assert reach(mask, 41, 1).text == "6 to 41 of 41 positions"
    assert reach(mask, 41, 2).sees_all


def test_numbers_out_of_range():
    with pytest.raises(ValueError, match="length is 0"):
        reach("full", 0, 1)
    with pytest.raises(ValueError, match="layers 0"):
        reach("full", 4, 0)


@pytest.mark.parametrize(
    "mask", ["banded:3", "banded:3;ends=shift", "block:4", "strided:3", "random:2;seed=1", "banded:3+sink:1"]
)
def test_reach_is_where_one_hot_information_arrives(mask):
    length, layers = 12, 2
    keep = parse_mask(mask).on_positions(length)
    x = torch.eye(length, dtype=torch.float64)
    h = x
    for _ in range(layers):
        h = h + torch.zeros(length, length, dtype=torch.float64).masked_fill(~keep, -torch.inf).softmax(-1) @ h
    # one-hot inputs: h[q, k] is the weight with which position k's information has come to q
    influence = h > 0
    found = reach(mask, length, layers)
    offsets = torch.arange(length)[None, :] - torch.arange(length)[:, None]
    assert (-offsets[influence].min(), offsets[influence].max()) == (found.left, found.right)
    assert bool(influence.all()) == found.sees_all
