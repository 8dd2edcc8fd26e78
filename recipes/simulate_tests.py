"""How often the protocol's tests err, and how often its intervals hold the truth, by simulation.

python recipes/simulate_tests.py > recipes/results/simulated_tests.txt      # about a minute on one core

A pair has a seed's common part and a part of each mask, in log epochs; epochs are whole numbers, and the budget is the quantile
of the baseline's epochs that censors the stated share of its runs. `docs/protocol.md` has the rules.
"""

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from hf_semfocus.comparison.paired_tests import LEVEL, hodges_lehmann, sign_flip_interval, sign_test_p

Noise = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
# Of one run, in log epochs: the baseline's and the mask's. The difference of two alike is symmetric whatever the shape. Under
# "unlike" it is skewed with median 0: what the sign-flip test assumes does not hold.
NOISES: dict[str, tuple[Noise, Noise]] = {
    "normal": (lambda r, s: r.normal(0, 0.3, s),) * 2,
    "heavy": (lambda r, s: 0.2 * r.standard_t(2, s),) * 2,
    "skewed": (lambda r, s: r.exponential(0.3, s),) * 2,
    "unlike": (lambda r, s: r.exponential(0.6, s) - 0.6 * math.log(2), lambda r, s: np.zeros(s)),
}
TYPICAL = 60  # epochs


@dataclass(frozen=True)
class Rates:
    """What was found over the repetitions of one setting, as shares.

    Args:
        censored: runs of the baseline.
        rejected: the test that decides: sign-flip without a censored pair, the sign test otherwise.
        towards_faster, towards_slower: its two sides.
        covered: the interval's bounds hold the true speed-up.
        estimate_low, estimate_high: medians of what is known of the estimate, as ratios.
        restricted_rejected: sign-flip on the difference in restricted epochs.
    """

    censored: float
    rejected: float
    towards_faster: float
    towards_slower: float
    covered: float
    estimate_low: float
    estimate_high: float
    restricted_rejected: float


def draw(
    n: int, censoring: float, noise: str, speed_up: float, repetitions: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, float]:
    """Epochs to τ of the baseline and of the mask, each (repetitions, n), and the budget."""
    shape = (repetitions, n)
    of_baseline, of_mask = NOISES[noise]
    common = math.log(TYPICAL) + rng.normal(0, 0.3, shape)
    baseline = np.ceil(np.exp(common + of_baseline(rng, shape)))
    mask = np.ceil(np.exp(common + of_mask(rng, shape) - math.log(speed_up)))
    return baseline, mask, float(np.quantile(baseline, 1 - censoring)) if censoring else math.inf


def judge(
    baseline: np.ndarray, mask: np.ndarray, budget: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """`paired_tests.judge_speed` for every row at once: decided faster, decided slower, and the bounds of the log ratios."""
    reached_baseline, reached_mask = baseline <= budget, mask <= budget
    logs = np.log(np.minimum(baseline, budget) / np.minimum(mask, budget))
    lower, upper = np.where(reached_mask, logs, -np.inf), np.where(reached_baseline, logs, np.inf)
    low, high = sign_flip_interval(lower, upper)
    # `Ratio.direction`: a bound of 1 tells, as it is open.
    exact = reached_baseline & reached_mask
    faster = np.where(exact, lower > 0, lower >= 0).sum(1)
    slower = np.where(exact, upper < 0, upper <= 0).sum(1)
    n = baseline.shape[1]
    p_signs = np.array([[sign_test_p(f, s, n) for s in range(n + 1)] for f in range(n + 1)])
    by_signs = p_signs[faster, slower] <= LEVEL
    whole = exact.all(1)
    up = np.where(whole, low > 0, by_signs & (faster > slower))
    down = np.where(whole, high < 0, by_signs & (faster < slower))
    return up, down, lower, upper


def simulate(
    n: int, censoring: float, noise: str, speed_up: float, repetitions: int, rng: np.random.Generator
) -> Rates:
    """Draws `repetitions` comparisons of n pairs and judges each by the rules."""
    baseline, mask, budget = draw(n, censoring, noise, speed_up, repetitions, rng)
    up, down, lower, upper = judge(baseline, mask, budget)
    low, high = sign_flip_interval(lower, upper)
    restricted_low, restricted_high = sign_flip_interval(np.minimum(baseline, budget) - np.minimum(mask, budget))
    truth = math.log(speed_up)
    return Rates(
        censored=float((baseline > budget).mean()),
        rejected=float((up | down).mean()),
        towards_faster=float(up.mean()),
        towards_slower=float(down.mean()),
        covered=float(((low <= truth) & (truth <= high)).mean()),
        estimate_low=float(np.exp(np.median(hodges_lehmann(lower)))),
        estimate_high=float(np.exp(np.median(hodges_lehmann(upper)))),
        restricted_rejected=float(((restricted_low > 0) | (restricted_high < 0)).mean()),
    )


def table(repetitions: int, seed: int = 0) -> Iterator[str]:
    """The lines of the stored text."""
    error = 1.96 * math.sqrt(0.05 * 0.95 / repetitions)
    yield f"Level {LEVEL:.0%}, {repetitions} repetitions a row: a rate of 5 % is known to ±{error:.1%}."
    for n in (6, 10):
        exact = math.floor(LEVEL * 2 ** (n - 1)) / 2 ** (n - 1)
        yield f"n = {n}: without ties and censoring the sign-flip test rejects {exact:.1%}, its interval covers {1 - exact:.1%}."
    yield ""
    yield "size: rejections where nothing is faster.  cover: the interval's bounds hold the true speed-up.  power: decided faster."
    yield "unlike: skewed log ratios, the true speed-up is their median; what the sign-flip test assumes does not hold."
    yield "restricted: size of the sign-flip test on restricted epochs.  known: medians of what is known of the estimate."
    for speed_up in (1.0, 1.5, 2.5):
        yield ""
        last = "size   cover  restricted" if speed_up == 1 else "power  cover  known"
        yield f"true speed-up {speed_up:g}"
        yield f" n  censored  noise    {last}"
        for n in (6, 10):
            for censoring in (0.0, 0.2, 0.4, 0.6):
                for noise in NOISES:
                    rng = np.random.default_rng([seed, n, int(100 * censoring), list(NOISES).index(noise)])
                    rates = simulate(n, censoring, noise, speed_up, repetitions, rng)
                    start = f"{n:2d}  {rates.censored:7.1%}  {noise:7s}"
                    if speed_up == 1:
                        yield f"{start}  {rates.rejected:5.1%}  {rates.covered:5.1%}  {rates.restricted_rejected:5.1%}"
                    else:
                        known = f"{rates.estimate_low:.2f} to {rates.estimate_high:.2f}"
                        yield f"{start}  {rates.towards_faster:5.1%}  {rates.covered:5.1%}  {known}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repetitions", type=int, default=4000)
    for line in table(parser.parse_args().repetitions):
        print(line)
