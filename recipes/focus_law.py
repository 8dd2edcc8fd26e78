"""The law of focus: the rules of `docs/protocol.md` (tier 3) as functions. Each gives one number a seed, and a judgement of them.

y is the logarithm of a run's restricted epochs to τ. Runs are those of two masks ("full" and the sparse one) unless said.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hf_semfocus.training.paired_tests import LEVEL, Judgement, Verdict, judge_values

SHARPNESS = ("gain", "temperature")  # ways that leave attention a softmax of the layer's own scores
NO_ADVANTAGE = np.log(1.1)  # an advantage below 10 % counts as none
EXPLAINED = 0.5
PREDICTORS = ("entropy", "dispersion", "mask", "gain", "entropy and mask")


@dataclass(frozen=True)
class FocusRun:
    """One run of the sweep.

    Args:
        task, seed, mask: as in the comparison.
        kind: what was changed: "gain", "temperature", "qk_norm", "entmax15" or "sparsemax".
        gain: attention gain.
        log_epochs: y.
        entropy: H, normalised, of the untrained model's attention.
        dispersion: mean δ of all valid scores, likewise.
    """

    task: str
    seed: int
    mask: str
    kind: str
    gain: float
    log_epochs: float
    entropy: float
    dispersion: float


def matched(runs: Sequence[FocusRun], mask: str, baseline: str = "full") -> tuple[Judgement, tuple[str, ...]]:
    """`focus:matched`: the log speed-up of `mask` at equal initial entropy, and the tasks that it rests on.

    A task without two runs of either mask where their entropies overlap, or whose regression is not determined, is left
    out for all seeds.
    """
    own = [run for run in runs if run.kind in SHARPNESS and run.mask in (mask, baseline)]
    seeds = _seeds(own)
    designs = {}
    for task in _tasks(own):
        found = [_design([r for r in own if (r.task, r.seed) == (task, seed)], mask, baseline) for seed in seeds]
        if all(design is not None for design in found):
            designs[task] = found
    if not designs:
        return Judgement(Verdict.NOT_TESTED, 0), ()
    values = []
    for index in range(len(seeds)):
        parts = [designs[task][index] for task in designs]
        # Level and curve are each task's own, the mask's effect is common.
        columns = [np.pad(curve, ((0, 0), (3 * i, 3 * (len(parts) - 1 - i)))) for i, (curve, _, _) in enumerate(parts)]
        effect = np.concatenate([sparse for _, sparse, _ in parts])
        design = np.column_stack([np.concatenate(columns), effect])
        values.append(-np.linalg.lstsq(design, np.concatenate([y for _, _, y in parts]), rcond=None)[0][-1])
    return judge_values(values, above=0.0, below=NO_ADVANTAGE), tuple(designs)


def _design(runs: Sequence[FocusRun], mask: str, baseline: str) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    entropies = {name: [run.entropy for run in runs if run.mask == name] for name in (mask, baseline)}
    if not all(entropies.values()):
        return None
    low, high = max(map(min, entropies.values())), min(map(max, entropies.values()))
    near = [run for run in runs if low <= run.entropy <= high]
    entropy = np.array([run.entropy for run in near])
    sparse = np.array([float(run.mask == mask) for run in near])
    curve = np.column_stack([np.ones_like(entropy), entropy, entropy**2])
    determined = len(near) > 3 and np.linalg.matrix_rank(np.column_stack([curve, sparse])) == 4
    if min(sparse.sum(), len(near) - sparse.sum()) < 2 or not determined:
        return None
    return curve, sparse, np.array([run.log_epochs for run in near])


def explains(runs: Sequence[FocusRun]) -> Mapping[str, tuple[Judgement, Judgement]]:
    """`focus:explains`: by predictor, R² on the task left out, and R² within the tasks of the fit, each a value a seed.

    y and predictors are centred in each task and seed, so differences are predicted and not levels.
    """
    masks = sorted({run.mask for run in runs})
    scores: dict[str, list[tuple[float, float]]] = {name: [] for name in PREDICTORS}
    for seed in _seeds(runs):
        parts = {task: [run for run in runs if (run.task, run.seed) == (task, seed)] for task in _tasks(runs)}
        y = {task: _centred(np.array([[run.log_epochs] for run in own])) for task, own in parts.items()}
        for name in PREDICTORS:
            x = {task: _centred(_predictors(name, own, masks)) for task, own in parts.items()}
            outside, inside = np.zeros(2), np.zeros(2)
            for left_out in parts:
                fit = [task for task in parts if task != left_out]
                xs, ys = np.concatenate([x[task] for task in fit]), np.concatenate([y[task] for task in fit])
                slope = np.linalg.lstsq(xs, ys, rcond=None)[0]
                outside += np.sum((y[left_out] - x[left_out] @ slope) ** 2), np.sum(y[left_out] ** 2)
                inside += np.sum((ys - xs @ slope) ** 2), np.sum(ys**2)
            scores[name].append((1 - outside[0] / outside[1], 1 - inside[0] / inside[1]))
    return {
        name: (
            judge_values([v for v, _ in found], above=EXPLAINED),
            judge_values([v for _, v in found], above=EXPLAINED),
        )
        for name, found in scores.items()
    }


def _predictors(name: str, runs: Sequence[FocusRun], masks: Sequence[str]) -> np.ndarray:
    entropy = np.array([run.entropy for run in runs])
    dispersion = np.log([run.dispersion for run in runs])
    by_mask = np.array([[float(run.mask == mask) for mask in masks[1:]] for run in runs])
    return {
        "entropy": np.column_stack([entropy, entropy**2]),
        "dispersion": np.column_stack([dispersion, dispersion**2]),
        "mask": by_mask,
        "gain": np.log([[run.gain] for run in runs]),
        "entropy and mask": np.column_stack([entropy, entropy**2, by_mask]),
    }[name]


def vanishes(runs: Sequence[FocusRun], mask: str, baseline: str = "full") -> Judgement:
    """`focus:vanishes`: minus the slope of the log ratio on the logarithm of the gain, mean over tasks: above 0 it falls."""
    own = [run for run in runs if run.kind == "gain"]
    values = []
    for seed in _seeds(own):
        slopes = []
        for task in _tasks(own):
            ratios = _log_ratios([run for run in own if (run.task, run.seed) == (task, seed)], mask, baseline)
            slopes.append(np.polyfit(np.log(list(ratios)), list(ratios.values()), 1)[0])
        values.append(-np.mean(slopes))
    return judge_values(values)


def exception(runs: Sequence[FocusRun], task: str, mask: str, baseline: str = "full", gain: float = 1.0) -> Judgement:
    """`focus:exception`: the log ratio of `task` less the mean of the others'; *supported* whichever way it differs."""
    own = [run for run in runs if run.kind == "gain" and run.gain == gain]
    values = []
    for seed in _seeds(own):
        ratios = {
            name: _log_ratios([run for run in own if (run.task, run.seed) == (name, seed)], mask, baseline)[gain]
            for name in _tasks(own)
        }
        values.append(ratios.pop(task) - np.mean(list(ratios.values())))
    judged = judge_values(values)
    differs = judged.p is not None and judged.p <= LEVEL
    return replace(judged, verdict=Verdict.SUPPORTED) if differs else judged


def _log_ratios(runs: Sequence[FocusRun], mask: str, baseline: str) -> dict[float, float]:
    """By gain, where both masks have a run."""
    by_mask = {name: {run.gain: run.log_epochs for run in runs if run.mask == name} for name in (mask, baseline)}
    return {
        gain: by_mask[baseline][gain] - by_mask[mask][gain]
        for gain in sorted(by_mask[mask])
        if gain in by_mask[baseline]
    }


def _centred(values: np.ndarray) -> np.ndarray:
    return values - values.mean(0)


def _tasks(runs: Sequence[FocusRun]) -> list[str]:
    return sorted({run.task for run in runs})


def _seeds(runs: Sequence[FocusRun]) -> list[int]:
    return sorted({run.seed for run in runs})
