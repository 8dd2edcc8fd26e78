"""Statistics of convergence (DESIGN §2): epochs to a threshold, paired speed-ups, and what censoring leaves of them.

A run that does not reach its threshold is *censored*: it enters every statistic as "more than e epochs" and is
neither dropped nor counted as e. Everything here is a pure function of numbers; `summary.py` reads them from files.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from typing import Any

import numpy as np

BOOTSTRAP_FROM = 10
"""Number of pairs from which the interval is a bootstrap; below it is Student-t (DESIGN §2)."""
INTERVAL_FROM = 3
"""Number of pairs below which no interval is given."""
RESAMPLES = 10_000


@dataclass(frozen=True)
class Convergence:
    """When one run got to a threshold, or how long it went without.

    Args:
        epochs: the first epoch (counted from 1) at which the threshold was met if `reached`, otherwise the epochs
            trained.
        reached: whether the threshold was met.
        budget: the most epochs the run was allowed; None where it is not known.
        diverged: the loss became infinite or NaN. Such a run is censored at the epochs it trained, and will not go on.
        finished: False for a run that is still on its way (or was killed); its bound holds, but it may yet get there.
    """

    epochs: int
    reached: bool
    budget: int | None = None
    diverged: bool = False
    finished: bool = True

    def __post_init__(self) -> None:
        if self.epochs < (1 if self.reached else 0):
            raise ValueError(
                f"epochs is {self.epochs}; allowed: ≥ 1 for a run that reached its threshold, ≥ 0 otherwise"
            )

    @property
    def text(self) -> str:
        """`7`, `>40`, `>3 (diverged)` or `>12 (unfinished)`."""
        if self.reached:
            return str(self.epochs)
        note = " (diverged)" if self.diverged else "" if self.finished else " (unfinished)"
        return f">{self.epochs}{note}"


@dataclass(frozen=True)
class Ratio:
    """A speed-up known as an interval: exact when both ends are equal, otherwise strictly between them.

    `lower` is 0 and `upper` infinite where nothing is known on that side. Larger than 1: the mask needs fewer epochs.
    """

    lower: float
    upper: float

    def __post_init__(self) -> None:
        if not 0 <= self.lower <= self.upper or self.lower == math.inf or self.upper == 0:
            raise ValueError(
                f"a ratio from {self.lower} to {self.upper} is empty; allowed: 0 ≤ lower ≤ upper, upper > 0"
            )

    @property
    def exact(self) -> bool:
        """Whether neither run of the pair was censored."""
        return self.lower == self.upper

    @property
    def direction(self) -> str:
        """`faster`, `slower`, `equal`, or `undetermined` where the interval has values on both sides of 1."""
        if self.exact:
            return "equal" if self.lower == 1 else "faster" if self.lower > 1 else "slower"
        return "faster" if self.lower >= 1 else "slower" if self.upper <= 1 else "undetermined"

    @property
    def text(self) -> str:
        """`3.9×`, `> 2.3×`, `< 0.5×` or `undetermined`. Bounds are rounded outwards, so what is printed is true."""
        return _bounds_text((self.lower, not self.exact), (self.upper, not self.exact))


@dataclass(frozen=True)
class SpeedUp:
    """All pairs of one mask against the baseline. `low` and `high` are an interval of the kind `interval_kind` names.

    Kinds of estimate: "geometric_mean" (no pair censored), "median" (some are; None unless the median is known exactly).
    Kinds of interval: "student_t_95", "bootstrap_95", "censoring_bounds" (the median lies between them), None.
    """

    ratios: tuple[Ratio, ...]
    estimate: float | None
    estimate_kind: str | None
    low: float | None
    high: float | None
    interval_kind: str | None
    restricted_mean_ratio: float | None
    restricted_at: int | None
    text: str

    def count(self, direction: str) -> int:
        """Number of pairs that are "faster", "slower", "equal" or "undetermined"."""
        return sum(ratio.direction == direction for ratio in self.ratios)


def epochs_to(history: Sequence[Mapping[str, Any]], quantity: str, threshold: float) -> int | None:
    """The first epoch whose `quantity` is ≥ `threshold`, counted from 1; None when there is none (censored).

    Args:
        history: one mapping an epoch, in order, with key "epoch"; a value of None or NaN never meets a threshold.
        quantity: "train_accuracy" or "heldout_accuracy" (whole-sequence accuracy for sequence tasks).
        threshold: τ.

    Example:
        >>> history = [{"epoch": 1, "train_accuracy": 0.6}, {"epoch": 2, "train_accuracy": 0.95}]
        >>> epochs_to(history, "train_accuracy", 0.95)
        2
    """
    for row in history:
        value = row.get(quantity)
        if value is not None and value >= threshold:
            return int(row["epoch"])
    return None


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
        >>> summarise_pairs(pairs).text
        '3.9× [1.3, 12]'
    """
    ratios = tuple(speed_up(baseline, mask) for baseline, mask in pairs)
    mean_ratio, horizon = restricted_mean_ratio(pairs)
    if not ratios:
        return SpeedUp((), None, None, None, None, None, None, None, "no pairs")

    if all(ratio.exact for ratio in ratios):
        logs = np.log([ratio.lower for ratio in ratios])
        estimate = math.exp(logs.mean())
        low, high, kind = log_interval(logs, bootstrap_seed=bootstrap_seed)
        if low is None or high is None:
            count = "1 pair" if len(ratios) == 1 else f"{len(ratios)} pairs, no interval"
            text = f"{format_ratio(estimate)}× ({count})"
        else:
            text = f"{format_ratio(estimate)}× [{format_ratio(low)}, {format_ratio(high)}]"
        return SpeedUp(ratios, estimate, "geometric_mean", low, high, kind, mean_ratio, horizon, text)

    lower, upper = median_bounds([(r.lower, r.upper) for r in ratios], _geometric_midpoint)
    estimate_or_none = lower[0] if lower[0] == upper[0] else None
    text = _bounds_text(lower, upper)
    if all(ratio.direction == "undetermined" for ratio in ratios) and text == "undetermined" and len(ratios) > 1:
        text = f"undetermined ({len(ratios)} pairs)"
    elif len(ratios) > 1:
        prefix = "" if text == "undetermined" else "median "
        text = f"{prefix}{text} ({_counts_text(ratios)})"
    high_or_none = None if upper[0] == math.inf else upper[0]
    return SpeedUp(
        ratios, estimate_or_none, "median", lower[0], high_or_none, "censoring_bounds", mean_ratio, horizon, text
    )


