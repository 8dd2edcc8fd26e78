"""Exact tests of pairs: brute force over sign flips, hand-computed numbers, and laws for any numbers."""

import itertools
import json
import math
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_semfocus.comparison.curves import performance_profile, reached_curve
from hf_semfocus.comparison.paired_tests import (
    FEWEST_PAIRS,
    Verdict,
    hodges_lehmann,
    holm,
    judge_speed,
    judge_speed_over_tasks,
    judge_values,
    restricted_difference,
    sign_flip_interval,
    sign_flip_p,
    sign_test_p,
    with_holm,
)
from hf_semfocus.comparison.statistics import Convergence, restricted_epochs

# Whole numbers have ties, sums of exactly 0, and no rounding.
whole = st.lists(st.integers(-9, 9), min_size=2, max_size=7)


def reached(epochs, budget=100):
    return Convergence(epochs, True, budget)


def censored(epochs, budget=100, **kwargs):
    return Convergence(epochs, False, budget, **kwargs)


def pairs_of(baseline, mask):
    return [(b if isinstance(b, Convergence) else reached(b), reached(m)) for b, m in zip(baseline, mask, strict=True)]


def brute_p(values):
    """By the definition: the share of flips whose sum is as far from 0."""
    sums = [abs(sum(s * v for s, v in zip(signs, values, strict=True))) for signs in _signs(len(values))]
    return sum(total >= abs(sum(values)) - 1e-9 for total in sums) / len(sums)


def _signs(n):
    return itertools.product((-1, 1), repeat=n)


@given(whole)
@settings(deadline=None)
def test_p_counts_the_flips(values):
    assert sign_flip_p(values) == pytest.approx(brute_p(values), abs=1e-12)


@settings(deadline=None)
@given(whole, st.sampled_from([0.05, 0.2, 0.5]))
def test_the_interval_holds_what_the_test_does_not_reject(values, level):
    low, high = map(float, sign_flip_interval(values, level=level))
    for centre in {*values, *(v + 0.25 for v in values), low, high, low - 1e-3, high + 1e-3} - {-np.inf, np.inf}:
        kept = brute_p([v - centre for v in values]) > level
        assert kept == (low - 1e-9 <= centre <= high + 1e-9)


def test_at_six_the_interval_is_the_range_and_p_is_two_of_64():
    values = [0.3, 1.2, 0.1, 0.7, 0.9, 2.0]
    low, high = sign_flip_interval(values)
    assert (low, high) == pytest.approx((0.1, 2.0))
    assert sign_flip_p(values) == 2 / 64
    assert sign_flip_p([*values[:5], 0.0]) == 4 / 64  # an equal pair is flipped to itself
    assert np.all(np.isinf(sign_flip_interval(values[:5])))  # five cannot reject, whatever they are


def test_intervals_of_many_samples_are_those_of_each():
    values = np.random.default_rng(0).normal(size=(4, 8))
    low, high = sign_flip_interval(values)
    for row, *ends in zip(values, low, high, strict=True):
        assert ends == pytest.approx([float(end) for end in sign_flip_interval(row)])


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=8), st.data())
@settings(deadline=None)
def test_bounds_hold_whatever_the_unknown_values_are(values, data):
    lower, upper = [], []
    for value in values:
        known = data.draw(st.sampled_from(["exact", "below", "above", "nothing"]))
        lower.append(value if known == "exact" else value - 1 if known == "below" else -math.inf)
        upper.append(value if known == "exact" else value + 1 if known == "above" else math.inf)
    low, high = sign_flip_interval(values)
    bound_low, bound_high = sign_flip_interval(lower, upper)
    assert bound_low <= low + 1e-9
    assert high <= bound_high + 1e-9
    assert hodges_lehmann(lower) <= hodges_lehmann(values) + 1e-9 <= hodges_lehmann(upper) + 2e-9


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=9))
def test_hodges_lehmann_is_the_median_of_pairwise_means(values):
    means = sorted((a + b) / 2 for i, a in enumerate(values) for b in values[i:])
    middle = len(means) // 2
    expected = means[middle] if len(means) % 2 else (means[middle - 1] + means[middle]) / 2
    assert float(hodges_lehmann(values)) == expected


