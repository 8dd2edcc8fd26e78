"""From a run directory to its summary: what every run did, speed-ups with intervals, accuracies at a common epoch.

Nothing is skipped in silence: a run that is missing, unfinished, diverged or failed appears as such.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from ..experiments.imports import known_task
from ..files import write_json
from ..schema import STATUSES, DataRecord, Quantity, RunResult, SpecRecord, Variant
from ..summary_schema import (
    Aggregate,
    MachineCount,
    NoPair,
    PairEntry,
    ReachEntry,
    RunEntry,
    SpeedUpEntry,
    Summary,
    TaskEntry,
)
from ..training.run_files import QUANTITIES, Run
from .run_directory import RunDirectory
from .statistics import Bound, median_epochs, median_seconds, speed_up, summarise_pairs
from .theory import predictions


def summarise(directory: RunDirectory | Path | str) -> Summary:
    """The summary of a run directory.

    A run that was asked for in `experiment.json` and has no `result.json` is "unfinished"; its epochs so far count as
    censored. A failed run gives no pair. Accuracies are compared at the largest epoch that all runs of a task reached
    (failed and diverged runs, and those without an epoch, apart).

    Raises:
        ValueError: it is no run directory, or one of its files cannot be read; the message names the file.
    """
    if not isinstance(directory, RunDirectory):
        directory = RunDirectory.read(directory)
    experiment, tasks, masks, runs = directory.experiment, directory.tasks, directory.masks, directory.runs
    entries = [_run_entry(run, directory.path) for run in runs]
    cells: dict[tuple[str, str], list[RunEntry]] = {}
    for task in tasks:
        for mask in masks:
            if of_cell := [entry for entry in entries if (entry.task, entry.mask) == (task, mask)]:
                cells[task, mask] = of_cell
    variants = {name: fields for name, fields in experiment.variants.items() if name in masks}
    going_on = [run for run in runs if run.counts and run.history and not run.diverged]
    common = {task: min((len(run.history) for run in going_on if run.key[0] == task), default=None) for task in tasks}
    results = [run.result for run in runs if run.result]
    machines = _machines(results)
    speedups = [
        speedup_entry(quantity, cells.get((task, experiment.baseline), []), of_cell)
        for (task, mask), of_cell in cells.items()
        for quantity in QUANTITIES
        if mask != experiment.baseline
    ]
    optional: dict[str, Any] = {"earlier": experiment.earlier, "variants": variants}
    optional |= {"machines": machines} if len(machines) > 1 else {}
    return Summary(
        format=2,
        name=experiment.name,
        note=experiment.note,
        command=experiment.command,
        created=experiment.created,
        versions=_merged(result.versions for result in results) or experiment.versions,
        machine=experiment.machine or next((result.machine for result in results if result.machine), None),
        tau=_common_value(run.spec.training.tau for run in runs if run.folder),
        heldout_tau=_common_value(run.spec.training.heldout_tau for run in runs if run.folder),
        baseline=experiment.baseline,
        tasks=[_task_entry(task, directory.of(task), variants.values()) for task in tasks],
        masks=masks,
        seeds=directory.seeds,
        runs=entries,
        reach=[
            ReachEntry(task=task, mask=mask, **reach.to_json())
            for task, mask in cells
            if (reach := next((r.result.reach for r in directory.of(task, mask) if r.result and r.result.reach), None))
        ],
        aggregates=[
            _aggregate(of_cell, common[task], directory.of(task, mask)) for (task, mask), of_cell in cells.items()
        ],
        speedups=speedups,
        analysis=predictions(runs, experiment.baseline, speedups),
        **{name: value for name, value in optional.items() if value},
    )


def write_summary(directory: RunDirectory | Path | str) -> Summary:
    """Writes `summary.json` into the run directory, and returns it."""
    summary = summarise(directory)
    path = directory.path if isinstance(directory, RunDirectory) else Path(directory)
    write_json(path / "summary.json", summary.to_json())
    return summary


def _task_entry(task: str, runs: Sequence[Run], variants: Iterable[Variant]) -> TaskEntry:
    specs = [run.spec for run in runs if run.folder]
    first = specs[0] if specs else None
    info = known_task(task, first.task_options.get("answer"), first.imports) if first else known_task(task, None, ())
    data = next((run.result.data for run in runs if run.result and run.result.data), DataRecord())
    shared, differing = _shared(specs)
    compared = {f"model.{name}" for fields in variants for name in fields.to_json()}  # what is asked about may differ
    return TaskEntry(
        name=task,
        level=info.level,
        kind=info.kind,
        length=first.length if first else None,
        train_size=first.train_size if first else None,
        test_size=first.test_size if first else None,
        chance=info.chance if data.chance is None else data.chance,
        majority_accuracy=data.majority_accuracy,
        label_histogram=data.label_histogram,
        tau=shared["training"].get("tau"),
        heldout_tau=shared["training"].get("heldout_tau"),
        hyperparameters=shared,
        differing=[name for name in differing if name not in compared],
    )


def _shared(specs: Sequence[SpecRecord]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Model and training settings that all specifications share, and the dotted names of those that differ."""
    shared: dict[str, dict[str, Any]] = {}
    differing = []
    given = [spec.to_json() for spec in specs]
    for part in ("model", "training", "task_options"):
        values = [spec.get(part) or {} for spec in given]
        names = dict.fromkeys(name for value in values for name in value)
        same = [name for name in names if all(name in value and value[name] == values[0][name] for value in values)]
        shared[part] = {name: values[0][name] for name in same}
        differing += [f"{part}.{name}" for name in names if name not in same]
    sizes = ("length", "train_size", "validation_size", "test_size")
    differing += [name for name in sizes if any(spec.get(name) != given[0].get(name) for spec in given)]
    return shared, differing


