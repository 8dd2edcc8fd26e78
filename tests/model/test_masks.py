"""Every mask strategy against a slow loop written from the definitions; the grammar; the registry."""

import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_semfocus import MaskStrategy, list_mask_strategies, parameter, parse_mask, register_mask_strategy
from hf_semfocus.model import mask_registry
from hf_semfocus.model.mask_hashes import hyperplanes
from hf_semfocus.model.mask_positions import Banded, position_hash
from hf_semfocus.model.mask_scores import TopK

from . import oracle

SPECS = [
    "full",
    "banded:1",
    "banded:5",
    "banded:1;ends=shift",
    "banded:5;ends=shift",
    "block:3",
    "global:2",
    "sink:1",
    "strided:4",
    "random:3;seed=0",
    "random:5;seed=7",
    "topk:1",
    "topk:3",
    "topk:50",
    "botk:1",
    "botk:4",
    "topp:0.5",
    "topp:0.9",
    "topp:1.0",
    "lsh:1;rounds=1;seed=0",
    "lsh:3;rounds=2;seed=5",
    "cluster:1;decay=0.999",
    "cluster:3;decay=0.5",
    "banded:3+global:1",
    "banded:3;ends=shift+sink:1",
    "topk:3+sink:1",
    "topk:2+banded:3",
    "topk:2+botk:2",
    "topp:0.5+sink:1",
    "lsh:3;rounds=1;seed=0+topk:1",
    "sink:1+cluster:2;decay=0.9+cluster:4;decay=0.9",
    "random:2;seed=1+strided:3",
]


DIM = 3


def state_of(spec, heads, dim):
    """What a layer in evaluation mode gives to the strategy."""
    state = parse_mask(spec).make_state(dim, heads)
    return None if state is None else state.eval().read()


def centroids_of(spec, state, head):
    """Those of one key head, for each part of the mask."""
    parts = state if isinstance(state, tuple) else [state] * len(spec.split("+"))
    return [None if part is None else part[head].tolist() for part in parts]


def draw_vectors(spec, batch, heads, queries, keys, generator=None):
    """Queries, keys and state. No entry is 0: no hash or distance is within rounding of a tie."""
    shapes = {"query": (batch, heads, queries, DIM), "key": (batch, heads, keys, DIM)}
    drawn = {name: torch.randint(-9, 9, shape, generator=generator) + 0.5 for name, shape in shapes.items()}
    return drawn | {"state": state_of(spec, heads, DIM)}


def expected(spec, scores, valid, query, key, state):
    """The oracle's answer for `scores` (B, H, Q, K), bool `valid` of the same shape, queries, keys and state."""
    keep = torch.zeros_like(valid)
    for b in range(scores.shape[0]):
        rows = valid[b].flatten(0, 1).tolist()
        queries, keys = oracle.positions(scores.shape[2], rows)
        for h in range(scores.shape[1]):
            for i in range(scores.shape[2]):
                kept = oracle.kept_by(
                    spec, scores[b, h, i].tolist(), valid[b, h, i].tolist(), queries[i], keys,
                    query[b, h, i].tolist(), key[b, h].tolist(), centroids_of(spec, state, h),
                )  # fmt: skip
                keep[b, h, i, list(kept)] = True
    return keep


def draw_valid(kind, batch, queries, keys, generator):
    """Validity as callers give it: none, right or left padding, holes, causal, everything padded."""
    valid = torch.ones(batch, 1, 1, keys, dtype=torch.bool)
    lengths = torch.randint(0, keys + 1, (batch,), generator=generator)
    steps = torch.arange(keys)
    if kind == "right":
        valid = (steps < lengths[:, None])[:, None, None]
    elif kind == "left":
        valid = (steps >= keys - lengths[:, None])[:, None, None]
    elif kind == "holes":
        valid = torch.rand(batch, 1, 1, keys, generator=generator) < 0.6
    elif kind == "causal":
        causal = steps[None, :] <= (steps[-queries:] if queries <= keys else torch.arange(queries))[:, None]
        valid = causal[None, None] & (steps >= keys - lengths[:, None])[:, None, None]
    elif kind == "nothing":
        valid = torch.zeros_like(valid)
    return valid


