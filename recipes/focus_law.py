"""The law of focus: the rules of `docs/protocol.md` (tier 3) as functions. Each gives one number a seed, and a judgement of them.

python recipes/focus_law.py runs/tier3
python recipes/focus_law.py runs/tier3 --output law.json     # for `semfocus advise TASK --evidence law.json`

y is the logarithm of a run's restricted epochs to τ. Runs are those of two masks ("full" and `MASK`) unless said.
"""

import argparse
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from hf_semfocus.comparison.paired_tests import LEVEL, Judgement, Verdict, as_ratios, judge_values
from hf_semfocus.comparison.run_directory import RunDirectory
from hf_semfocus.comparison.statistics import restricted_epochs
from hf_semfocus.experiments.spec import RunSpec
from hf_semfocus.files import write_json
from hf_semfocus.schema import FINISHED
from hf_semfocus.training.results import untrained_attention
from hf_semfocus.training.run_files import Run

FORMAT = 1
MASK = "topk:5"
EXCEPTION = "stack_manipulation"
TASKS = ("even_pairs", "missing_duplicate_string", EXCEPTION)  # of the protocol
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
        label: the variant, or the mask; runs of one label differ in task and seed alone.
        change: the options that make it of full attention as it is.
        censored: it ended without τ.
    """

    task: str
    seed: int
    mask: str
    kind: str
    gain: float
    log_epochs: float
    entropy: float
    dispersion: float
    label: str = ""
    change: str = ""
    censored: bool = False


def read_focus_runs(run_dir: Path) -> list[FocusRun]:
    """The runs of a sweep that say how many epochs they took. Runs that recorded no untrained attention are measured again.

    Raises:
        ValueError: `run_dir` is no run directory, or cannot be read.
    """
    return [known for run in RunDirectory.read(run_dir).runs if (known := focus_run(run)) is not None]


def focus_run(run: Run) -> FocusRun | None:
    """A run in the law's numbers; None for one that has not ended."""
    if run.status not in FINISHED:
        return None
    epochs = run.convergence("train")
    start = (run.result and run.result.initial_attention) or untrained_attention(RunSpec.from_dict(run.spec.to_json()))
    if start is None or start.entropy is None or start.dispersion_all is None:
        raise ValueError(f"{run.folder} has inputs of one token, which have no entropy")
    model, normalizer = run.spec.model, run.spec.model.get("normalizer", "softmax")
    kinds = (("qk_norm", model.get("qk_norm")), ("temperature", model.get("attention_scale") is not None))
    kind = next((name for name, holds in kinds if holds), "gain") if normalizer == "softmax" else normalizer
    return FocusRun(
        run.spec.task, run.spec.seed, run.spec.mask, kind, start.attention_gain,
        math.log(restricted_epochs(epochs, run.spec.training.epochs)), start.entropy,
        start.dispersion_all, run.label, _change(run), not epochs.reached,
    )  # fmt: skip


def _change(run: Run) -> str:
    """What a command line adds to full attention as it is: "--mask topk:5 --set model.attention_gain=2.0"."""
    words = [] if run.spec.mask == "full" else [f"--mask {run.spec.mask}"]
    names = ("attention_gain", "target_entropy", "attention_scale", "qk_norm", "qk_norm_scale", "normalizer")
    given = {name: value for name in names if (value := run.spec.model.get(name)) is not None}
    words += ["--set", *(f"model.{name}={str(value).lower()}" for name, value in given.items())] if given else []
    return " ".join(words)


def summary(runs: Sequence[FocusRun], command: str = "") -> dict[str, Any]:
    """All that the protocol asks of the sweep, as data; `changes` compares each label with full attention as it is.

    A change's values are logarithms of restricted epochs of full attention over its own, one a seed: on each task, and their
    mean over all tasks (task None). Each is judged alone.

    Raises:
        ValueError: there is no run to compare with.
    """
    baseline = {(run.task, run.seed): run for run in runs if run.label == "full"}
    if not baseline:
        raise ValueError("no run of full attention as it is has ended; nothing can be compared")
    tasks, labels = _tasks(runs), list(dict.fromkeys(run.label for run in runs if run.label != "full"))
    groups, changes = [], []
    for label in ["full", *labels]:
        of_label = {(run.task, run.seed): run for run in runs if run.label == label}
        logs = {key: baseline[key].log_epochs - run.log_epochs for key, run in of_label.items() if key in baseline}
        for task in tasks:
            group = [run for run in of_label.values() if run.task == task]
            if group:
                means = {
                    name: fmean(getattr(run, name) for run in group) for name in ("entropy", "dispersion", "gain")
                }
                epochs = math.exp(fmean(run.log_epochs for run in group))
                counts = {"runs": len(group), "censored": sum(run.censored for run in group)}
                groups.append({"label": label, "task": task, **counts, "epochs": epochs, **means})
        if label == "full":
            continue
        complete = [seed for seed in _seeds(runs) if all((task, seed) in logs for task in tasks)]
        values: dict[str | None, list[float]] = {
            task: [logs[task, seed] for seed in _seeds(runs) if (task, seed) in logs] for task in tasks
        }
        values[None] = [fmean(logs[task, seed] for task in tasks) for seed in complete]
        change = next(iter(of_label.values())).change
        changes += [
            {"label": label, "change": change, "task": task, **asdict(as_ratios(judge_values(ratios)))}
            for task, ratios in values.items()
        ]
    entropies = [run.entropy for run in baseline.values()]
    return {
        "format": FORMAT,
        "command": command,
        "tasks": tasks,
        "seeds": _seeds(runs),
        "runs": len(runs),
        "censored": sum(run.censored for run in runs),
        "baseline_entropy": [min(entropies), max(entropies)],
        "judged_labels": common_labels(runs),
        "judgements": _judgements(runs),
        "changes": changes,
        "groups": groups,
    }


