"""From a run directory to its summary: what every run did, speed-ups with intervals, accuracies at a common epoch.

Reads the files that the runs wrote and writes `summary.json`, `summary.csv` (a row a run) and `speedups.csv`.
Nothing is skipped in silence: a run that is missing, unfinished, diverged or failed appears as such, and a damaged
file raises.
"""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ..data import task_info
from ..files import write_atomically, write_json
from .run_directory import QUANTITIES, STATUSES, Run, read_experiment, read_runs
from .statistics import Convergence, median_bounds, median_text, speed_up, summarise_pairs
from .theory import predictions

FORMAT = 1


def summarise(run_dir: Path | str) -> dict[str, Any]:
    """The summary of a run directory as plain JSON values (no NaN, no infinity: None).

    A run that was asked for in `experiment.json` and has no `result.json` is "unfinished"; its epochs so far count as
    censored. A failed run gives no pair. Accuracies are compared at the largest epoch that all runs of a task reached
    (failed and diverged runs, and those without an epoch, apart).

    Raises:
        ValueError: `run_dir` is not a run directory, or one of its files is damaged; the message names the file.
    """
    run_dir = Path(run_dir)
    experiment = read_experiment(run_dir)
    runs = read_runs(run_dir, experiment)
    tasks = _ordered(experiment["tasks"], (run.key[0] for run in runs))
    masks = _ordered(experiment["masks"], (run.key[1] for run in runs))
    seeds = _ordered(experiment["seeds"], (run.key[2] for run in runs))
    runs.sort(key=lambda run: (tasks.index(run.key[0]), masks.index(run.key[1]), seeds.index(run.key[2])))

    def of(task: str, mask: str | None = None) -> list[Run]:
        return [run for run in runs if run.key[0] == task and mask in (None, run.key[1])]

    variants = {name: own for name, own in (experiment.get("variants") or {}).items() if name in masks}
    common = {task: _common_epoch(of(task)) for task in tasks}
    baseline = experiment.get("baseline", "full")
    results = [run.result for run in runs if run.result]
    machines = _machines(results)
    speedups = [
        _speedup_entry(task, mask, quantity, of(task, baseline), of(task, mask))
        for task in tasks
        for mask in masks
        for quantity in QUANTITIES
        if mask != baseline and of(task, mask)
    ]
    return {
        "format": FORMAT,
        "name": experiment.get("name"),
        "note": experiment.get("note"),
        "command": experiment.get("command"),
        "created": experiment.get("created"),
        "versions": _merged(result.get("versions") for result in results) or experiment.get("versions") or {},
        "machine": experiment.get("machine") or next((r["machine"] for r in results if r.get("machine")), None),
        **({"earlier": experiment["earlier"]} if experiment.get("earlier") else {}),
        **({"machines": machines} if len(machines) > 1 else {}),
        **{
            name: _common_value(run.spec["training"][name] for run in runs if run.folder)
            for name in ("tau", "heldout_tau")
        },
        "baseline": baseline,
        "tasks": [_task_entry(task, of(task), variants.values()) for task in tasks],
        "masks": masks,
        **({"variants": variants} if variants else {}),
        "seeds": seeds,
        "runs": [_run_entry(run, run_dir) for run in runs],
        "reach": [
            {"task": task, "mask": mask, **{name: found.get(name) for name in ("left", "right", "sees_all", "text")}}
            for task in tasks
            for mask in masks
            if (found := next((r.result["reach"] for r in of(task, mask) if r.result and r.result.get("reach")), None))
        ],
        "aggregates": [
            _aggregate(task, mask, of(task, mask), common[task]) for task in tasks for mask in masks if of(task, mask)
        ],
        "speedups": speedups,
        "analysis": _finite(predictions(runs, baseline, speedups)),
    }


