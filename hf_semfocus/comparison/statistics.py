"""Statistics of convergence (DESIGN §2): epochs to a threshold, paired speed-ups, and what censoring leaves of them.

A run that does not reach its threshold is *censored*: it enters every statistic as "more than e epochs" and is
neither dropped nor counted as e. Everything here is a pure function of numbers; `summary.py` reads them from files.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..schema import Convergence, Quantity
from ..summary_schema import Direction, RunEntry

BOOTSTRAP_FROM = 10
"""Number of pairs from which the interval is a bootstrap; below it is Student-t (DESIGN §2)."""
INTERVAL_FROM = 3
"""Number of pairs below which no interval is given."""
RESAMPLES = 10_000

IntervalKind = Literal["student_t_95", "bootstrap_95", "censoring_bounds"]


@dataclass(frozen=True)
class Ratio:
    """A speed-up known as an interval: exact when both ends are equal, otherwise strictly between them.

    `lower` is 0 and `upper` infinite where nothing is known on that side. Larger than 1: the mask needs fewer epochs.
    """

    lower: float
    upper: float

    @property
    def exact(self) -> bool:
        """Whether neither run of the pair was censored."""
        return self.lower == self.upper

    @property
    def direction(self) -> Direction:
        """`faster`, `slower`, `equal`, or `undetermined` where the interval has values on both sides of 1."""
        if self.exact:
            return "equal" if self.lower == 1 else "faster" if self.lower > 1 else "slower"
        return "faster" if self.lower >= 1 else "slower" if self.upper <= 1 else "undetermined"


@dataclass(frozen=True)
class SpeedUp:
    """All pairs of one mask against the baseline. `low` and `high` are an interval of the kind `interval_kind` names.

    Kinds of estimate: "geometric_mean" (no pair censored), "median" (some are; None unless the median is known exactly).
    Kinds of interval: "student_t_95", "bootstrap_95", "censoring_bounds" (the median lies between them), None.
    """

    ratios: tuple[Ratio, ...]
    estimate: float | None
    estimate_kind: Literal["geometric_mean", "median"] | None
    low: float | None
    high: float | None
    interval_kind: IntervalKind | None
    restricted_mean_ratio: float | None
    restricted_at: int | None

    def count(self, direction: str) -> int:
        """Number of pairs that are "faster", "slower", "equal" or "undetermined"."""
        return sum(ratio.direction == direction for ratio in self.ratios)


def speed_up(baseline: Convergence, mask: Convergence) -> Ratio:
    """epochs(baseline) / epochs(mask) of one pair (same rows, initial weights and batch order), as an interval.

    Baseline censored: more than e_baseline / e_mask. Mask censored: less than that. Both: undetermined.

    Example:
        >>> speed_up(Convergence(40, reached=False), Convergence(8, reached=True))
        Ratio(lower=5.0, upper=inf)
    """
    if not (baseline.reached or mask.reached):
        return Ratio(0.0, math.inf)
    if not mask.reached:
        return Ratio(0.0, baseline.epochs / mask.epochs if mask.epochs else math.inf)
    ratio = baseline.epochs / mask.epochs
    return Ratio(ratio, ratio if baseline.reached else math.inf)


def summarise_pairs(pairs: Sequence[tuple[Convergence, Convergence]], *, bootstrap_seed: int = 0) -> SpeedUp:
    """The speed-up over (baseline, mask) pairs, with the uncertainty that their number and their censoring leave.

    Without censoring: geometric mean, with a 95 % interval from three pairs on (`log_interval`). With censoring: the
    median as far as the pairs determine it, the counts, and the ratio of restricted means (`restricted_mean_ratio`).

    Example:
        >>> pairs = [(Convergence(a, True), Convergence(b, True)) for a, b in [(60, 10), (40, 10), (50, 20)]]
        >>> found = summarise_pairs(pairs)
        >>> [round(value, 1) for value in (found.estimate, found.low, found.high)]
        [3.9, 1.3, 11.9]
    """
    ratios = tuple(speed_up(baseline, mask) for baseline, mask in pairs)
    mean_ratio, horizon = restricted_mean_ratio(pairs)
    if not ratios:
        return SpeedUp((), None, None, None, None, None, None, None)
    if all(ratio.exact for ratio in ratios):
        logs = np.log([ratio.lower for ratio in ratios])
        start, end, kind = log_interval(logs, bootstrap_seed=bootstrap_seed)
        return SpeedUp(ratios, math.exp(logs.mean()), "geometric_mean", start, end, kind, mean_ratio, horizon)
    (low, _), (high, _) = median_ratio(ratios)
    bounds = low, None if high == math.inf else high
    return SpeedUp(ratios, low if low == high else None, "median", *bounds, "censoring_bounds", mean_ratio, horizon)


def median_ratio(ratios: Sequence[Ratio]) -> "tuple[Bound, Bound]":
    """What is known of the median of ratios: `median_bounds`, joined by the geometric mean."""
    intervals = [(ratio.lower, ratio.upper) for ratio in ratios]
    return median_bounds(intervals, lambda low, high: math.sqrt(low) * math.sqrt(high) if low else 0.0)


def log_interval(
    logs: Sequence[float] | np.ndarray, *, bootstrap_seed: int = 0
) -> tuple[float, float, IntervalKind] | tuple[None, None, None]:
    """A 95 % interval for the geometric mean, from log ratios (n,): :func:`mean_interval`, with its ends as ratios."""
    found = mean_interval(logs, bootstrap_seed=bootstrap_seed)
    return found if found[0] is None else (math.exp(found[0]), math.exp(found[1]), found[2])


def mean_interval(
    values: Sequence[float] | np.ndarray, *, bootstrap_seed: int = 0
) -> tuple[float, float, IntervalKind] | tuple[None, None, None]:
    """A 95 % interval for the mean of values (n,): low, high, kind; three None below three values.

    Student-t for 3–9 values. From 10 on the percentile bootstrap of their mean with expanded percentiles, which makes up
    for its being too short in small samples (Hesterberg, "What teachers should know about the bootstrap", 2015: the
    nominal 2.5 % becomes Φ(√(n/(n−1)) · t₀.₀₂₅,ₙ₋₁)).
    """
    from scipy.stats import norm, t  # half a second to import, and only comparisons need it

    n = len(values)
    if n < INTERVAL_FROM:
        return None, None, None
    mean = float(np.mean(values))
    if n < BOOTSTRAP_FROM:
        half = float(t.ppf(0.975, n - 1) * np.std(values, ddof=1) / math.sqrt(n))
        return mean - half, mean + half, "student_t_95"
    rows = np.random.default_rng(bootstrap_seed).integers(0, n, (RESAMPLES, n))
    tail = float(norm.cdf(math.sqrt(n / (n - 1)) * t.ppf(0.025, n - 1)))
    low, high = np.quantile(np.asarray(values)[rows].mean(1), [tail, 1 - tail])
    return float(low), float(high), "bootstrap_95"


def restricted_mean_ratio(pairs: Sequence[tuple[Convergence, Convergence]]) -> tuple[float | None, int | None]:
    """Mean epochs of the baseline over mean epochs of the mask, both restricted at a common horizon c; and c.

    Every time counts as min(time, c), where c is the smallest budget of all the runs (and no more than the epochs
    that a censored run really trained), so each minimum is known exactly. A diverged run never gets there, so it
    counts as c. The restriction tends to understate a difference (times beyond c are cut off). None where no run
    reached its threshold, without a known budget, and while a run is unfinished (c would depend on when one looks).

    Example:
        >>> restricted_mean_ratio([(Convergence(40, False, budget=40), Convergence(10, True, budget=40))])
        (4.0, 40)
    """
    runs = [run for pair in pairs for run in pair]
    if not any(run.reached for run in runs) or any(
        run.budget is None or not (run.reached or run.finished) for run in runs
    ):
        return None, None
    limits = [run.budget if run.reached or run.diverged else min(run.budget or 0, run.epochs) for run in runs]
    horizon = min(limit for limit in limits if limit is not None)
    if horizon < 1:
        return None, None
    baseline, mask = (sum(restricted_epochs(pair[side], horizon) for pair in pairs) for side in (0, 1))
    return baseline / mask, horizon


def restricted_epochs(run: Convergence, horizon: int) -> int:
    """min(epochs to the threshold, horizon); the horizon for a run that did not get there.

    Raises:
        ValueError: the run stopped without the threshold before the horizon (and did not diverge): nobody knows.
    """
    if not run.reached and not run.diverged and run.epochs < horizon:
        raise ValueError(f"a run trained {run.epochs} epochs without its threshold; allowed: at least {horizon}")
    return min(run.epochs, horizon) if run.reached else horizon


Bound = tuple[float, bool]
"""A bound and whether it is open (the value itself is excluded)."""


def median_bounds(
    intervals: Sequence[tuple[float, float]], midpoint: Callable[[float, float], float] | None = None
) -> tuple[Bound, Bound]:
    """What is known of the median of values of which each is known as an interval: (lower, open?), (upper, open?).

    An interval with equal ends is an exact value, any other excludes its ends. The bounds are sharp: the medians of
    all the lower and of all the upper ends. For an even count the two middle ends are joined by `midpoint` (default:
    their mean).

    Example:
        >>> median_bounds([(2, 2), (3, math.inf), (4, math.inf)])   # 2, >3, >4
        ((3, True), (inf, True))
    """
    if not intervals:
        raise ValueError("the median of no intervals is not defined; allowed: at least one")
    join = midpoint or (lambda a, b: (a + b) / 2)
    n = len(intervals)
    # Beside an equal closed end, an open lower end is the larger one and an open upper end the smaller one.
    lowers = sorted((low, low != high) for low, high in intervals)
    uppers = sorted((high, low == high) for low, high in intervals)

    def middle(ends: list[tuple[float, bool]]) -> tuple[float, list[bool]]:
        first, second = ends[(n - 1) // 2], ends[n // 2]
        value = first[0] if first[0] == second[0] else join(first[0], second[0])
        return value, [first[1], second[1]]

    lower, lower_open = middle(lowers)
    upper, upper_closed = middle(uppers)
    return (lower, any(lower_open)), (upper, not all(upper_closed))


def median_epochs(runs: Sequence[Convergence]) -> tuple[Bound, Bound] | None:
    """What is known of the median epochs of runs; None without a run."""
    return median_bounds([(run.epochs, run.epochs if run.reached else math.inf) for run in runs]) if runs else None


def median_seconds(runs: Sequence[RunEntry], quantity: Quantity) -> tuple[Bound, Bound] | None:
    """What is known of the median seconds of training to the threshold; None without a run that counts."""
    known = [(run.seconds_to(quantity), run.train_seconds or 0.0) for run in runs if run.counts]
    ends = [(trained, math.inf) if needed is None else (needed, needed) for needed, trained in known]
    return median_bounds(ends) if ends else None