def _run_entry(run: Run, path: Path) -> RunEntry:
    task, mask, seed = run.key
    result = run.result or RunResult.model_construct()
    data = result.data or DataRecord()
    started = run.folder is not None
    further: dict[str, Any] = {"stopped": "settled"} if result.stopped == "settled" else {}
    for quantity, (_, threshold) in QUANTITIES.items():
        convergence = run.convergence(quantity) if started else None
        further[f"epochs_to_{threshold}"] = convergence.epochs if convergence and convergence.reached else None
        further[f"seconds_to_{threshold}"] = run.seconds_to(quantity) if started else None
    heldout, train = run.values("heldout_accuracy"), run.values("train_accuracy")
    return RunEntry(
        task=task,
        mask=mask,
        seed=seed,
        status=run.status,
        diverged=run.diverged,
        error=result.error,
        epochs_trained=len(run.history),
        budget=run.spec.training.epochs if started else None,
        train_seconds=run.history[-1].train_seconds if run.history else None,
        seconds=run.history[-1].seconds if run.history else None,
        final_train_accuracy=train[-1] if train else None,
        final_heldout_accuracy=heldout[-1] if heldout else None,
        best_heldout_accuracy=max(heldout, default=None),
        chance=data.chance,
        majority_accuracy=data.majority_accuracy,
        parameters=result.parameters,
        dispersion=None if run.more else result.dispersion,
        path=run.folder.relative_to(path).as_posix() if run.folder else None,
        history=list(run.history),
        **further,
    )


def _common_value(values: Iterable) -> Any:
    """The value that all share, or None."""
    different = set(values)
    return different.pop() if len(different) == 1 else None