KINDS = ["all", "right", "left", "holes", "causal", "nothing"]


@settings(max_examples=25, deadline=None)
@given(
    batch=st.integers(1, 2), heads=st.integers(1, 2), queries=st.integers(1, 9), keys=st.integers(1, 9),
    kind=st.sampled_from(KINDS), ties=st.booleans(), seed=st.integers(0, 2**31),
)  # fmt: skip
@pytest.mark.parametrize("spec", SPECS)
def test_strategy_equals_the_definition(spec, batch, heads, queries, keys, kind, ties, seed):
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, heads, queries, keys)
    scores = torch.randn(shape, generator=generator, dtype=torch.float64)
    if ties:
        scores = torch.randint(0, 3, shape, generator=generator).double()
    vectors = draw_vectors(spec, *shape, generator)
    valid = draw_valid(kind, batch, queries, keys, generator)
    keep = parse_mask(spec)(scores, valid, **vectors)
    assert keep.dtype == torch.bool
    assert keep.shape == shape
    assert torch.equal(keep, expected(spec, scores, valid.expand(shape), **vectors))
    assert not (keep & ~valid).any()
    if kind == "all":
        assert torch.equal(keep, parse_mask(spec)(scores, None, **vectors))


@pytest.mark.parametrize("spec", SPECS)
def test_left_padding_moves_the_pattern_with_the_text(spec):
    scores, vectors = torch.randn(1, 1, 7, 7), draw_vectors(spec, 1, 1, 7, 7)
    plain = parse_mask(spec)(scores, **vectors)
    padded_scores, padded_vectors = torch.randn(1, 1, 10, 10), draw_vectors(spec, 1, 1, 10, 10)
    padded_scores[..., 3:, 3:] = scores
    for name in ("query", "key"):
        padded_vectors[name][:, :, 3:] = vectors[name]
    valid = (torch.arange(10) >= 3)[None, None, None]
    padded = parse_mask(spec)(padded_scores, valid, **padded_vectors)
    assert torch.equal(padded[..., 3:, 3:], plain)
    assert not padded[..., :3].any()


@pytest.mark.parametrize("spec", SPECS)
def test_one_query_against_a_cache_keeps_what_it_keeps_in_the_whole_text(spec):
    scores, vectors = torch.randn(2, 2, 8, 8), draw_vectors(spec, 2, 2, 8, 8)
    whole = parse_mask(spec)(scores, **vectors)

    def one(place):
        return vectors | {"query": vectors["query"][:, :, place : place + 1]}

    assert torch.equal(parse_mask(spec)(scores[..., -1:, :], **one(7)), whole[..., -1:, :])
    third = parse_mask(spec)(scores[..., 3:4, :], **one(3), query_positions=torch.tensor([3]))
    assert torch.equal(third, whole[..., 3:4, :])
    # Positions per example.
    steps = torch.arange(8)
    shifted = parse_mask(spec)(scores, **vectors, query_positions=steps + 5, key_positions=steps + 5)
    both = torch.stack([steps, steps + 5])
    mixed = parse_mask(spec)(scores, **vectors, query_positions=both, key_positions=both)
    assert torch.equal(mixed[0], whole[0])
    assert torch.equal(mixed[1], shifted[1])


@pytest.mark.parametrize("spec", [spec for spec in SPECS if not parse_mask(spec).input_dependent])
def test_patterns_fixed_by_positions_stand_alone(spec):
    mask = parse_mask(spec)
    assert not mask.input_dependent
    assert torch.equal(mask.on_positions(9), mask(torch.randn(1, 1, 9, 9))[0, 0])
    assert torch.equal(mask.on_positions(2, 9), mask(torch.randn(1, 1, 2, 9))[0, 0])


@pytest.mark.parametrize(
    "spec", ["topk:2", "topk:2+sink:1", "sink:1+topk:2", "botk:2", "topp:0.5", "lsh:4", "cluster:3"]
)
def test_masks_that_look_at_scores_say_so(spec):
    assert parse_mask(spec).input_dependent
    with pytest.raises(ValueError, match="depends on the scores"):
        parse_mask(spec).on_positions(4)


