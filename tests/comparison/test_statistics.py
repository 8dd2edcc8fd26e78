"""Epochs to a threshold, paired speed-ups and their intervals: hand-computed values, and laws for any numbers."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_semfocus.comparison.statistics import (
    Ratio,
    log_interval,
    median_bounds,
    restricted_mean_ratio,
    speed_up,
    summarise_pairs,
)
from hf_semfocus.report.words import median_epochs_text, speed_up_words
from hf_semfocus.schema import Convergence, Epoch
from hf_semfocus.text import bounds_text, epochs_text, format_ratio
from hf_semfocus.training.run_files import epochs_to


def reached(epochs, budget=40):
    return Convergence(epochs, True, budget)


def censored(epochs, budget=40, **kwargs):
    return Convergence(epochs, False, budget, **kwargs)


def history(*accuracies):
    return [
        Epoch(epoch=i, train_accuracy=a, heldout_accuracy=0.5, train_seconds=i, seconds=i)
        for i, a in enumerate(accuracies, start=1)
    ]


def ratio_text(ratio):
    return bounds_text((ratio.lower, not ratio.exact), (ratio.upper, not ratio.exact))


def text_of(pairs):
    return str(speed_up_words(summarise_pairs(pairs)))


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ((0.5, 0.95, 0.2), 2),  # ≥, and the first time counts even if it is lost again
        ((0.99,), 1),
        ((0.5, 0.94), None),
        ((), None),
        ((None, None, 0.96), 3),
    ],
)
def test_epochs_to_is_the_first_epoch_at_or_above_the_threshold(accuracies, expected):
    assert epochs_to(history(*accuracies), "train_accuracy", 0.95) == expected


@pytest.mark.parametrize(
    ("baseline", "mask", "lower", "upper", "direction", "text"),
    [
        (reached(30), reached(10), 3.0, 3.0, "faster", "3.0×"),
        (reached(10), reached(40), 0.25, 0.25, "slower", "0.25×"),
        (reached(7), reached(7), 1.0, 1.0, "equal", "1.0×"),
        (censored(40), reached(17), 40 / 17, math.inf, "faster", "> 2.3×"),
        (censored(40), reached(40), 1.0, math.inf, "faster", "> 1.0×"),
        (reached(10), censored(40), 0.0, 0.25, "slower", "< 0.25×"),
        (reached(10), censored(5, diverged=True), 0.0, 2.0, "undetermined", "< 2.0×"),
        (censored(3, diverged=True), reached(12), 0.25, math.inf, "undetermined", "> 0.25×"),
        (censored(40), censored(40), 0.0, math.inf, "undetermined", "undetermined"),
        (reached(10), censored(0, diverged=True), 0.0, math.inf, "undetermined", "undetermined"),
        (censored(0, diverged=True), reached(10), 0.0, math.inf, "undetermined", "undetermined"),
    ],
)
def test_speed_up_of_a_pair(baseline, mask, lower, upper, direction, text):
    ratio = speed_up(baseline, mask)
    assert (ratio.lower, ratio.upper) == (lower, upper)
    assert ratio.direction == direction
    assert ratio_text(ratio) == text


def test_impossible_numbers_are_refused():
    with pytest.raises(ValueError, match="epochs is 0"):
        Convergence(0, True)
    with pytest.raises(ValueError, match="no intervals"):
        median_bounds([])


def test_three_pairs_by_hand():
    # ratios 6, 4, 2.5: geometric mean 60^(1/3); log sd 0.438131; t(0.975, 2) = 4.302653
    pairs = [(reached(60, 100), reached(10, 100)), (reached(40, 100), reached(10, 100)), (reached(50), reached(20))]
    result = summarise_pairs(pairs)
    half = 4.302653 * 0.438131 / math.sqrt(3)
    assert result.estimate == pytest.approx(60 ** (1 / 3))
    assert result.low == pytest.approx(60 ** (1 / 3) * math.exp(-half), rel=1e-4)
    assert result.high == pytest.approx(60 ** (1 / 3) * math.exp(half), rel=1e-4)
    assert (result.estimate_kind, result.interval_kind) == ("geometric_mean", "student_t_95")
    assert str(speed_up_words(result)) == "3.9× [1.3, 12]"
    assert [result.count(d) for d in ("faster", "slower", "equal", "undetermined")] == [3, 0, 0, 0]


@pytest.mark.parametrize(
    ("n", "kind", "text"),
    [
        (1, None, "2.0× (1 pair)"),
        (2, None, "2.0× (2 pairs, no interval)"),
        (3, "student_t_95", "2.0× [2.0, 2.0]"),
        (9, "student_t_95", "2.0× [2.0, 2.0]"),
        (10, "bootstrap_95", "2.0× [2.0, 2.0]"),
    ],
)
def test_the_kind_of_interval_goes_by_the_number_of_pairs(n, kind, text):
    result = summarise_pairs([(reached(20), reached(10))] * n)
    assert (result.interval_kind, str(speed_up_words(result))) == (kind, text)
    assert (result.low is None) == (kind is None)


def test_censored_pairs_give_a_median_with_bounds_and_counts():
    # ratios 2, > 40/16, > 4 → the middle one is > 2.5
    pairs = [(reached(20), reached(10)), (censored(40), reached(16)), (censored(40), reached(10))]
    result = summarise_pairs(pairs)
    assert result.estimate is None
    assert (result.low, result.high, result.interval_kind) == (2.5, None, "censoring_bounds")
    assert str(speed_up_words(result)) == "median > 2.5× (3 faster of 3)"
    # restricted at 40: (20 + 40 + 40) / (10 + 16 + 10)
    assert (result.restricted_mean_ratio, result.restricted_at) == (pytest.approx(100 / 36), 40)


def test_a_median_can_be_exact_in_spite_of_censoring():
    # ratios < 0.5, 2, > 4
    pairs = [(reached(20), censored(40)), (reached(20), reached(10)), (censored(40), reached(10))]
    result = summarise_pairs(pairs)
    assert (result.estimate, result.estimate_kind, result.low, result.high) == (2.0, "median", 2.0, 2.0)
    assert str(speed_up_words(result)) == "median 2.0× (2 faster, 1 slower of 3)"


def test_texts_of_other_censored_outcomes():
    assert text_of([(censored(40), reached(17))]) == "> 2.3×"
    assert text_of([(censored(40), censored(40))] * 2) == "undetermined (2 pairs)"
    assert text_of([]) == "no pairs"
    # > 2 and < 3: the two middle values are (2, inf) and (0, 3), so nothing is known of their midpoint
    assert text_of([(censored(40), reached(20)), (reached(9), censored(3))]).startswith("undetermined")
    # 2, 3, and one that may lie anywhere: the median is 2 at least and 3 at most
    mixed = [(reached(20), reached(10)), (reached(30), reached(10)), (censored(40), censored(40))]
    assert text_of(mixed) == "median between 2.0× and 3.0× (2 faster, 1 undetermined of 3)"
    attained = [(reached(20), reached(10)), (censored(30), reached(10)), (censored(10), reached(10))]
    assert text_of(attained) == "median ≥ 2.0× (3 faster of 3)"


def test_restricted_mean_uses_the_smaller_budget_and_counts_a_diverged_run_at_it():
    # budgets 40 and 30 → c = 30: baseline (min(35, 30) + 30), mask (10 + 30)
    pairs = [(reached(35, 40), reached(10, 30)), (censored(3, 40, diverged=True), censored(30, 30))]
    assert restricted_mean_ratio(pairs) == (pytest.approx(60 / 40), 30)
    unfinished = [(reached(35), reached(10)), (reached(20), censored(3, finished=False))]
    assert restricted_mean_ratio(unfinished) == (None, None)
    assert restricted_mean_ratio([]) == (None, None)
    assert restricted_mean_ratio([(censored(40), censored(40))]) == (None, None)  # nothing happened: no ratio


def test_median_text_of_epochs():
    assert median_epochs_text([reached(7), reached(14), censored(40)]) == "14"
    assert median_epochs_text([reached(7), reached(10)]) == "8.5"
    assert median_epochs_text([reached(14), censored(40)]) == ">27"
    assert median_epochs_text([censored(40), censored(40), reached(3)]) == ">40"
    assert median_epochs_text([]) == "–"
    assert [epochs_text(run) for run in (reached(7), censored(40), censored(3, diverged=True))] == [
        "7",
        ">40",
        ">3 (diverged)",
    ]
    assert epochs_text(censored(12, finished=False)) == ">12 (unfinished)"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0431, "0.043"), (0.25, "0.25"), (0.996, "1.0"), (1.0, "1.0"), (3.94, "3.9"), (9.96, "10"), (12.4, "12"),
     (137.2, "137"), (1234.0, "1234"), (0.0, "0"), (99.96, "100")],
)  # fmt: skip
def test_format_ratio(value, text):
    assert format_ratio(value) == text


run = st.builds(
    lambda epochs, is_reached, budget: Convergence(epochs, is_reached, max(budget, epochs)),
    st.integers(1, 200),
    st.booleans(),
    st.integers(1, 200),
)
exact_run = st.builds(reached, st.integers(1, 200), st.just(200))


@given(run, run)
def test_swapping_the_masks_inverts_the_ratio(a, b):
    there, back = speed_up(a, b), speed_up(b, a)
    inverse = {"faster": "slower", "slower": "faster", "equal": "equal", "undetermined": "undetermined"}
    assert back.direction == inverse[there.direction]
    assert back.lower == pytest.approx(0.0 if there.upper == math.inf else 1 / there.upper)
    assert back.upper == (math.inf if there.lower == 0 else pytest.approx(1 / there.lower))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(exact_run, exact_run), min_size=3, max_size=12))
def test_swapping_the_masks_inverts_estimate_and_interval(pairs):
    there, back = summarise_pairs(pairs), summarise_pairs([(b, a) for a, b in pairs])
    assert there.low <= there.estimate * (1 + 1e-9)
    assert there.estimate <= there.high * (1 + 1e-9)
    assert back.estimate == pytest.approx(1 / there.estimate)
    assert (back.low, back.high) == (pytest.approx(1 / there.high), pytest.approx(1 / there.low))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(run, run), min_size=1, max_size=8), st.integers(2, 5))
def test_scaling_all_epochs_changes_nothing(pairs, factor):
    def scaled(one):
        return Convergence(one.epochs * factor, one.reached, one.budget * factor)

    before, after = summarise_pairs(pairs), summarise_pairs([(scaled(a), scaled(b)) for a, b in pairs])
    assert speed_up_words(after) == speed_up_words(before)
    assert after.restricted_mean_ratio == pytest.approx(before.restricted_mean_ratio)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(run, run), min_size=1, max_size=7), st.data())
def test_whatever_the_censored_runs_would_have_done_the_median_lies_in_its_bounds(pairs, data):
    (low, low_open), (high, high_open) = median_bounds([(r.lower, r.upper) for r in summarise_pairs(pairs).ratios])

    def completed(one):
        return one.epochs if one.reached else one.epochs + data.draw(st.integers(1, 10_000))

    truth = float(np.median([completed(a) / completed(b) for a, b in pairs]))
    assert low <= truth * (1 + 1e-12)
    assert truth <= high * (1 + 1e-12)
    if low != high and len(pairs) % 2:
        assert (not low_open) or truth > low
        assert (not high_open) or truth < high


@given(st.floats(1e-3, 1e4))
def test_printed_bounds_are_true(bound):
    assert float(ratio_text(Ratio(bound, math.inf)).strip("> ×")) <= bound
    assert float(ratio_text(Ratio(0.0, bound)).strip("< ×")) >= bound


@pytest.mark.parametrize("n", [3, 6, 10, 20])
def test_the_interval_covers_the_truth_about_19_times_in_20(n):
    rng = np.random.default_rng(7)
    trials = 400 if n < 10 else 60  # a bootstrap costs 10,000 resamples
    hits = 0
    for logs in rng.normal(math.log(3), 0.5, (trials, n)):
        low, high, _ = log_interval(logs)
        hits += low <= 3 <= high
    sd = math.sqrt(0.95 * 0.05 / trials)
    assert abs(hits / trials - 0.95) < 3.5 * sd + (0.03 if n >= 10 else 0)


def test_the_bootstrap_is_reproducible_and_its_seed_matters_little():
    logs = np.random.default_rng(0).normal(1, 0.4, 12)
    assert log_interval(logs) == log_interval(logs)
    low, high, _ = log_interval(logs)
    other_low, other_high, _ = log_interval(logs, bootstrap_seed=1)
    assert (low, high) != (other_low, other_high)
    assert (low, high) == (pytest.approx(other_low, rel=0.03), pytest.approx(other_high, rel=0.03))
