"""Lipschitz estimates of masks at the same weights and at the same training loss (DESIGN §2).

A converged model has small gradients whatever its mask, so epochs cannot be compared: losses are matched, and the start is.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ..schema import ANALYSIS_PREFIX
from ..summary_schema import Matched, MatchedPair, NoMatch
from ..training.run_files import Run
from .statistics import log_interval

LEVELS = 5
"""Training losses at which two runs are compared, evenly spaced in log loss over the range that both went through."""
COMPARED: dict[Literal["gradient_initial", "gradient", "trajectory"], str] = {
    "gradient_initial": "gradient_norm",  # at the same initial weights
    "gradient": "gradient_norm",
    "trajectory": "trajectory_ratio",
}
Curve = Sequence[tuple[float, float]]
Reason = Literal["not_recorded", "baseline_not_recorded", "no_common_loss"]


def matched(runs: Sequence[Run], baseline: str) -> list[Matched]:
    """Each mask's estimates over the baseline's, for each task.

    Args:
        runs: those that recorded something.
        baseline: the mask in the denominator.

    Returns:
        For each task, mask and quantity of `COMPARED`: ``pairs`` (seed, ratio and, where losses are matched, the losses
        ``high`` and ``low`` between which), ``without_pair`` (seed, reason), ``ratio`` (geometric mean over the pairs),
        ``low`` and ``high`` (its 95 % interval, from three pairs on), ``smaller`` and ``larger`` (pairs), and ``verdict``:
        "smaller" or "larger" where the interval lies on that side of 1, "open", or "no pair".
    """
    of = {run.key: run for run in runs}
    entries = []
    for task, mask in dict.fromkeys(run.key[:2] for run in runs if run.key[1] != baseline):
        for name, key in COMPARED.items():
            pairs, without = [], []
            for run in (run for run in runs if run.key[:2] == (task, mask)):
                seed, base = run.key[2], of.get((task, baseline, run.key[2]))
                outcome: dict[str, Any] | Reason = "baseline_not_recorded"
                if base is not None:
                    first, second = base.initial(key), run.initial(key)
                    if name != "gradient_initial":
                        outcome = at_equal_loss(base, run, key)
                    else:
                        outcome = {"ratio": second / first} if first and second else "not_recorded"
                if isinstance(outcome, str):
                    without.append(NoMatch(seed=seed, reason=outcome))
                else:
                    pairs.append(MatchedPair(seed=seed, **outcome))
            entries.append(Matched(task=task, mask=mask, quantity=name, **_summary(pairs), without_pair=without))
    return entries


def at_equal_loss(base: Run, other: Run, key: str) -> dict[str, Any] | Reason:
    """The geometric mean of own/base over `LEVELS` training losses that both runs went through; or why there is none.

    A run's value at a loss is that of the moment when its training loss first fell to it, between two epochs on the
    straight line in logs.

    Returns:
        ``ratio``, ``high`` and ``low`` (the first and last of the losses), ``losses``, and the values there: ``base``, ``own``.
    """
    curves = [_curve(run, ANALYSIS_PREFIX + key) for run in (base, other)]
    if not all(curves):
        return "not_recorded"
    high = min(curve[0][0] for curve in curves)
    low = max(curve[-1][0] for curve in curves)
    if low >= high:
        return "no_common_loss"
    losses = np.geomspace(high, low, LEVELS)
    # Losses fall, and interpolation wants them to rise.
    first, second = (np.interp(np.log(losses), *np.log(curve[::-1]).T) for curve in curves)
    values = {"losses": losses.tolist(), "base": np.exp(first).tolist(), "own": np.exp(second).tolist()}
    return {"ratio": math.exp(np.mean(second - first)), "high": high, "low": low, **values}


def _curve(run: Run, key: str) -> Curve:
    """(training loss, value) of the epochs at which the training loss was lower than ever before; losses fall."""
    points: list[tuple[float, float]] = []
    lowest = math.inf
    for row in run.history:
        loss, value = row.train_loss, row.get(key)
        if loss is None or not 0 < loss < lowest:
            continue
        lowest = loss
        if value is not None and value > 0:
            points.append((loss, value))
    return points


def _summary(pairs: Sequence[MatchedPair]) -> dict[str, Any]:
    logs = np.log([pair.ratio for pair in pairs])
    low, high, kind = log_interval(logs)
    verdict = "open" if pairs else "no pair"
    if low is not None and high is not None and (low > 1 or high < 1):
        verdict = "larger" if low > 1 else "smaller"
    return {
        "pairs": list(pairs),
        "ratio": math.exp(logs.mean()) if pairs else None,
        "low": low,
        "high": high,
        "interval_kind": kind,
        "smaller": int((logs < 0).sum()),
        "larger": int((logs > 0).sum()),
        "verdict": verdict,
    }