def test_documented_examples():
    def row(spec, position, length=12):
        return parse_mask(spec).on_positions(length)[position].nonzero().flatten().tolist()

    assert row("banded:5", 7) == [5, 6, 7, 8, 9]
    assert row("banded:5", 0) == [0, 1, 2]
    assert row("banded:5;ends=shift", 7) == [5, 6, 7, 8, 9]
    assert row("banded:5;ends=shift", 1) == [0, 1, 2, 3, 4]
    assert row("banded:5;ends=shift", 11) == [7, 8, 9, 10, 11]
    assert row("block:5", 7) == [5, 6, 7, 8, 9]
    assert row("block:5", 11) == [10, 11]
    assert row("strided:4", 6) == [0, 4, 6, 8]
    assert row("global:2", 1) == list(range(12))
    assert row("global:2", 6) == [0, 1]
    assert row("banded:3+global:1", 6) == [0, 5, 6, 7]


# banded


@pytest.mark.parametrize("w", [1, 5, 9, 41])
@pytest.mark.parametrize("kind", ["all", "right", "left", "causal"])
def test_a_shifted_band_keeps_as_many_keys_as_it_can(w, kind):
    valid = draw_valid(kind, 6, 40, 40, torch.Generator().manual_seed(0))
    keep = parse_mask(f"banded:{w};ends=shift")(torch.zeros(6, 1, 40, 40), valid)
    assert torch.equal(keep.sum(-1), valid.expand(keep.shape).sum(-1).clamp(max=w))
    cut = parse_mask(f"banded:{w}")(torch.zeros(6, 1, 40, 40), valid)
    if kind != "causal" and w < 41:  # a query in the middle of the text, padding left out
        whole = cut.sum(-1) == w
        assert torch.equal(keep[whole], cut[whole])


def test_the_default_of_ends_is_not_written():
    assert str(parse_mask("banded:5;ends=cut")) == "banded:5"
    assert parse_mask("banded:5;ends=cut") == Banded(w=5)
    assert parse_mask("banded:5;ends=shift") != Banded(w=5)
    with pytest.raises(ValueError, match="ends, one of 'cut', 'shift'; got 'wrap'"):
        parse_mask("banded:5;ends=wrap")


# topk


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_topk_ties_go_to_the_lowest_index(dtype):
    scores = torch.tensor([[[[2.0, 5.0, 2.0, 5.0, 2.0, 5.0]]]], dtype=dtype)
    assert parse_mask("topk:2")(scores)[0, 0, 0].tolist() == [False, True, False, True, False, False]
    assert parse_mask("topk:4")(scores)[0, 0, 0].tolist() == [True, True, False, True, False, True]


def test_topk_counts_keys_not_queries():
    assert parse_mask("topk:5")(torch.randn(1, 1, 2, 9)).sum(-1).tolist() == [[[5, 5]]]
    assert parse_mask("topk:5")(torch.randn(1, 1, 9, 2)).all()
    assert parse_mask("topk:1")(torch.randn(1, 1, 1, 1)).all()


def test_topk_prefers_a_valid_key_of_score_minus_infinity_to_one_that_is_not_valid():
    scores = torch.tensor([[[[5.0, -torch.inf, 1.0]]]])
    assert parse_mask("topk:2")(scores, torch.tensor([False, True, True])).tolist() == [[[[False, True, True]]]]


def test_topk_nan_stays_in_its_row():
    scores = torch.randn(1, 1, 3, 4)
    clean = parse_mask("topk:2")(scores)
    scores[0, 0, 1, 2] = float("nan")
    keep = parse_mask("topk:2")(scores)
    assert keep[0, 0, 1, 2]
    assert torch.equal(keep[0, 0, [0, 2]], clean[0, 0, [0, 2]])


