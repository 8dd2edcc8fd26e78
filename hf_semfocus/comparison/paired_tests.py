"""Exact tests and intervals for pairs of runs, as `docs/protocol.md` fixes them: pure functions of numbers.

A pair may be known only as an interval (`statistics.Ratio`). Test statistics and estimates rise with each value, so the
lower ends give the lower bound of whatever is computed and the upper ends the upper one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from ..schema import Convergence
from .statistics import restricted_epochs, speed_up

FEWEST_PAIRS = 6
"""Below it no exact two-sided test can reject at 5 %: with five pairs the smallest p is 2/32."""
MOST_VALUES = 16
"""Values whose 2ⁿ sign flips are counted; more would take gigabytes."""
LEVEL = 0.05


class Verdict(StrEnum):
    """What a rule of the protocol says of a claim. A lack of evidence is `UNDECIDED`, never `CONTRADICTED`."""

    SUPPORTED = "supported"
    CONTRADICTED = "contradicted"
    UNDECIDED = "undecided"
    NOT_TESTED = "not_tested"


@dataclass(frozen=True)
class Judgement:
    """A verdict and the numbers that it rests on; fit for JSON, without a word of prose.

    Args:
        verdict: see `Verdict`.
        n: pairs (or seeds, or tasks) that it rests on.
        test: "sign_flip" or "sign"; None where nothing was tested.
        p: two-sided.
        estimate_low, estimate_high: Hodges–Lehmann as far as it is known: equal where no value is an interval.
        low, high: the 95 % interval, likewise.
        p_holm: p adjusted for the tasks of one claim.

    None stands for no bound on that side, and for what was not computed.
    """

    verdict: Verdict
    n: int
    test: str | None = None
    p: float | None = None
    estimate_low: float | None = None
    estimate_high: float | None = None
    low: float | None = None
    high: float | None = None
    p_holm: float | None = None

    @property
    def family_wise(self) -> bool:
        """Whether the verdict also holds over all tasks of its claim (Holm)."""
        return self.p_holm is not None and self.p_holm <= LEVEL


def sign_flip_p(values: Sequence[float] | np.ndarray) -> float:
    """Two-sided p of the sign-flip test that finite values (n,) are symmetric about 0: all 2ⁿ flips of their sum.

    Example:
        >>> sign_flip_p([0.1, 0.2, 0.9, 0.4, 0.5, 0.3])   # 2 of 64 flips
        0.03125
    """
    _countable(len(values))
    array = np.asarray(values, float)
    signs = 1 - 2 * ((np.arange(2 ** len(array))[:, None] >> np.arange(len(array))) & 1)
    # A tie is a tie also where the sum is near 0, so rounding is measured by the values (SciPy measures it by the sum).
    rounding = 1e-12 * np.abs(array).sum()
    return float(np.mean(np.abs(signs @ array) >= abs(array.sum()) - rounding))


def sign_flip_interval(
    lower: Sequence[float] | np.ndarray, upper: Sequence[float] | np.ndarray | None = None, level: float = LEVEL
) -> tuple[np.ndarray, np.ndarray]:
    """The centres that the sign-flip test does not reject, for values (..., n) that lie between `lower` and `upper`.

    Its ends are order statistics of the means of all 2ⁿ − 1 subsets (Hartigan 1969, "Using subsample values as typical
    values"): the ⌊level · 2ⁿ⁻¹⌋-th from either side, so its coverage is 1 − ⌊level · 2ⁿ⁻¹⌋ / 2ⁿ⁻¹ for independent values that
    are symmetric about a centre and have no ties: 96.9 % at n = 6. Infinite ends where n is too small for the level.

    Args:
        lower, upper: values, −∞ and ∞ where nothing is known; `upper` None: the values are exact.
        level: of the two-sided test.

    Returns:
        Two arrays (...): the lower ends' lower end, the upper ends' upper end.

    Example:
        >>> low, high = sign_flip_interval([0.1, 0.2, 0.9, 0.4, 0.5, 0.3])
        >>> float(low), float(high)
        (0.1, 0.9)
    """
    lows = np.asarray(lower, float)
    highs = lows if upper is None else np.asarray(upper, float)
    n = lows.shape[-1]
    _countable(n)
    rank = math.floor(level * 2 ** (n - 1) + 1e-9)
    if rank < 1:
        return np.full(lows.shape[:-1], -np.inf), np.full(lows.shape[:-1], np.inf)
    low = np.partition(_subset_means(lows), rank - 1, -1)[..., rank - 1]
    high = np.partition(_subset_means(highs), -rank, -1)[..., -rank]
    return low, high


def hodges_lehmann(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """The median of the means of all pairs of values (..., n), each with itself as well; ±∞ may be among them.

    Hodges and Lehmann 1963, "Estimates of location based on rank tests". Of the lower and of the upper ends of values
    that are intervals it gives bounds.

    Example:
        >>> float(hodges_lehmann([1.0, 2.0, 9.0]))   # of 1, 1.5, 2, 5, 5.5, 9
        3.5
    """
    known = np.asarray(values, float)
    first, second = np.triu_indices(known.shape[-1])
    return np.median((known[..., first] + known[..., second]) / 2, -1)


def sign_test_p(faster: int, slower: int, n: int) -> float:
    """Two-sided p of the exact sign test over n pairs; those of neither direction count for neither and stay in n.

    Example:
        >>> sign_test_p(6, 0, 6), sign_test_p(5, 0, 6), sign_test_p(0, 0, 6)
        (0.03125, 0.21875, 1.0)
    """
    from scipy.stats import binomtest

    return min(1.0, 2 * float(binomtest(max(faster, slower), n, alternative="greater").pvalue))


def restricted_difference(pairs: Sequence[tuple[Convergence, Convergence]], horizon: int) -> Judgement:
    """Mean of the baseline's minus the mask's restricted epochs over the pairs, with the exact interval and p.

    It says how many epochs the mask saves up to the horizon; the protocol decides nothing by it.
    """
    differences = [restricted_epochs(b, horizon) - restricted_epochs(m, horizon) for b, m in pairs]
    judged = judge_values(differences)
    mean = float(np.mean(differences)) if differences else None
    return replace(judged, estimate_low=mean, estimate_high=mean)


def judge_values(
    values: Sequence[float] | np.ndarray, above: float = 0.0, below: float | None = None, fewest: int = FEWEST_PAIRS
) -> Judgement:
    """Whether the centre of values, one a seed or a task, lies above a bound (supported) or below one (contradicted).

    Args:
        values: finite.
        above: what the interval must lie above for `SUPPORTED`.
        below: what it must lie below for `CONTRADICTED`; None: `above` as well. p is of this bound where that is the verdict, else of
            `above`.
        fewest: with fewer values nothing is tested.

    Example:
        >>> judge_values([0.1, 0.2, 0.9, 0.4, 0.5, 0.3]).verdict
        <Verdict.SUPPORTED: 'supported'>
    """
    known = np.asarray(values, float)
    if len(known) < fewest:
        return Judgement(Verdict.NOT_TESTED, len(known))
    below = above if below is None else below
    p = sign_flip_p(known - above)
    low, high = sign_flip_interval(known)
    if p <= LEVEL and np.sum(known - above) > 0:
        verdict = Verdict.SUPPORTED
    elif np.sum(known - below) < 0 and (p_below := sign_flip_p(known - below)) <= LEVEL:
        verdict, p = Verdict.CONTRADICTED, p_below
    else:
        verdict = Verdict.UNDECIDED
    estimate = float(hodges_lehmann(known))
    return Judgement(verdict, len(known), "sign_flip", p, estimate, estimate, float(low), float(high))


def judge_speed(pairs: Sequence[tuple[Convergence, Convergence]], fewest: int = FEWEST_PAIRS) -> Judgement:
    """Whether a mask is faster than the baseline, from (baseline, mask) pairs; estimate and interval are speed-ups.

    No pair censored: the sign-flip test on log ratios. Otherwise the exact sign test, and what is known of estimate and
    interval. Pairs with an unfinished run that has not reached its threshold are no pairs yet.

    Example:
        >>> pairs = [(Convergence(a, True), Convergence(b, True)) for a, b in zip([36, 40, 30, 50, 44, 38], [14, 9, 7, 20, 11, 15])]
        >>> judged = judge_speed(pairs)
        >>> judged.verdict.value, judged.p, round(judged.low, 2), round(judged.high, 2)
        ('supported', 0.03125, 2.5, 4.44)
    """
    ratios = [speed_up(b, m) for b, m in pairs if (b.reached or b.finished) and (m.reached or m.finished)]
    n = len(ratios)
    if n < fewest:
        return Judgement(Verdict.NOT_TESTED, n)
    with np.errstate(divide="ignore"):  # a ratio of 0: nothing is known below
        lows, highs = np.log([ratio.lower for ratio in ratios]), np.log([ratio.upper for ratio in ratios])
    if all(ratio.exact for ratio in ratios):
        test, p, towards = "sign_flip", sign_flip_p(lows), float(np.sum(lows))
    else:
        faster, slower = (sum(ratio.direction == way for ratio in ratios) for way in ("faster", "slower"))
        test, p, towards = "sign", sign_test_p(faster, slower, n), float(faster - slower)
    verdict = Verdict.UNDECIDED
    if p <= LEVEL:
        verdict = Verdict.SUPPORTED if towards > 0 else Verdict.CONTRADICTED
    ends = hodges_lehmann(lows), hodges_lehmann(highs), *sign_flip_interval(lows, highs)
    return as_ratios(Judgement(verdict, n, test, p, *map(float, ends)))


def judge_speed_over_tasks(
    pairs: Mapping[str, Sequence[tuple[Convergence, Convergence]]], horizons: Mapping[str, int]
) -> tuple[Judgement, Judgement]:
    """Whether a mask is faster on average over these tasks, and on tasks of their kind; estimates are speed-ups.

    Args:
        pairs: by task, (baseline, mask) pairs of the same seeds in the same order.
        horizons: by task; see :func:`restricted_epochs`.

    Returns:
        With seeds as units (each value is a seed's mean over the tasks, so tasks need not be independent), and with tasks
        as units (a task's mean over the seeds).
    """
    if len({len(of_task) for of_task in pairs.values()}) > 1:
        raise ValueError(f"the tasks have {[len(of_task) for of_task in pairs.values()]} pairs; allowed: equally many")
    # Restricted epochs are known whatever the censoring, and their log ratio is symmetric about 0 if masks are alike.
    logs = np.array([
        [math.log(restricted_epochs(b, horizons[task]) / restricted_epochs(m, horizons[task])) for b, m in of_task]
        for task, of_task in pairs.items()
    ])  # fmt: skip
    by_seed, by_task = (as_ratios(judge_values(logs.mean(axis))) for axis in (0, 1))
    return by_seed, by_task


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p, in the order given: each is ≤ α exactly where Holm's procedure rejects at α.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    steps = np.asarray(p_values, float)[order] * np.arange(len(order), 0, -1)
    adjusted = np.empty(len(order))
    adjusted[order] = np.minimum(1, np.maximum.accumulate(steps))
    return adjusted.tolist()


def with_holm(judgements: Mapping[str, Judgement]) -> dict[str, Judgement]:
    """The tasks of one claim with `p_holm`. A task that was not tested stays in the family, with p = 1."""
    adjusted = holm([1.0 if judged.p is None else judged.p for judged in judgements.values()])
    return {
        name: judged if judged.p is None else replace(judged, p_holm=p)
        for (name, judged), p in zip(judgements.items(), adjusted, strict=True)
    }


def _countable(n: int) -> None:
    if not 1 <= n <= MOST_VALUES:
        raise ValueError(f"{n} values have 2^{n} sign flips; allowed: 1 to {MOST_VALUES} values")


def as_ratios(judged: Judgement) -> Judgement:
    """A judgement of logarithms as one of ratios; what has no bound is None."""
    logs = {name: getattr(judged, name) for name in ("estimate_low", "estimate_high", "low", "high")}
    ratios: dict[str, Any] = {
        name: math.exp(log) if log is not None and math.isfinite(log) else None for name, log in logs.items()
    }
    return replace(judged, **ratios)


def _subset_means(values: np.ndarray) -> np.ndarray:
    """(..., 2ⁿ − 1) means over all subsets but the empty one of values (..., n), of which some may be ∞ (of one sign)."""
    n = values.shape[-1]
    members = (np.arange(1, 2**n)[:, None] >> np.arange(n)) & 1
    finite = np.isfinite(values)
    means = np.where(finite, values, 0.0) @ (members / members.sum(1, keepdims=True)).T
    unknown = np.where(finite, 0.0, np.sign(values)) @ members.T
    return np.where(unknown == 0, means, np.copysign(np.inf, unknown))
