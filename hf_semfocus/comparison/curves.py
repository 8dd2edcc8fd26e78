"""Curves over many runs: the share that has reached its threshold, and performance profiles. Pure functions of numbers."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..schema import Convergence


@dataclass(frozen=True)
class ReachedCurve:
    """Kaplan–Meier: the share of runs that have reached the threshold by each of these epochs, with a 95 % band.

    All (m,), m the number of distinct epochs at which a run reached it or ended; `low` and `high` may be NaN at the ends.
    """

    epochs: np.ndarray
    share: np.ndarray
    low: np.ndarray
    high: np.ndarray


def reached_curve(runs: Sequence[Convergence]) -> ReachedCurve:
    """The Kaplan–Meier curve of "reached the threshold" over the runs of one mask on one task.

    A diverged run will never get there, so it stays at risk until the last epoch of any run or budget. The band is the
    log–log one (`scipy.stats.ecdf`).

    Example:
        >>> reached_curve([Convergence(3, True), Convergence(5, False), Convergence(8, True)]).share.round(2).tolist()
        [0.33, 0.33, 1.0]
    """
    from scipy.stats import CensoredData, ecdf

    last = max(max(run.epochs, run.budget or 0) for run in runs)
    epochs = [last if run.diverged and not run.reached else run.epochs for run in runs]
    cdf = ecdf(CensoredData.right_censored(epochs, [not run.reached for run in runs])).cdf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the log–log band is not defined at shares of 0 and 1
        band = cdf.confidence_interval(0.95, method="log-log")
    return ReachedCurve(np.asarray(cdf.quantiles), cdf.probabilities, band.low.probabilities, band.high.probabilities)


def performance_profile(
    runs: Mapping[str, Sequence[Convergence]], factors: Sequence[float] | np.ndarray
) -> dict[str, np.ndarray]:
    """For each mask the share of cases whose epochs are within a factor of the best mask's in that case.

    Dolan and Moré 2002, "Benchmarking optimization software with performance profiles". A run that did not get there is
    within no factor, and a case that no mask learnt stays in the count.

    Args:
        runs: by mask, one run a case (task and seed), in the same order for all masks.
        factors: ≥ 1, (f,).

    Returns:
        By mask (f,).
    """
    epochs = np.array([[run.epochs if run.reached else np.inf for run in of_mask] for of_mask in runs.values()], float)
    best = epochs.min(0)
    ratios = np.divide(epochs, best, out=np.full_like(epochs, np.inf), where=np.isfinite(best))
    within = ratios[..., None] <= np.asarray(factors, float)
    return dict(zip(runs, within.mean(1), strict=True))