def test_botk_by_hand():
    scores = torch.tensor([[[[2.0, -torch.inf, 1.0, 1.0, 3.0]]]])
    valid = torch.tensor([True, True, True, True, False])
    for k, kept in ((1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (9, [0, 1, 2, 3])):
        assert parse_mask(f"botk:{k}")(scores, valid)[0, 0, 0].nonzero().flatten().tolist() == kept, k
    ties = torch.tensor([[[[5.0, 2.0, 5.0, 2.0, 5.0, 2.0]]]])
    assert parse_mask("botk:4")(ties)[0, 0, 0].nonzero().flatten().tolist() == [0, 1, 3, 5]


# topp


def test_topp_by_hand():
    # Masses 0.5, 0.25, 0.125, 0.125.
    scores = torch.tensor([[[[0.125, 0.5, 0.125, 0.25]]]]).log()
    for p, kept in ((0.4, [1]), (0.5, [1]), (0.51, [1, 3]), (0.75, [1, 3]), (0.8, [0, 1, 3]), (0.9, [0, 1, 2, 3])):
        assert parse_mask(f"topp:{p}")(scores)[0, 0, 0].nonzero().flatten().tolist() == kept, p


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_topp_counts_equal_scores_exactly_and_from_the_left(dtype):
    # p·10 is a whole number on paper, and not in binary.
    for p in (0.1, 0.3, 0.6, 0.7, 0.8, 0.9):
        keep = parse_mask(f"topp:{p}")(torch.full((1, 1, 1, 10), 3.0, dtype=dtype))[0, 0, 0]
        assert keep.tolist() == [j < round(10 * p) for j in range(10)], p


def test_topp_keeps_one_valid_key_whatever_the_scores():
    scores = torch.tensor([[[[5.0, -torch.inf, -torch.inf]], [[1e4, -1e4, 0.0]], [[torch.nan, 0.0, 1.0]]]])
    keep = parse_mask("topp:0.01")(scores, torch.tensor([False, True, True]))
    assert keep.tolist() == [[[[False, True, False]], [[False, False, True]], [[False, False, True]]]]
    assert parse_mask("topp:0.5")(scores)[0, 2, 0, 0]  # NaN, so that it shows


# lsh


def test_lsh_keeps_what_points_the_same_way_and_not_what_points_the_other_way():
    key = torch.randn(1, 1, 30, 8, generator=torch.Generator().manual_seed(0))
    key[0, 0, 7] = 0
    mask = parse_mask("lsh:6;rounds=3")
    own = torch.eye(30, dtype=torch.bool)
    nowhere = {"query_positions": torch.full((30,), 99)}
    for factor in (0.01, 1.0, 1000.0):  # lengths do not count
        assert (mask(torch.zeros(1, 1, 30, 30), query=factor * key, key=key, **nowhere)[0, 0] & own).sum() == 30
    opposite = mask(torch.zeros(1, 1, 30, 30), query=-key, key=key, **nowhere)[0, 0] & own
    assert opposite.nonzero().tolist() == [[7, 7]]  # zero has one bucket only
    assert mask(torch.zeros(1, 1, 30, 30), query=-key, key=key)[0, 0][own].all()


def test_lsh_collides_with_the_probability_of_the_angle():
    # At 60 degrees a bit agrees with probability 2/3, and 2 bits with 4/9; a seed is a draw.
    query, key = torch.tensor([1.0, 0.0]), torch.tensor([0.5, 3**0.5 / 2])
    hits = sum(
        parse_mask(f"lsh:2;seed={seed}")(
            torch.zeros(1, 1, 1, 2), query=query.view(1, 1, 1, 2), key=key.expand(1, 1, 2, 2)
        )[0, 0, 0, 0].item()
        for seed in range(600)
    )
    assert abs(hits / 600 - 4 / 9) < 4 * (4 / 9 * 5 / 9 / 600) ** 0.5


def test_hyperplanes_are_those_of_a_normal_distribution():
    planes = hyperplanes(20, 1000, seed=3).double()
    assert abs(planes.mean()) < 0.03
    assert abs(planes.var() - 1) < 0.05
    assert abs((planes**4).mean() - 2.9) < 0.15  # 3 − 6/(5·12)
    assert (planes @ planes.T / 1000).fill_diagonal_(0).abs().max() < 0.15
    assert not torch.equal(planes, hyperplanes(20, 1000, seed=4).double())
    assert torch.equal(planes[:5, :9], hyperplanes(5, 9, seed=3).double())


def test_lsh_without_queries_and_keys_says_what_is_missing():
    with pytest.raises(ValueError, match="'lsh:4;rounds=1;seed=0' looks at queries and keys"):
        parse_mask("topk:1+lsh:4")(torch.zeros(1, 1, 2, 2))


# random


def test_random_is_spread_evenly_and_depends_on_the_seed():
    # 400 queries, 5 of 40 keys each: a key is drawn 50 times on average, with a standard deviation of 6.6.
    counts = parse_mask("random:5;seed=0").on_positions(400, 40).sum(0)
    expected_count, deviation = 50.0, (400 * 0.125 * 0.875) ** 0.5
    assert ((counts - expected_count).abs() < 4.5 * deviation).all()
    chi_square = ((counts - expected_count) ** 2 / expected_count).sum().item()
    assert 10 < chi_square < 80  # 39 degrees of freedom
    other = parse_mask("random:5;seed=1").on_positions(400, 40)
    agreement = (other & parse_mask("random:5").on_positions(400, 40)).sum().item() / 2000
    assert 0.05 < agreement < 0.2  # 0.125 for independent draws


def test_random_hash_is_the_documented_one():
    for seed in (0, 5, 2**40 + 3):
        for query, key in ((0, 0), (3, 7), (100, 2)):
            got = position_hash(torch.tensor(query), torch.tensor(key), seed).item()
            assert got == oracle.hash31(query, key, seed)


def test_random_keys_of_a_query_do_not_depend_on_the_length():
    short, long = parse_mask("random:1").on_positions(5), parse_mask("random:9").on_positions(9)
    assert long.all()
    assert short.sum(-1).tolist() == [1] * 5


# redraw


@pytest.mark.parametrize("kind", KINDS)
def test_redraw_keeps_valid_keys_that_the_global_generator_draws(kind):
    valid = draw_valid(kind, 3, 8, 8, torch.Generator().manual_seed(2))
    mask, scores = parse_mask("redraw:3"), torch.zeros(3, 2, 8, 8)
    torch.manual_seed(0)
    first, second = mask(scores, valid), mask(scores, valid)
    torch.manual_seed(0)
    assert torch.equal(mask(scores, valid), first)
    allowed = valid.expand(first.shape)
    assert not (first & ~allowed).any()
    assert torch.equal(first.sum(-1) > 0, allowed.any(-1))
    assert (first.sum(-1) <= 3).all()
    assert torch.equal(first, second) == (kind == "nothing")
    assert not mask.fixed
    assert not mask.input_dependent
    assert not parse_mask("sink:1+redraw:3").fixed
    with pytest.raises(ValueError, match="'redraw:3' draws again in each call"):
        mask.on_positions(4)


def test_redraw_is_uniform_with_replacement_and_independent():
    torch.manual_seed(0)
    valid = torch.tensor([True, False, True, True, False, True, True])
    keep = parse_mask("redraw:3")(torch.zeros(20, 2, 500, 7), valid)[..., valid].double()
    n = keep[..., 0].numel()
    # A key is missed by three draws among five with probability (4/5)³; all three draws agree with probability 1/25.
    p, once = 1 - 0.8**3, 1 / 25
    assert ((keep.flatten(0, 2).mean(0) - p).abs() < 4.5 * (p * (1 - p) / n) ** 0.5).all()
    assert abs((keep.sum(-1) == 1).double().mean() - once) < 4.5 * (once * (1 - once) / n) ** 0.5
    # Examples, heads and queries draw apart: two agree no more often than chance.
    agree = (keep * keep.roll(1, 2)).mean(), (keep[1:] * keep[:-1]).mean(), (keep[:, 0] * keep[:, 1]).mean()
    assert all(abs(share - p * p) < 0.01 for share in agree)


# specifications


@pytest.mark.parametrize("spec", SPECS)
def test_canonical_text_parses_back_equal(spec):
    mask = parse_mask(spec)
    assert str(mask) == spec
    assert parse_mask(str(mask)) == mask
    assert hash(parse_mask(spec)) == hash(mask)
    assert pickle.loads(pickle.dumps(mask)) == mask
    assert parse_mask(mask) is mask


def test_spelling_does_not_matter():
    assert str(parse_mask(" random : 5 + sink;s=1")) == "random:5;seed=0+sink:1"
    assert parse_mask("topk;k=5") == parse_mask("topk:5") == TopK(k=5)
    assert parse_mask("topk:5") != parse_mask("topk:6")
    assert parse_mask("topk:5") != parse_mask("sink:5")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("topkk:5", ["'topkk'", "did you mean 'topk'"]),
        ("Topk:5", ["'Topk'", "did you mean 'topk'"]),
        ("topk", ["'topk'", "needs a value for k", ">= 1"]),
        ("topk:", ["'topk'", "k", "an integer >= 1", "''"]),
        ("topk:0", ["'topk'", "k", "an integer >= 1", "0"]),
        ("topk:-1", ["'topk'", "an integer >= 1", "-1"]),
        ("topk:2.5", ["'topk'", "an integer", "'2.5'"]),
        ("topk:5_0", ["'topk'", "an integer", "'5_0'"]),
        ("topk:5;j=1", ["'topk'", "no parameter 'j=1'"]),
        ("topk:5;k=5", ["k is given twice"]),
        ("banded:4", ["'banded'", "w", "an odd integer >= 1", "4"]),
        ("full:3", ["'full'", "takes no value", "'3'"]),
        ("random:5;sed=1", ["'random'", "did you mean 'seed'"]),
        ("random:5;seed", ["'random'", "no parameter 'seed'"]),
        ("random:5;seed=-1", ["seed", "-1"]),
        ("", ["empty part", "''"]),
        ("topk:5+", ["empty part", "'topk:5+'"]),
        ("topk:5+bandd:3", ["'bandd'", "did you mean 'banded'"]),
        ("topp:0", ["'topp'", "p", "a number > 0.0 and <= 1.0", "0.0"]),
        ("topp:1.1", ["'topp'", "<= 1.0", "1.1"]),
        ("lsh:63", ["'lsh'", "bits", "<= 62", "63"]),
        ("lsh:4;round=2", ["'lsh'", "did you mean 'rounds'"]),
        (5, ["5", "string"]),
        (None, ["None", "string"]),
    ],
)
def test_bad_specifications_say_what_is_wrong_and_what_is_allowed(spec, words):
    with pytest.raises(ValueError) as error:
        parse_mask(spec)
    for word in words:
        assert word in str(error.value)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="topk:5+;= nka1.-", max_size=14))
