"""Does the theory predict what happened? The recorded quantities of each task and mask beside its speed-up (DESIGN §2)."""

import math
import re
from collections.abc import Sequence
from statistics import fmean, median
from typing import Any, Literal

import numpy as np
from scipy.stats import spearmanr

from ..schema import ANALYSIS_PREFIX, Epoch, finite
from ..summary_schema import Analysis, Correlation, SpeedUpEntry, Unit
from ..training.run_files import Run
from .matched import matched

# What each quantity should do to the speed-up where the paper's account is right: the sign of the rank correlation.
PREDICTED = {
    "dispersion_ratio": -1,  # smaller dispersion of what is kept, δ_h / δ_s
    "separation": 1,  # larger Δ
    "improvement_share": 1,  # more queries with ξ_h < ξ_s
    "mask_stability": 1,  # more kept keys that stay kept under noise; of masks that choose by the scores
    "gradient_ratio_initial": -1,  # smaller ‖∇loss‖ than the baseline's at the same weights
    "gradient_ratio_matched": -1,  # … and at the same training loss
    "trajectory_ratio_matched": -1,  # smaller |Δloss| / ‖Δθ‖ along the path, at the same training loss
}
RATIOS = {
    "gradient_ratio_initial": "gradient_initial",
    "gradient_ratio_matched": "gradient",
    "trajectory_ratio_matched": "trajectory",
}
FEWEST_TASKS = 6
RESAMPLES = 2000


def predictions(runs: Sequence[Run], baseline: str, speedups: Sequence[SpeedUpEntry]) -> Analysis | None:
    """The analysis section of a summary; None where no run recorded anything.

    Args:
        runs: all runs of a run directory.
        baseline: the mask that the others are compared with.
        speedups: the summary's entries for training accuracy.

    Returns:
        ``units``: for each task and mask the speed-up (ratio of restricted mean epochs, which censoring leaves defined;
        ``censored`` says whether a run was) and the mean over its seeds of each quantity, None where it is not defined;
        ``correlations``: for each quantity Spearman's ρ with the speed-up, over the units that have both, with a 95 %
        interval by resampling tasks, or None with fewer than six tasks (then there are the points only) or with ranks that
        are all equal; ``k_sweep``: the units of ``topk:k`` masks by k, where there are two or more; ``matched``: the
        Lipschitz estimates at the same weights and at the same training loss, see :func:`matched`.
    """
    recorded = [run for run in runs if run.counts and _final(run) is not None]
    if not recorded:
        return None
    compared = matched(recorded, baseline)
    ratios: dict[tuple[str, str, str], float | None] = {
        (entry.task, entry.mask, entry.quantity): entry.ratio for entry in compared
    }
    entries = {(entry.task, entry.mask): entry for entry in speedups if entry.quantity == "train"}
    units = []
    for task, mask in dict.fromkeys(run.key[:2] for run in recorded):
        of_cell = [run for run in recorded if run.key[:2] == (task, mask)]
        entry = entries.get((task, mask))
        finals = [row for run in of_cell if (row := _final(run))]
        path = [run.values(f"{ANALYSIS_PREFIX}trajectory_ratio") for run in of_cell]
        numbers: dict[str, float | None] = {
            "heldout": _mean(
                [run.values("heldout_accuracy")[-1] for run in of_cell if run.values("heldout_accuracy")]
            ),
            "trajectory_median": _mean([median(values) for values in path if values]),
            "trajectory_max": max((max(values) for values in path if values), default=None),
        }
        for name, key in (
            ("dispersion_ratio", "dispersion_ratio"),
            ("dispersion", "dispersion_mask_mean"),
            ("separation", "separation_mean"),
            ("improvement_share", "improvement_share"),
            ("mask_stability", "mask_stability"),
        ):
            numbers[name] = _mean([row.get(ANALYSIS_PREFIX + key) for row in finals])
            numbers[f"{name}_initial"] = _mean([run.initial(key) for run in of_cell])
        for name, quantity in RATIOS.items():
            numbers[name] = 1.0 if mask == baseline else ratios.get((task, mask, quantity))
        units.append(
            Unit(
                task=task,
                mask=mask,
                k=_only_k(of_cell[0].spec.mask),
                runs=len(of_cell),
                speedup=1.0 if mask == baseline else entry.restricted_mean_ratio if entry else None,
                censored=any(not run.convergence("train").reached for run in of_cell),
                epochs=[run.convergence("train") for run in of_cell],
                **{name: finite(value) for name, value in numbers.items()},
            )
        )
    others = [unit for unit in units if unit.mask != baseline]
    sweep = sorted((unit for unit in others if unit.k), key=lambda unit: unit.k or 0)
    return Analysis(
        units=units,
        correlations=[_correlation(name, sign, others) for name, sign in PREDICTED.items()],
        k_sweep=sweep if len({unit.k for unit in sweep}) > 1 else [],
        matched=compared,
    )


def _final(run: Run) -> Epoch | None:
    """The last epoch whose quantities were recorded; None without one."""
    return next((row for row in reversed(run.history) if row.analysed), None)


def _only_k(mask: str) -> int | None:
    """k of a mask that is one ``topk:k`` and nothing else."""
    found = re.fullmatch(r"topk:(\d+)", mask)
    return int(found[1]) if found else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _correlation(name: str, predicted: int, units: Sequence[Unit]) -> Correlation:
    points = [
        (unit.task, value, unit.speedup)
        for unit in units
        if (value := unit[name]) is not None and unit.speedup is not None
    ]
    tasks = sorted({task for task, _, _ in points})
    counts: dict[str, Any] = {"quantity": name, "predicted": predicted, "n": len(points), "tasks": len(tasks)}
    rho = _rho(points) if len(tasks) >= FEWEST_TASKS else None
    if rho is None:
        verdict: Literal["too few tasks", "not defined"] = (
            "too few tasks" if len(tasks) < FEWEST_TASKS else "not defined"
        )
        return Correlation(**counts, rho=None, low=None, high=None, verdict=verdict)
    generator = np.random.default_rng(0)
    drawn = []
    for _ in range(RESAMPLES):
        chosen = generator.choice(len(tasks), len(tasks))
        value = _rho([point for index in chosen for point in points if point[0] == tasks[index]])
        if value is not None:
            drawn.append(value)
    low, high = np.quantile(drawn, [0.025, 0.975]).tolist()
    found: Literal["open", "as predicted", "against the prediction"] = "open"
    if low > 0 or high < 0:
        found = "as predicted" if (low > 0) == (predicted > 0) else "against the prediction"
    return Correlation(**counts, rho=rho, low=low, high=high, verdict=found)


def _rho(points: Sequence[tuple[str, float, float]]) -> float | None:
    """Spearman's rank correlation; None where one side's values are all equal."""
    quantities, speedups = ([point[index] for point in points] for index in (1, 2))
    if len(set(quantities)) < 2 or len(set(speedups)) < 2:
        return None
    value = float(spearmanr(quantities, speedups).statistic)
    return value if math.isfinite(value) else None