def write_summary(run_dir: Path | str) -> dict[str, Any]:
    """Writes `summary.json`, `summary.csv` and `speedups.csv` into `run_dir`, each whole or not at all; returns the
    summary."""
    run_dir = Path(run_dir)
    summary = summarise(run_dir)
    write_json(run_dir / "summary.json", summary)
    write_atomically(run_dir / "summary.csv", _csv(RUN_COLUMNS, summary["runs"]))
    rows = [
        {**entry, "pairs": "; ".join(_pair_text(pair) for pair in entry["pairs"])} for entry in summary["speedups"]
    ]
    write_atomically(run_dir / "speedups.csv", _csv(SPEEDUP_COLUMNS, rows))
    return summary


RUN_COLUMNS = (
    "task", "mask", "seed", "status", "epochs_trained", "budget", "epochs_to_tau", "epochs_to_heldout_tau",
    "seconds_to_tau", "seconds_to_heldout_tau", "train_seconds", "seconds", "final_train_accuracy",
    "final_heldout_accuracy", "best_heldout_accuracy", "chance", "majority_accuracy", "parameters", "error", "path",
)  # fmt: skip
SPEEDUP_COLUMNS = (
    "task", "mask", "quantity", "text", "n_pairs", "estimate", "estimate_kind", "low", "high", "interval_kind",
    "faster", "slower", "equal", "undetermined", "restricted_mean_ratio", "restricted_at",
    "median_seconds_baseline", "median_seconds_mask", "pairs",
)  # fmt: skip