def log_interval(logs: np.ndarray, *, bootstrap_seed: int = 0) -> tuple[float, float, str] | tuple[None, None, None]:
    """A 95 % interval for the geometric mean, from log ratios (n,): low, high, kind; three None below three pairs.

    Student-t on the logs for 3–9 pairs. From 10 on the percentile bootstrap of their mean with expanded percentiles,
    which makes up for its being too short in small samples (Hesterberg, "What teachers should know about the
    bootstrap", 2015: the nominal 2.5 % becomes Φ(√(n/(n−1)) · t₀.₀₂₅,ₙ₋₁)).
    """
    from scipy.stats import norm, t  # half a second to import, and only comparisons need it

    n = len(logs)
    if n < INTERVAL_FROM:
        return None, None, None
    mean = float(np.mean(logs))
    if n < BOOTSTRAP_FROM:
        half = float(t.ppf(0.975, n - 1) * np.std(logs, ddof=1) / math.sqrt(n))
        return math.exp(mean - half), math.exp(mean + half), "student_t_95"
    rows = np.random.default_rng(bootstrap_seed).integers(0, n, (RESAMPLES, n))
    tail = float(norm.cdf(math.sqrt(n / (n - 1)) * t.ppf(0.025, n - 1)))
    low, high = np.quantile(np.asarray(logs)[rows].mean(1), [tail, 1 - tail])
    return math.exp(low), math.exp(high), "bootstrap_95"


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

    def restricted(run: Convergence) -> int:
        return min(run.epochs, horizon) if run.reached else horizon

    return sum(restricted(b) for b, _ in pairs) / sum(restricted(m) for _, m in pairs), horizon


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


def median_text(runs: Sequence[Convergence]) -> tuple[float | None, str]:
    """The median epochs of runs: the value if they determine it (else None), and `14`, `>27`, `≥14` or `–` (no
    runs)."""
    if not runs:
        return None, "–"
    (lower, lower_open), (upper, _) = median_bounds(
        [(run.epochs, run.epochs if run.reached else math.inf) for run in runs]
    )
    if lower == upper:
        return lower, f"{lower:g}"
    bounded = "" if upper == math.inf else f", ≤{upper:g}"
    return None, f"{'>' if lower_open else '≥'}{lower:g}{bounded}"


def format_ratio(value: float, rounding: str = ROUND_HALF_EVEN) -> str:
    """A ratio with two significant digits, or all whole ones: 0.043, 0.25, 1.0, 3.9, 12, 137.

    `rounding` is a mode of `decimal`; bounds use ROUND_FLOOR and ROUND_CEILING so that they stay true.
    """
    if value == 0:
        return "0"
    exact = Decimal(str(value))
    digits = min(0, exact.adjusted() - 1)
    rounded = exact.quantize(Decimal(1).scaleb(digits), rounding=rounding)
    if rounded.adjusted() > exact.adjusted() and digits < 0:  # 9.96 became 10.0: one digit too many
        rounded = rounded.quantize(Decimal(1).scaleb(digits + 1))
    return f"{rounded:f}"


def _bounds_text(lower: Bound, upper: Bound) -> str:
    (low, low_open), (high, high_open) = lower, upper
    if low == high:
        return f"{format_ratio(low)}×"
    if low == 0 and high == math.inf:
        return "undetermined"
    low_text = f"{format_ratio(low, ROUND_FLOOR)}×"
    if high == math.inf:
        return f"{'>' if low_open else '≥'} {low_text}"
    high_text = f"{format_ratio(high, ROUND_CEILING)}×"
    if low == 0:
        return f"{'<' if high_open else '≤'} {high_text}"
    return f"between {low_text} and {high_text}"


def _counts_text(ratios: Sequence[Ratio]) -> str:
    counts = {d: sum(r.direction == d for r in ratios) for d in ("faster", "slower", "equal", "undetermined")}
    return ", ".join(f"{count} {direction}" for direction, count in counts.items() if count) + f" of {len(ratios)}"


def _geometric_midpoint(low: float, high: float) -> float:
    return math.sqrt(low) * math.sqrt(high) if low else 0.0
