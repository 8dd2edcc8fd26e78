"""A run directory's files, read back: what was asked, and what each run left. A damaged file raises and is named."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from ..data import list_tasks
from ..experiments.spec import TrainingOptions, mask_slug
from ..files import read_json, read_json_lines
from .statistics import Convergence, epochs_to

STATUSES = ("reached", "censored", "diverged", "failed")
QUANTITIES = {"train": ("train_accuracy", "tau"), "heldout": ("heldout_accuracy", "heldout_tau")}
# What a result tells that is known before the first epoch: it outlasts a raised budget.
BEFORE_TRAINING = (
    "parameters",
    "data",
    "reach",
    "initial_analysis",
    "initial_attention",
    "processes",
    "versions",
    "machine",
)
REMAKE = "restore it, or move it away and run the same `semfocus compare` again: finished runs are kept"
REPAIR = "restore it, or move the run's folder away and run `semfocus compare` again to redo that run"


@dataclass(frozen=True)
class Run:
    """One run as its folder tells it; `spec` holds at least task, mask, seed. No folder: asked for, never started."""

    spec: Mapping[str, Any]
    folder: Path | None
    history: Sequence[Mapping[str, Any]]
    result: Mapping[str, Any] | None

    @property
    def key(self) -> tuple[str, str, int]:
        """Task, label (variant or mask) and seed, which name a run within an experiment."""
        return self.spec["task"], self.label, self.spec["seed"]

    @property
    def label(self) -> str:
        """What stands for the run among those of other masks: its variant, or its mask."""
        return self.spec.get("variant") or self.spec["mask"]

    @property
    def status(self) -> str:
        """`reached`, `censored`, `diverged`, `failed`, or `unfinished` (no result.json, or one of a smaller budget)."""
        return self.result["status"] if self.result else "unfinished"

    @property
    def diverged(self) -> bool:
        """Whether the loss became NaN or infinite, even if the run had met its training threshold before."""
        return bool(self.result) and "diverged" in (self.status, (self.result or {}).get("stopped"))

    @property
    def counts(self) -> bool:
        """Whether the run says something about convergence: a failed run does not, nor one without an epoch."""
        return self.status != "failed" and (bool(self.history) or self.status != "unfinished")

    def convergence(self, quantity: str) -> Convergence:
        """Epochs to τ ("train") or to held-out τ ("heldout"), or the epochs trained without."""
        name, threshold = QUANTITIES[quantity]
        training = self.spec["training"]
        epochs = epochs_to(self.history, name, training[threshold])
        return Convergence(
            epochs=len(self.history) if epochs is None else epochs,
            reached=epochs is not None,
            budget=training["epochs"],
            diverged=self.diverged,
            finished=self.status != "unfinished",
        )

    def seconds_to(self, quantity: str) -> float | None:
        """Seconds of training (without evaluation) until the threshold was met; None if it was not."""
        reached = self.convergence(quantity)
        return self.history[reached.epochs - 1]["train_seconds"] if reached.reached else None

    def values(self, name: str) -> list[float]:
        """A quantity over the epochs, without those at which it is missing."""
        return [row[name] for row in self.history if row.get(name) is not None]


def read_experiment(run_dir: Path) -> dict[str, Any]:
    """What was asked: `experiment.json`, with at least tasks, masks and seeds.

    Raises:
        ValueError: there is none, or it is damaged; the message names it.
    """
    path = run_dir / "experiment.json"
    if not path.is_file():
        stored = (run_dir / "histories.tar.xz").is_file()
        remedy = f"unpack it first: python -m recipes.reproduction.archive --unpack {run_dir} --to DIR"
        raise ValueError(
            f"{run_dir} is not a run directory: it has no experiment.json; "
            f"{remedy if stored else '`semfocus compare` makes one'}"
        )
    experiment = read_json(path, REMAKE)
    _require(path, experiment, ("tasks", "masks", "seeds"), REMAKE)

    def texts(value: Any) -> bool:
        return isinstance(value, list) and all(isinstance(entry, str) for entry in value)

    def text_by_name(value: Any) -> bool:
        return isinstance(value, dict) and all(isinstance(entry, str) for entry in value.values())

    checks: dict[str, Callable[[Any], bool]] = {
        "tasks": lambda value: (
            texts(list(value) if isinstance(value, dict) else value) and set(value) <= set(list_tasks())
        ),
        "masks": texts,
        "seeds": lambda value: isinstance(value, list) and all(type(entry) is int for entry in value),
        "baseline": lambda value: isinstance(value, str) and value in experiment["masks"],
        "machine": lambda value: value is None or isinstance(value, dict),
        "versions": text_by_name,
        "units": texts,
        "variants": lambda value: (
            isinstance(value, dict)
            and all(isinstance(own, dict) and isinstance(own.get("mask"), str) for own in value.values())
        ),
        "earlier": lambda value: isinstance(value, list) and all(isinstance(entry, dict) for entry in value),
        **dict.fromkeys(("name", "note", "command", "created"), lambda value: isinstance(value, str | None)),
    }
    for name, fits in checks.items():
        if name in experiment and not fits(experiment[name]):
            raise ValueError(f"{path} is damaged: {name} is {str(experiment[name])[:80]!r}; {REMAKE}")
    tasks = experiment["tasks"] if isinstance(experiment["tasks"], dict) else {}
    settings = {"defaults": experiment.get("defaults"), **{f"tasks.{name}": own for name, own in tasks.items()}}
    for name, own in settings.items():
        if not isinstance(own, dict | None):
            raise ValueError(f"{path} is damaged: {name} is {str(own)[:80]!r}; {REMAKE}")
        training = (own or {}).get("training", {})
        epochs = training.get("epochs", 1) if isinstance(training, dict) else 0
        if type(epochs) is not int or epochs < 1:
            told = f"training.epochs is {epochs!r}" if isinstance(training, dict) else f"training is {training!r}"
            raise ValueError(f"{path} is damaged: {name}.{told}; {REMAKE}")
    return experiment


def read_runs(run_dir: Path, experiment: Mapping[str, Any]) -> list[Run]:
    """Every run with a folder, and every one that was asked for and has none.

    A run that ended at a budget below the one that the experiment now asks for is unfinished, as it is once the
    comparison has taken it up again: its end says nothing about the epochs that are still to come.
    """
    runs: dict[tuple[str, str, int], Run] = {}
    for folder in sorted((run_dir / "runs").glob("*/*/seed-*")):
        run = read_run(folder)
        if run is None:
            continue
        task, mask, seed = run.key
        place = f"{task}/{mask_slug(mask)}/seed-{seed}"
        if folder != run_dir / "runs" / place:
            raise ValueError(f"{folder} holds the run of {place}; give the folder its name back, or move it away")
        runs[run.key] = _on_its_way(run, _asked_epochs(experiment, task))
    for key in product(experiment["tasks"], experiment["masks"], experiment["seeds"]):
        if key not in runs:
            runs[key] = Run(dict(zip(("task", "mask", "seed"), key, strict=True)), None, [], None)
    return list(runs.values())


def wants_more(result: Mapping[str, Any], epochs: int) -> bool:
    """Whether a run that ended with `result` goes on under a budget of `epochs`: a smaller one alone had stopped it."""
    return result.get("stopped") == "budget" and result["epochs_trained"] < epochs


def _asked_epochs(experiment: Mapping[str, Any], task: str) -> int | None:
    """The budget that `experiment.json` asks for; None where the task is not asked for."""
    tasks = experiment["tasks"]
    if task not in tasks:
        return None
    own = tasks[task] if isinstance(tasks, dict) else None
    found = [((values or {}).get("training") or {}).get("epochs") for values in (own, experiment.get("defaults"))]
    return next((epochs for epochs in found if epochs is not None), TrainingOptions.epochs)


def _on_its_way(run: Run, asked: int | None) -> Run:
    """The run as it stands under a budget of `asked` epochs, which may be above the one that it ended at."""
    if asked is None or run.result is None or not wants_more(run.result, asked):
        return run
    spec = {**run.spec, "training": {**run.spec["training"], "epochs": asked}}
    kept = {name: value for name, value in run.result.items() if name in BEFORE_TRAINING}
    return replace(run, spec=spec, result={**kept, "status": "unfinished"})


def read_run(folder: Path) -> Run | None:
    """The run in `folder`; None where nothing was begun.

    Raises:
        ValueError: one of its files is damaged, or its folder is another run's; the message names it.
    """
    spec_path, history_path, result_path = (folder / n for n in ("spec.json", "history.jsonl", "result.json"))
    if not spec_path.is_file():
        for path in (history_path, result_path):
            if path.exists():
                raise ValueError(f"{spec_path} is missing beside {path.name}; {REPAIR}")
        return None
    spec = read_json(spec_path, REPAIR)
    _check_spec(spec_path, spec)
    history = read_json_lines(history_path, REPAIR) if history_path.exists() else []
    if history_path.exists() and not history:
        raise ValueError(f"{history_path} is damaged: it is empty; {REPAIR}")
    _check_history(history_path, history)
    result = None
    if result_path.exists():
        result = read_json(result_path, REPAIR)
        _require(result_path, result, ("status",))
    run = Run(spec, folder, history, result)
    if result is not None:
        _check_result(result_path, run)
    return run


def _require(path: Path, values: Any, names: Sequence[str], remedy: str = REPAIR) -> None:
    missing = [name for name in names if not isinstance(values, dict) or name not in values]
    if missing:
        raise ValueError(f"{path} is damaged: it has no {missing[0]!r}; {remedy}")


def _check_spec(path: Path, spec: Any) -> None:
    """The fields that are read without making a `RunSpec`, which would need the user's own strategies."""
    _require(path, spec, ("task", "mask", "seed", "training"))
    _require(path, spec["training"], ("epochs", "tau", "heldout_tau"))

    def whole(value: Any) -> bool:
        return type(value) is int and value >= 1

    def share(value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1

    def length(value: Any) -> bool:
        return (
            value is None or whole(value) or (isinstance(value, list) and len(value) == 2 and all(map(whole, value)))
        )

    checks: dict[str, Callable[[Any], bool]] = {
        "task": lambda value: isinstance(value, str),
        "mask": lambda value: isinstance(value, str),
        "variant": lambda value: isinstance(value, str | None),
        "seed": lambda value: type(value) is int,
        "length": length,
        **dict.fromkeys(("train_size", "validation_size", "test_size"), whole),
        **dict.fromkeys(("model", "training", "task_options"), lambda value: isinstance(value, dict)),
        "training.epochs": whole,
        "training.tau": share,
        "training.heldout_tau": share,
    }
    values = {**spec, **{f"training.{name}": value for name, value in spec["training"].items()}}
    for name, fits in checks.items():
        if name in values and not fits(values[name]):
            raise ValueError(f"{path} is damaged: {name} is {values[name]!r}; {REPAIR}")


def _check_history(path: Path, history: Sequence[Mapping[str, Any]]) -> None:
    for number, row in enumerate(history, start=1):
        _require(path, row, ("epoch", "train_accuracy", "heldout_accuracy", "train_seconds", "seconds"))
        if row["epoch"] != number:
            raise ValueError(f"{path} is damaged: line {number} is epoch {row['epoch']!r}; {REPAIR}")
        for name in ("train_accuracy", "heldout_accuracy", "train_seconds", "seconds"):
            value, top = row[name], 1 if name.endswith("accuracy") else math.inf
            if value is None and name == "train_accuracy":
                continue  # `evaluate_train` was off
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= top:
                raise ValueError(f"{path} is damaged: line {number} has {name} {value!r}; {REPAIR}")


def _check_result(path: Path, run: Run) -> None:
    """The result must tell the same story as the history, or one of the two files is not what the run wrote."""
    result: Mapping[str, Any] = run.result or {}
    if result["status"] not in STATUSES:
        raise ValueError(
            f"{path} is damaged: status is {result['status']!r}, allowed: {', '.join(STATUSES)}; {REPAIR}"
        )
    _check_shapes(path, result)
    if result["status"] == "failed":
        return
    _require(path, result, ("epochs_trained", "epochs_to_tau", "epochs_to_heldout_tau", "stopped"))
    if not run.history and result["epochs_trained"]:
        raise ValueError(f"history.jsonl is missing beside {path}: the run is damaged; {REPAIR}")
    told: dict[str, int | None] = {"epochs_trained": len(run.history)}
    for quantity, (_, threshold) in QUANTITIES.items():
        convergence = run.convergence(quantity)
        told[f"epochs_to_{threshold}"] = convergence.epochs if convergence.reached else None
    for name, value in told.items():
        if result[name] != value:
            raise ValueError(
                f"{path} or history.jsonl beside it is damaged: {name} is {result[name]!r} in the one, and {value!r} by the "
                f"other; {REPAIR}"
            )


def _check_shapes(path: Path, result: Mapping[str, Any]) -> None:
    """The nested parts that the report reads: text by name, and numbers a float holds."""

    def number(value: Any) -> bool:
        return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300)

    def mapping_of(value: Any, fits: Callable[[Any], bool]) -> bool:
        return isinstance(value, dict) and all(fits(entry) for entry in value.values())

    checks: dict[str, Callable[[Any], bool]] = {
        "error": lambda value: value is None or isinstance(value, str),
        "stopped": lambda value: value in ("reached", "settled", "diverged", "budget"),
        "versions": lambda value: mapping_of(value, lambda entry: isinstance(entry, str)),
        "machine": lambda value: mapping_of(value, lambda entry: isinstance(entry, str) or number(entry)),
        "dispersion": lambda value: (
            value is None
            or (
                {"full", "mask"} <= (value.keys() if isinstance(value, dict) else set())
                and mapping_of(value, lambda part: mapping_of(part, number) and "mean" in part)
            )
        ),
        "initial_attention": lambda value: (
            value is None
            or mapping_of(value, lambda entry: number(entry) or (isinstance(entry, list) and all(map(number, entry))))
        ),
        "reach": lambda value: isinstance(value, dict) and isinstance(value.get("text"), str),
        "data": lambda value: (
            isinstance(value, dict)
            and all(number(entry) for name, entry in value.items() if name != "label_histogram")
            and mapping_of(value.get("label_histogram", {}), number)
        ),
        **dict.fromkeys(("seconds", "train_seconds", "seconds_to_tau", "parameters"), number),
    }
    for name, fits in checks.items():
        if name in result and not fits(result[name]):
            raise ValueError(f"{path} is damaged: {name} is {str(result[name])[:80]}; {REPAIR}")