def test_any_text_is_a_mask_or_a_value_error(text):
    try:
        mask = parse_mask(text)
    except ValueError:
        return
    assert parse_mask(str(mask)) == mask


# the registry and strategies of a user's own


@pytest.fixture
def registry():
    before = dict(mask_registry._REGISTRY)
    yield mask_registry._REGISTRY
    mask_registry._REGISTRY.clear()
    mask_registry._REGISTRY.update(before)


def test_built_in_names():
    assert set(list_mask_strategies()) >= {part.split(":")[0] for spec in SPECS for part in spec.split("+")} | {
        "redraw"
    }
    assert list_mask_strategies() == sorted(list_mask_strategies())


def test_own_pattern_in_a_few_lines(registry):
    @register_mask_strategy("even")
    class Even(MaskStrategy):
        """Keys at an even distance of at most w."""

        w: int = parameter(minimum=0)
        side: str = parameter(default="both", choices=("both", "left"))

        def pattern(self, query_positions, key_positions):
            distance = query_positions - key_positions
            near = (distance % 2 == 0) & (distance.abs() <= self.w)
            return near if self.side == "both" else near & (distance >= 0)

    mask = parse_mask("even:2")
    assert mask == Even(w=2)
    assert str(mask) == "even:2;side=both"
    assert mask.on_positions(5).int().tolist()[2] == [1, 0, 1, 0, 1]
    assert parse_mask("even:2;side=left").on_positions(5).int().tolist()[2] == [1, 0, 1, 0, 0]
    assert parse_mask("even:2+sink:2").on_positions(5).int().tolist()[2] == [1, 1, 1, 0, 1]
    with pytest.raises(ValueError, match="side, one of 'both', 'left'; got 'right'"):
        parse_mask("even:2;side=right")
    with pytest.raises(ValueError, match="needs w, an integer >= 0; got -1"):
        Even(w=-1)
    with pytest.raises(AttributeError):  # frozen
        mask.w = 3


