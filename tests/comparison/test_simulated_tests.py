"""The error rates that `docs/protocol.md` states, by the simulation of `recipes/simulate_tests.py`, smaller."""

import math
from pathlib import Path

import numpy as np
import pytest

from hf_semfocus.comparison.paired_tests import Verdict, judge_speed
from hf_semfocus.comparison.statistics import Convergence
from tests.recipes.recipe_modules import recipe

simulation = recipe("simulate_tests")
REPETITIONS = 1000


def rates(n, censoring, noise="normal", speed_up=1.0, repetitions=REPETITIONS):
    return simulation.simulate(n, censoring, noise, speed_up, repetitions, np.random.default_rng(1))


def above(share):
    """What a true rate of `share` stays below, four standard errors up."""
    return share + 4 * math.sqrt(share * (1 - share) / REPETITIONS)


@pytest.mark.parametrize("censoring", [0, 0.2, 0.4, 0.6])
@pytest.mark.parametrize("n", [6, 10])
def test_nothing_is_decided_too_often_and_the_interval_holds_the_truth(n, censoring):
    for noise in ("normal", "heavy", "skewed"):
        found = rates(n, censoring, noise)
        assert found.censored == pytest.approx(censoring, abs=0.03)
        assert found.rejected <= above(0.05)
        assert found.restricted_rejected <= above(0.05)
        assert 1 - found.covered <= above(0.05)


@pytest.mark.parametrize(("n", "coverage"), [(6, 31 / 32), (10, 1 - 25 / 512)])
def test_without_censoring_the_coverage_is_the_stated_one(n, coverage):
    found = rates(n, 0, speed_up=2.5)
    assert found.covered == pytest.approx(coverage, abs=4 * math.sqrt(coverage * (1 - coverage) / REPETITIONS))
    assert found.estimate_low == found.estimate_high == pytest.approx(2.5, rel=0.05)


def test_skewed_log_ratios_are_safe_at_six_pairs_and_not_at_ten():
    assert rates(6, 0, "unlike").rejected <= above(0.05)  # one rule with the sign test
    assert rates(10, 0, "unlike", repetitions=4000).rejected > 0.055


def test_six_pairs_decide_a_speed_up_of_2_5():
    found = rates(6, 0.4, speed_up=2.5)
    assert found.towards_faster > 0.7
    assert found.towards_slower == 0


@pytest.mark.parametrize("censoring", [0, 0.1, 0.4])
def test_the_simulation_judges_as_the_product_does(censoring):
    baseline, mask, budget = simulation.draw(6, censoring, "normal", 1.6, 60, np.random.default_rng(3))
    up, down, _, _ = simulation.judge(baseline, mask, budget)
    seen = set()
    for i in range(len(up)):
        runs = [[Convergence(int(min(e, budget)), bool(e <= budget)) for e in own[i]] for own in (baseline, mask)]
        verdict = judge_speed(list(zip(*runs, strict=True))).verdict
        assert (verdict is Verdict.SUPPORTED, verdict is Verdict.CONTRADICTED) == (up[i], down[i])
        seen.add(verdict)
    assert len(seen) > 1


def test_the_stored_text_has_every_setting():
    stored = (Path(simulation.__file__).parent / "results" / "simulated_tests.txt").read_text(encoding="utf-8")
    rows = [line for line in stored.splitlines() if line[:2].strip() in ("6", "10")]
    assert len(rows) == 3 * 2 * 4 * len(simulation.NOISES)