def _judgements(runs: Sequence[FocusRun]) -> dict[str, Any]:
    """The protocol's four rules, on `of_common_labels`; None where runs are missing that a rule needs."""
    rules = dict.fromkeys(("focus:matched", "focus:explains", "focus:vanishes", "focus:exception"))
    runs = of_common_labels(runs)
    if set(_tasks(runs)) != set(TASKS) or not {"full", MASK} <= {run.label for run in runs}:
        return rules
    rules["focus:exception"] = asdict(as_ratios(exception(runs)))
    if swept_gains(runs):
        judged, overlapping = matched(runs)
        rules["focus:matched"] = {"tasks": overlapping, **asdict(as_ratios(judged))}
        rules["focus:explains"] = {
            name: {"left_out": asdict(outside), "within": asdict(inside)}
            for name, (outside, inside) in explains(runs).items()
        }
        rules["focus:vanishes"] = asdict(vanishes(runs))
    return rules


def swept_gains(runs: Sequence[FocusRun]) -> bool:
    """Whether there is more than one gain at which both masks have runs."""
    by_mask = [{run.gain for run in runs if (run.kind, run.mask) == ("gain", mask)} for mask in ("full", MASK)]
    return len(by_mask[0] & by_mask[1]) > 1


def of_common_labels(runs: Sequence[FocusRun]) -> list[FocusRun]:
    """Those of `common_labels`."""
    labels = common_labels(runs)
    return [run for run in runs if run.label in labels]


def common_labels(runs: Sequence[FocusRun]) -> list[str]:
    """The labels that every task has in every seed: what is judged over the tasks."""
    by_pair = {(task, seed): set[str]() for task in _tasks(runs) for seed in _seeds(runs)}
    for run in runs:
        by_pair[run.task, run.seed].add(run.label)
    return [
        label for label in dict.fromkeys(run.label for run in runs) if all(label in has for has in by_pair.values())
    ]


def matched(runs: Sequence[FocusRun]) -> tuple[Judgement, tuple[str, ...]]:
    """`focus:matched`: the log speed-up of `MASK` at equal initial entropy, and the tasks that it rests on.

    A task without two runs of either mask where their entropies overlap, or whose regression is not determined, is left
    out for all seeds.
    """
    compared = [run for run in runs if run.kind in SHARPNESS and run.mask in ("full", MASK)]
    seeds = _seeds(compared)
    designs = {}
    for task in _tasks(compared):
        of_task = [_design([r for r in compared if (r.task, r.seed) == (task, seed)]) for seed in seeds]
        known = [design for design in of_task if design is not None]
        if len(known) == len(seeds):
            designs[task] = known
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


def _design(runs: Sequence[FocusRun]) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    entropies = {name: [run.entropy for run in runs if run.mask == name] for name in ("full", MASK)}
    if not all(entropies.values()):
        return None
    low, high = max(map(min, entropies.values())), min(map(max, entropies.values()))
    near = [run for run in runs if low <= run.entropy <= high]
    entropy = np.array([run.entropy for run in near])
    sparse = np.array([float(run.mask == MASK) for run in near])
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
        y = {task: np.array([[run.log_epochs] for run in of_task]) for task, of_task in parts.items()}
        y = {task: values - values.mean(0) for task, values in y.items()}
        for name in PREDICTORS:
            x = {task: _centred_predictors(name, of_task, masks) for task, of_task in parts.items()}
            outside, inside = np.zeros(2), np.zeros(2)
            for left_out in parts:
                fit = [task for task in parts if task != left_out]
                xs, ys = np.concatenate([x[task] for task in fit]), np.concatenate([y[task] for task in fit])
                slope = np.linalg.lstsq(xs, ys, rcond=None)[0]
                outside += np.sum((y[left_out] - x[left_out] @ slope) ** 2), np.sum(y[left_out] ** 2)
                inside += np.sum((ys - xs @ slope) ** 2), np.sum(ys**2)
            scores[name].append((1 - outside[0] / outside[1], 1 - inside[0] / inside[1]))
    left_out_too, fitted = (
        {name: judge_values([pair[side] for pair in pairs], above=EXPLAINED) for name, pairs in scores.items()}
        for side in (0, 1)
    )
    return {name: (left_out_too[name], fitted[name]) for name in scores}