def _task_entry(task: str, runs: Sequence[Run], variants: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    specs = [run.spec for run in runs if run.folder]
    info = task_info(task, ((specs[0].get("task_options") if specs else None) or {}).get("answer"))
    data: dict[str, Any] = next((run.result["data"] for run in runs if run.result and run.result.get("data")), {})
    shared, differing = _shared(specs)
    first = specs[0] if specs else {}
    compared = {f"model.{name}" for own in variants for name in own}  # that these differ is what is asked about
    return {
        "name": task,
        "level": info.level,
        "kind": info.kind,
        "length": first.get("length"),
        "train_size": first.get("train_size"),
        "test_size": first.get("test_size"),
        "chance": data.get("chance", info.chance),
        "majority_accuracy": data.get("majority_accuracy"),
        "label_histogram": data.get("label_histogram"),
        "tau": shared["training"].get("tau"),
        "heldout_tau": shared["training"].get("heldout_tau"),
        "hyperparameters": shared,
        "differing": [name for name in differing if name not in compared],
    }


def _shared(specs: Sequence[Mapping[str, Any]]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Model and training settings that all specifications share, and the dotted names of those that differ."""
    shared: dict[str, dict[str, Any]] = {}
    differing = []
    for part in ("model", "training", "task_options"):
        values = [spec.get(part) or {} for spec in specs]
        names = dict.fromkeys(name for value in values for name in value)
        same = [name for name in names if all(name in value and value[name] == values[0][name] for value in values)]
        shared[part] = {name: values[0][name] for name in same}
        differing += [f"{part}.{name}" for name in names if name not in same]
    sizes = ("length", "train_size", "validation_size", "test_size")
    differing += [name for name in sizes if any(spec.get(name) != specs[0].get(name) for spec in specs)]
    return shared, differing


def _run_entry(run: Run, run_dir: Path) -> dict[str, Any]:
    task, mask, seed = run.key
    result = run.result or {}
    started = run.folder is not None
    data = result.get("data") or {}

    def reached(quantity: str) -> int | None:
        convergence = run.convergence(quantity) if started else None
        return convergence.epochs if convergence and convergence.reached else None

    heldout, train = run.values("heldout_accuracy"), run.values("train_accuracy")
    return {
        "task": task,
        "mask": mask,
        "seed": seed,
        "status": run.status,
        "diverged": run.diverged,
        "error": result.get("error"),
        **({"stopped": "settled"} if result.get("stopped") == "settled" else {}),
        "epochs_trained": len(run.history),
        "budget": run.spec["training"]["epochs"] if started else None,
        "epochs_to_tau": reached("train"),
        "epochs_to_heldout_tau": reached("heldout"),
        "seconds_to_tau": run.seconds_to("train") if started else None,
        "seconds_to_heldout_tau": run.seconds_to("heldout") if started else None,
        "train_seconds": run.history[-1]["train_seconds"] if run.history else None,
        "seconds": run.history[-1]["seconds"] if run.history else None,
        "final_train_accuracy": train[-1] if train else None,
        "final_heldout_accuracy": heldout[-1] if heldout else None,
        "best_heldout_accuracy": max(heldout, default=None),
        "chance": data.get("chance"),
        "majority_accuracy": data.get("majority_accuracy"),
        "parameters": result.get("parameters"),
        "dispersion": _finite(result.get("dispersion")),
        "path": run.folder.relative_to(run_dir).as_posix() if run.folder else None,
        "history": [_finite(row) for row in run.history],
    }


def _ordered(asked: Iterable, found: Iterable) -> list:
    """What was asked for in its order, then what else was found."""
    asked = list(asked)
    return list(dict.fromkeys([*asked, *sorted(set(found) - set(asked))]))


def _common_value(values: Iterable) -> Any:
    """The value that all share, or None."""
    different = set(values)
    return different.pop() if len(different) == 1 else None


def _common_epoch(runs: Sequence[Run]) -> int | None:
    trained = [len(run.history) for run in runs if run.counts and run.history and not run.diverged]
    return min(trained, default=None)


def _aggregate(task: str, mask: str, runs: Sequence[Run], common: int | None) -> dict[str, Any]:
    counting = [run for run in runs if run.counts]
    at_common = [run.history[common - 1] for run in counting if common and not run.diverged]
    statuses = [run.status for run in runs]
    entry: dict[str, Any] = {"task": task, "mask": mask, "n_runs": len(runs)}
    entry |= {f"n_{status}": statuses.count(status) for status in (*STATUSES, "unfinished")}
    for quantity, (_, threshold) in QUANTITIES.items():
        outcomes = [run.convergence(quantity) for run in counting]
        median, text = median_text(outcomes)
        plain = {"train": "", "heldout": "heldout_"}[quantity]
        entry[f"epochs_to_{threshold}_text"] = ", ".join(
            run.convergence(quantity).text if run.counts else run.status for run in runs
        )
        entry[f"median_{plain}epochs"], entry[f"median_{plain}epochs_text"] = median, text
        entry[f"median_{plain}seconds"], entry[f"median_{plain}seconds_text"] = _median_seconds(counting, quantity)
    train_seconds = [run.history[-1]["train_seconds"] for run in counting if run.history]
    epochs = [len(run.history) for run in counting]
    finals = [run.values("heldout_accuracy") for run in counting]
    return entry | {
        "final_heldout_mean": _mean([values[-1] for values in finals if values]),
        "final_heldout_min": min((values[-1] for values in finals if values), default=None),
        "final_heldout_max": max((values[-1] for values in finals if values), default=None),
        "best_heldout_mean": _mean([max(values) for values in finals if values]),
        "final_train_mean": _mean(
            [run.values("train_accuracy")[-1] for run in counting if run.values("train_accuracy")]
        ),
        "common_epoch": common,
        "n_common": len(at_common),
        # Where some were not measured, the mean of the others would not be theirs.
        "train_accuracy_common": _mean_of_all([row["train_accuracy"] for row in at_common]),
        "heldout_accuracy_common": _mean([row["heldout_accuracy"] for row in at_common]),
        "seconds_per_epoch": sum(train_seconds) / sum(epochs) if sum(epochs) else None,
    }


def _median_seconds(runs: Sequence[Run], quantity: str) -> tuple[float | None, str]:
    """Median seconds of training to the threshold, as far as censoring leaves it known, and its text."""
    intervals = []
    for run in runs:
        seconds = run.seconds_to(quantity)
        trained = run.history[-1]["train_seconds"] if run.history else 0.0
        intervals.append((trained, math.inf) if seconds is None else (seconds, seconds))
    if not intervals:
        return None, "–"
    (low, is_open), (high, _) = median_bounds(intervals)
    if low == high:
        return low, f"{low:.3g}"
    return None, f"{'>' if is_open else '≥'}{_rounded_down(low)}"


def _rounded_down(value: float) -> str:
    """Three significant digits at most and whole numbers from 100 on, never above `value`, so that a bound stays
    true."""
    unit = 10.0 ** min(0, math.floor(math.log10(value)) - 2) if value > 0 else 1.0
    return f"{math.floor(value / unit) * unit:.10g}"


def _speedup_entry(
    task: str, mask: str, quantity: str, baseline_runs: Sequence[Run], mask_runs: Sequence[Run]
) -> dict[str, Any]:
    baselines = {run.key[2]: run for run in baseline_runs}
    others = {run.key[2]: run for run in mask_runs}
    pairs: list[tuple[int, Convergence, Convergence]] = []
    without = []
    for seed in dict.fromkeys([*baselines, *others]):
        base, other = baselines.get(seed), others.get(seed)
        if base and other and base.counts and other.counts:
            pairs.append((seed, base.convergence(quantity), other.convergence(quantity)))
        else:
            sides = (("baseline", base), ("mask", other))
            reasons = [f"{side} {run.status if run else 'not run'}" for side, run in sides if not (run and run.counts)]
            without.append({"seed": seed, "reason": ", ".join(reasons)})
    result = summarise_pairs([(base, other) for _, base, other in pairs])
    paired = {seed for seed, _, _ in pairs}
    return {
        "task": task,
        "mask": mask,
        "quantity": quantity,
        "n_pairs": len(pairs),
        "pairs": [_pair_entry(*pair) for pair in pairs],
        "without_pair": without,
        **{direction: result.count(direction) for direction in ("faster", "slower", "equal", "undetermined")},
        "estimate": result.estimate,
        "estimate_kind": result.estimate_kind,
        "low": result.low,
        "high": result.high,
        "interval_kind": result.interval_kind,
        "restricted_mean_ratio": result.restricted_mean_ratio,
        "restricted_at": result.restricted_at,
        "median_seconds_baseline": _median_seconds([r for s, r in baselines.items() if s in paired], quantity)[1],
        "median_seconds_mask": _median_seconds([r for s, r in others.items() if s in paired], quantity)[1],
        "text": result.text,
    }


def _pair_entry(seed: int, baseline: Convergence, other: Convergence) -> dict[str, Any]:
    ratio = speed_up(baseline, other)
    return {
        "seed": seed,
        "lower": ratio.lower,
        "upper": None if ratio.upper == math.inf else ratio.upper,
        "direction": ratio.direction,
        "baseline_epochs": baseline.text,
        "mask_epochs": other.text,
        "text": ratio.text,
    }


def _pair_text(pair: Mapping[str, Any]) -> str:
    return f"seed {pair['seed']}: {pair['baseline_epochs']} / {pair['mask_epochs']} = {pair['text']}"


def _mean_of_all(values: Sequence[float | None]) -> float | None:
    return None if None in values else _mean(values)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _merged(versions: Iterable[Mapping[str, str] | None]) -> dict[str, str]:
    """One version a package; where runs used several, all of them."""
    merged: dict[str, list[str]] = {}
    for found in versions:
        for package, version in (found or {}).items():
            merged.setdefault(package, []).append(version)
    return {package: ", ".join(dict.fromkeys(seen)) for package, seen in merged.items()}


def _machines(results: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Which machine trained how many of the runs; runs of before this was recorded count under None."""
    counted: list[dict[str, Any]] = []
    for result in results:
        found = next((entry for entry in counted if entry["machine"] == result.get("machine")), None)
        if found is None:
            counted.append(found := {"machine": result.get("machine"), "runs": 0})
        found["runs"] += 1
    return counted


def _finite(value: Any) -> Any:
    """`value` with every NaN and infinity, for which JSON has no number, replaced by None."""
    if isinstance(value, Mapping):
        return {name: _finite(entry) for name, entry in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