def test_own_rule_on_scores(registry):
    @register_mask_strategy("above")
    class Above(MaskStrategy):
        """Keys whose score is above t."""

        t: float = parameter(above=-1.0, maximum=1.0)

        def keep(self, scores, valid, context):
            assert context.query_positions.shape == (1, 1, scores.shape[-2], 1)
            return scores > self.t

    mask = parse_mask("above:0.5")
    assert mask.input_dependent
    assert mask(torch.tensor([[[[1.0, 0.0, 2.0]]]])).tolist() == [[[[True, False, True]]]]
    valid = torch.tensor([True, True, False])
    assert mask(torch.tensor([[[[1.0, 0.0, 2.0]]]]), valid).tolist() == [[[[True, False, False]]]]
    assert str(Above(t=1)) == "above:1.0"
    with pytest.raises(ValueError, match=r"a number > -1\.0 and <= 1\.0; got -1\.0"):
        Above(t=-1.0)
    with pytest.raises(ValueError, match="got nan"):
        parse_mask("above:nan")


def test_collisions_are_refused_and_the_same_class_may_come_again(registry):
    with pytest.raises(
        ValueError, match=r"'banded' is already registered by hf_semfocus\.model\.mask_positions\.Banded"
    ):

        @register_mask_strategy("banded")
        class Mine(MaskStrategy):
            """Another rule."""

    assert registry["banded"] is Banded
    register_mask_strategy("banded")(Banded)
    # A notebook cell that runs twice defines a new class with the same module and name.
    again = type("Banded", (MaskStrategy,), {"__module__": Banded.__module__, "__qualname__": "Banded"})
    register_mask_strategy("banded")(again)
    assert registry["banded"] is again