def _aggregate(entries: Sequence[RunEntry], common: int | None, runs: Sequence[Run]) -> Aggregate:
    counting = [run for run in entries if run.counts]
    at_common = [run.history[common - 1] for run in runs if run.counts and common and not run.diverged]
    statuses: list[str] = [run.status for run in entries]
    numbers: dict[str, Any] = {f"n_{status}": statuses.count(status) for status in (*STATUSES, "unfinished")}
    prefixes: dict[Quantity, str] = {"train": "", "heldout": "heldout_"}
    for quantity, prefix in prefixes.items():
        numbers[f"median_{prefix}epochs"] = _exact(median_epochs([run.convergence(quantity) for run in counting]))
        numbers[f"median_{prefix}seconds"] = _exact(median_seconds(entries, quantity))
    finals = [run.final_heldout_accuracy for run in counting if run.final_heldout_accuracy is not None]
    epochs = sum(run.epochs_trained for run in counting)
    return Aggregate(
        task=entries[0].task,
        mask=entries[0].mask,
        n_runs=len(entries),
        **numbers,
        final_heldout_mean=_mean(finals),
        final_heldout_min=min(finals, default=None),
        final_heldout_max=max(finals, default=None),
        best_heldout_mean=_mean([r.best_heldout_accuracy for r in counting if r.best_heldout_accuracy is not None]),
        final_train_mean=_mean([r.final_train_accuracy for r in counting if r.final_train_accuracy is not None]),
        common_epoch=common,
        n_common=len(at_common),
        # Where some were not measured, the mean of the others would not be theirs.
        train_accuracy_common=_mean([row.train_accuracy for row in at_common]),
        heldout_accuracy_common=_mean([row.heldout_accuracy for row in at_common]),
        seconds_per_epoch=sum(run.train_seconds or 0.0 for run in counting) / epochs if epochs else None,
    )


def _exact(bounds: tuple[Bound, Bound] | None) -> float | None:
    """A median where its bounds leave one value."""
    if bounds is None:
        return None
    (low, _), (high, _) = bounds
    return low if low == high else None


def speedup_entry(
    quantity: Quantity, baseline_runs: Sequence[RunEntry], mask_runs: Sequence[RunEntry]
) -> SpeedUpEntry:
    """The runs of a mask on a task against the baseline's there, paired by seed."""
    baselines = {run.seed: run for run in baseline_runs}
    others = {run.seed: run for run in mask_runs}
    pairs, without = [], []
    for seed in dict.fromkeys([*baselines, *others]):
        base, other = baselines.get(seed), others.get(seed)
        if base and other and base.counts and other.counts:
            pairs.append((seed, base.convergence(quantity), other.convergence(quantity)))
        else:
            without.append(NoPair(seed=seed, baseline=_missing(base), mask=_missing(other)))
    summary = summarise_pairs([(base, other) for _, base, other in pairs])
    return SpeedUpEntry(
        task=mask_runs[0].task,
        mask=mask_runs[0].mask,
        quantity=quantity,
        n_pairs=len(pairs),
        pairs=[
            PairEntry(
                seed=seed,
                lower=(ratio := speed_up(base, other)).lower,
                upper=None if ratio.upper == math.inf else ratio.upper,
                direction=ratio.direction,
                baseline=base,
                mask=other,
            )
            for seed, base, other in pairs
        ],
        without_pair=without,
        faster=summary.count("faster"),
        slower=summary.count("slower"),
        equal=summary.count("equal"),
        undetermined=summary.count("undetermined"),
        **vars(summary),
    )


def _missing(run: RunEntry | None) -> Literal["failed", "unfinished", "not_run"] | None:
    """What became of a run that does not count."""
    if run is None:
        return "not_run"
    if run.counts:
        return None
    return "failed" if run.status == "failed" else "unfinished"


def _mean(values: Sequence[float | None]) -> float | None:
    """None where there is no value, or one is missing."""
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _merged(versions: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """One version a package; where runs used several, all of them."""
    merged: dict[str, list[str]] = {}
    for packages in versions:
        for package, version in packages.items():
            merged.setdefault(package, []).append(version)
    return {package: ", ".join(dict.fromkeys(seen)) for package, seen in merged.items()}


def _machines(results: Iterable[RunResult]) -> list[MachineCount]:
    """Which machine trained how many of the runs; runs of before this was recorded count under None."""
    counted: list[MachineCount] = []
    for result in results:
        found = next((entry for entry in counted if entry.machine == (result.machine or None)), None)
        if found is None:
            counted.append(found := MachineCount(machine=result.machine or None, runs=0))
        found.runs += 1
    return counted