def _centred_predictors(name: str, runs: Sequence[FocusRun], masks: Sequence[str]) -> np.ndarray:
    entropy = np.array([run.entropy for run in runs])
    dispersion = np.log([run.dispersion for run in runs])
    by_mask = np.array([[float(run.mask == mask) for mask in masks[1:]] for run in runs])
    columns = {
        "entropy": np.column_stack([entropy, entropy**2]),
        "dispersion": np.column_stack([dispersion, dispersion**2]),
        "mask": by_mask,
        "gain": np.log([[run.gain] for run in runs]),
        "entropy and mask": np.column_stack([entropy, entropy**2, by_mask]),
    }[name]
    return columns - columns.mean(0)


def vanishes(runs: Sequence[FocusRun]) -> Judgement:
    """`focus:vanishes`: minus the slope of the log ratio on the logarithm of the gain, mean over tasks: above 0 it falls."""
    by_gain = [run for run in runs if run.kind == "gain"]
    values = []
    for seed in _seeds(by_gain):
        slopes = []
        for task in _tasks(by_gain):
            ratios = _log_ratios([run for run in by_gain if (run.task, run.seed) == (task, seed)])
            slopes.append(np.polyfit(np.log(list(ratios)), list(ratios.values()), 1)[0])
        values.append(-np.mean(slopes))
    return judge_values(values)


def exception(runs: Sequence[FocusRun]) -> Judgement:
    """`focus:exception`: the log ratio of `EXCEPTION` at gain 1 less the mean of the others'; *supported* whichever way it differs."""
    at_gain = [run for run in runs if run.kind == "gain" and run.gain == 1]
    values = []
    for seed in _seeds(at_gain):
        ratios = {
            name: _log_ratios([run for run in at_gain if (run.task, run.seed) == (name, seed)])[1]
            for name in _tasks(at_gain)
        }
        values.append(ratios.pop(EXCEPTION) - float(np.mean(list(ratios.values()))))
    judged = judge_values(values)
    differs = judged.p is not None and judged.p <= LEVEL
    return replace(judged, verdict=Verdict.SUPPORTED) if differs else judged


def _log_ratios(runs: Sequence[FocusRun]) -> dict[float, float]:
    """By gain, where both masks have a run."""
    by_mask = {name: {run.gain: run.log_epochs for run in runs if run.mask == name} for name in ("full", MASK)}
    return {
        gain: by_mask["full"][gain] - by_mask[MASK][gain] for gain in sorted(by_mask[MASK]) if gain in by_mask["full"]
    }


def _tasks(runs: Sequence[FocusRun]) -> list[str]:
    return sorted({run.task for run in runs})


def _seeds(runs: Sequence[FocusRun]) -> list[int]:
    return sorted({run.seed for run in runs})


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads sweeps, prints what the rules say, and writes the summary."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "run_dirs", nargs="+", type=Path, metavar="RUN_DIR", help="of `semfocus compare`, all one sweep"
    )
    parser.add_argument("--output", type=Path, help="write the summary there, as JSON")
    options = parser.parse_args(arguments)
    try:
        runs = [run for folder in options.run_dirs for run in read_focus_runs(folder)]
        count = Counter((run.task, run.label, run.seed) for run in runs)
        if twice := next((key for key in count if count[key] > 1), None):
            raise ValueError(f"two folders hold the run {twice}; give each run once")
        result = summary(runs, " ".join(["python recipes/focus_law.py", *(path.name for path in options.run_dirs)]))
        if options.output is not None:
            write_json(options.output, result)
    except (ValueError, OSError) as error:
        print(f"focus_law: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    print(f"{result['runs']} runs, {result['censored']} of them censored")
    for group in result["groups"]:
        print(
            f"{group['task']:26} {group['label']:24} {group['epochs']:6.1f} epochs ({group['runs']} runs, "
            f"{group['censored']} censored)  H {group['entropy']:.3f}  δ {group['dispersion']:.2f}"
        )
    for name, judged in result["judgements"].items():
        print(f"{name}: {judged.get('verdict', judged) if judged else 'not tested: the sweep has not what it needs'}")


if __name__ == "__main__":
    main()