def test_one_censored_pair_leaves_the_estimate_bounded_on_both_sides():
    exact = [0.2, 0.4, 0.5, 0.6, 0.8]
    assert np.isfinite(hodges_lehmann([*exact, math.inf]))


@pytest.mark.parametrize(
    ("faster", "slower", "n", "expected"),
    [
        (6, 0, 6, 2 / 64),
        (0, 6, 6, 2 / 64),
        (5, 1, 6, 14 / 64),
        (5, 0, 6, 14 / 64),
        (0, 0, 6, 1),
        (9, 1, 10, 22 / 1024),
    ],
)
def test_sign_test(faster, slower, n, expected):
    assert sign_test_p(faster, slower, n) == pytest.approx(expected)


def test_restricted_epochs_are_known_whatever_the_censoring():
    pairs = [(censored(100), reached(40)), (reached(90), reached(30)), (censored(3, diverged=True), censored(100))]
    judged = restricted_difference(pairs, 100)
    assert judged.verdict is Verdict.NOT_TESTED
    assert judged.estimate_low == judged.estimate_high == pytest.approx((60 + 60 + 0) / 3)
    assert restricted_epochs(reached(120), 100) == 100
    with pytest.raises(ValueError, match="50 epochs"):
        restricted_epochs(censored(50), 100)


def test_restricted_difference_has_the_range_of_six():
    judged = restricted_difference(pairs_of([censored(100), 90, 80, 70, 95, 60], [50, 50, 50, 50, 50, 50]), 100)
    assert (judged.low, judged.high, judged.p) == (10, 50, 2 / 64)
    assert judged.estimate_low == pytest.approx((50 + 40 + 30 + 20 + 45 + 10) / 6)


def test_a_verdict_needs_six_pairs_all_one_way():
    faster = pairs_of([36, 40, 30, 50, 44, 38], [14, 9, 7, 20, 11, 15])
    slower = [(mask, baseline) for baseline, mask in faster]
    assert judge_speed(faster).verdict is Verdict.SUPPORTED
    assert judge_speed(slower).verdict is Verdict.CONTRADICTED
    assert judge_speed(faster[:5]).verdict is Verdict.NOT_TESTED
    assert judge_speed([*faster[:5], slower[5]]).verdict is Verdict.UNDECIDED
    assert judge_speed([*faster[:5], (reached(9), reached(9))]).verdict is Verdict.UNDECIDED
    assert FEWEST_PAIRS == 6


def test_censored_pairs_are_judged_by_their_directions():
    start = pairs_of([36, 40, 30, 50], [12, 10, 10, 10])
    judged = judge_speed([*start, (censored(100), reached(10)), (censored(100), reached(50))])
    assert (judged.verdict, judged.test, judged.p) == (Verdict.SUPPORTED, "sign", 2 / 64)
    assert (judged.low, judged.high) == (pytest.approx(2.0), None)  # > 2 from the last pair, nothing above
    assert judged.estimate_high is None or judged.estimate_low < judged.estimate_high
    undetermined = judge_speed([*start, (censored(100), reached(10)), (censored(100), censored(100))])
    assert (undetermined.verdict, undetermined.low) == (Verdict.UNDECIDED, None)


def test_an_unfinished_run_makes_no_pair():
    pairs = pairs_of([36, 40, 30, 50, 44], [14, 9, 7, 20, 11])
    assert judge_speed([*pairs, (censored(50, finished=False), reached(5))]).n == 5


def test_over_tasks_seeds_and_tasks_are_units():
    """Twice as fast on two tasks, at the horizon (so equal) on the third: 2^(2/3) for each seed; tasks are too few."""
    fast = pairs_of([20, 30, 40, 50, 60, 70], [10, 15, 20, 25, 30, 35])
    pairs = {"a": fast, "b": fast, "c": [(censored(100), censored(100))] * 6}
    by_seed, by_task = judge_speed_over_tasks(pairs, dict.fromkeys(pairs, 100))
    assert by_seed.verdict is Verdict.SUPPORTED
    assert by_seed.estimate_low == by_seed.low == by_seed.high == pytest.approx(2 ** (2 / 3))
    assert (by_task.verdict, by_task.n) == (Verdict.NOT_TESTED, 3)
    seven = {str(i): fast for i in range(7)}
    _, by_task = judge_speed_over_tasks(seven, dict.fromkeys(seven, 100))
    assert (by_task.verdict, by_task.n, by_task.p) == (Verdict.SUPPORTED, 7, 2 / 128)
    with pytest.raises(ValueError, match=r"\[6, 5\] pairs"):
        judge_speed_over_tasks({"a": fast, "b": fast[:5]}, {"a": 100, "b": 100})