@pytest.mark.parametrize("name", ["", "Top", "a+b", "a:b", "1a", "a b", None])
def test_names_that_a_specification_could_not_hold_are_refused(name):
    with pytest.raises(ValueError, match="lower-case"):
        register_mask_strategy(name)


def test_only_strategies_register():
    with pytest.raises(ValueError, match="subclass of MaskStrategy"):
        register_mask_strategy("mine")(dict)


# shapes


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"scores": torch.zeros(3, 3)}, r"\(batch, heads, queries, keys\), got \(3, 3\)"),
        ({"valid": torch.ones(2, 1, 1, 3)}, "boolean"),
        ({"valid": torch.ones(2, 1, 1, 3, dtype=torch.bool)}, r"\(2, 1, 1, 3\).*\(2, 1, 4, 4\)"),
        ({"valid": torch.ones(3, 1, 1, 4, dtype=torch.bool)}, r"\(3, 1, 1, 4\)"),
        ({"query_positions": torch.arange(3)}, r"query_positions must have shape \(4,\)"),
        ({"key_positions": torch.arange(3)}, r"key_positions must have shape \(4,\)"),
    ],
)
def test_shapes_that_do_not_fit(arguments, words):
    with pytest.raises(ValueError, match=words):
        parse_mask("banded:3")(**{"scores": torch.zeros(2, 1, 4, 4)} | arguments)


def test_a_strategy_without_a_rule_says_so():
    class Nothing(MaskStrategy):
        """No rule."""

    with pytest.raises(NotImplementedError, match="pattern"):
        Nothing()(torch.zeros(1, 1, 2, 2))