def test_values_are_judged_against_a_margin():
    worse, better = [-0.01, 0.0, 0.01, -0.015, 0.002, -0.001], [0.01, 0.02, 0.01, 0.03, 0.02, 0.05]
    assert judge_values(worse, above=-0.02).verdict is Verdict.SUPPORTED
    assert judge_values(worse).verdict is Verdict.UNDECIDED
    assert judge_values(better).verdict is Verdict.SUPPORTED
    assert judge_values([-v for v in better], above=-0.005).verdict is Verdict.CONTRADICTED
    # Between the two bounds neither is shown.
    assert judge_values(worse, above=0.0, below=0.1).verdict is Verdict.CONTRADICTED


def test_judgements_go_into_strict_json():
    judged = judge_speed([(censored(100), censored(100))] * 6)
    assert json.loads(json.dumps(asdict(judged), allow_nan=False))["verdict"] == "undecided"


@given(st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_holm_is_the_closed_bonferroni_test(p_values):
    """A hypothesis falls where every set of hypotheses that holds it falls by Bonferroni."""
    subsets = [s for size in range(1, len(p_values) + 1) for s in itertools.combinations(range(len(p_values)), size)]
    for i, adjusted in enumerate(holm(p_values)):
        worst = max(min(1, len(s) * min(p_values[j] for j in s)) for s in subsets if i in s)
        assert adjusted == pytest.approx(worst)


def test_six_pairs_cannot_pass_holm_over_seven_tasks():
    one = judge_speed(pairs_of([36, 40, 30, 50, 44, 38], [14, 9, 7, 20, 11, 15]))
    seven = with_holm({str(i): one for i in range(7)})
    assert all(judged.p_holm == pytest.approx(7 / 32) and not judged.family_wise for judged in seven.values())
    assert with_holm({"a": one})["a"].family_wise
    # What was not tested stays in the family.
    assert with_holm({"a": one, "b": judge_speed([])})["a"].p_holm == pytest.approx(2 / 32)


def test_kaplan_meier_by_hand():
    """5 runs: 10 reached, 20 censored, 30 reached, 30 censored, 40 reached: S = 4/5, then × 2/3, then × 0."""
    curve = reached_curve([reached(10), censored(20), reached(30), censored(30), reached(40)])
    assert curve.epochs.tolist() == [10, 20, 30, 40]
    assert curve.share == pytest.approx([1 / 5, 1 / 5, 1 - 4 / 5 * 2 / 3, 1])
    diverged = reached_curve([reached(10, 50), censored(2, 50, diverged=True), reached(20, 50)])
    assert diverged.share[-1] == pytest.approx(2 / 3)  # it does not leave the others alone


def test_performance_profile_by_hand():
    runs = {
        "full": [reached(20), reached(10), censored(100), censored(100)],
        "topk:5": [reached(10), reached(15), reached(50), censored(100)],
    }
    found = performance_profile(runs, [1, 1.5, 2])
    assert found["full"].tolist() == [0.25, 0.25, 0.5]
    assert found["topk:5"].tolist() == [0.5, 0.75, 0.75]


@pytest.mark.parametrize("n", [0, 17])
def test_what_cannot_be_counted_is_refused(n):
    with pytest.raises(ValueError, match="allowed: 1 to 16"):
        sign_flip_interval(np.ones(n))


def test_ties_are_ties_also_where_the_sum_is_near_zero():
    values = np.log([3 / 9, 8 / 6, 12 / 3, 3 / 4, 3 / 4, 9 / 12, 4 / 3])
    assert abs(values.sum()) < 1e-12
    assert sign_flip_p(values) == 1
    assert sign_flip_p([0.2, 0.2, -0.1, -0.1, -0.2]) == 1
    assert sign_flip_p([0.1]) == 1
