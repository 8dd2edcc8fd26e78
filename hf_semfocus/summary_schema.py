"""`summary.json`: what every run of a comparison did, and what follows from it."""

import copy
from typing import Any, Literal

from pydantic import StrictBool, StrictInt, StrictStr, model_validator

from .schema import (
    Convergence,
    Dispersion,
    Earlier,
    Epoch,
    Known,
    Length,
    Machine,
    Number,
    Open,
    Quantity,
    ReachRecord,
    Record,
    Status,
    Stopped,
    Variant,
    Versions,
)

Direction = Literal["faster", "slower", "equal", "undetermined"]


class TaskEntry(Record):
    """A task in a summary."""

    name: StrictStr
    level: StrictStr | None = None
    kind: StrictStr | None = None
    length: Length = None
    train_size: StrictInt | None = None
    test_size: StrictInt | None = None
    chance: Known = None
    majority_accuracy: Known = None
    label_histogram: dict[StrictStr, StrictInt] | None = None
    tau: Known = None
    heldout_tau: Known = None
    hyperparameters: dict[str, dict[str, Any]]
    differing: list[StrictStr] = []


class RunEntry(Record):
    """A run in a summary. `path` None: it was asked for, and never started."""

    task: StrictStr
    mask: StrictStr
    seed: StrictInt
    status: Status
    diverged: StrictBool
    error: StrictStr | None = None
    stopped: Stopped | None = None
    epochs_trained: StrictInt
    budget: StrictInt | None
    epochs_to_tau: StrictInt | None
    epochs_to_heldout_tau: StrictInt | None
    seconds_to_tau: Known
    seconds_to_heldout_tau: Known
    train_seconds: Known
    seconds: Known
    final_train_accuracy: Known
    final_heldout_accuracy: Known
    best_heldout_accuracy: Known
    chance: Known
    majority_accuracy: Known
    parameters: StrictInt | None
    dispersion: Dispersion | None
    path: StrictStr | None
    history: list[Epoch] = []

    @property
    def counts(self) -> bool:
        """Whether the run says something about convergence: a failed run does not, nor one without an epoch."""
        return self.status != "failed" and (self.epochs_trained > 0 or self.status != "unfinished")

    def convergence(self, quantity: Quantity) -> Convergence:
        """To τ ("train") or to held-out τ ("heldout")."""
        epochs = self.epochs_to_tau if quantity == "train" else self.epochs_to_heldout_tau
        trained = self.epochs_trained if epochs is None else epochs
        return Convergence(trained, epochs is not None, self.budget, self.diverged, self.status != "unfinished")

    def seconds_to(self, quantity: Quantity) -> float | None:
        """Seconds of training until the threshold was met; None if it was not."""
        return self.seconds_to_tau if quantity == "train" else self.seconds_to_heldout_tau


class ReachEntry(ReachRecord):
    """The reach of a mask on a task."""

    task: StrictStr
    mask: StrictStr


class Aggregate(Record):
    """All runs of a mask on a task. Medians are None where censoring leaves them unknown."""

    task: StrictStr
    mask: StrictStr
    n_runs: StrictInt
    n_reached: StrictInt
    n_censored: StrictInt
    n_diverged: StrictInt
    n_failed: StrictInt
    n_unfinished: StrictInt
    median_epochs: Known
    median_heldout_epochs: Known
    median_seconds: Known
    median_heldout_seconds: Known
    final_heldout_mean: Known
    final_heldout_min: Known
    final_heldout_max: Known
    best_heldout_mean: Known
    final_train_mean: Known
    common_epoch: StrictInt | None
    n_common: StrictInt
    train_accuracy_common: Known
    heldout_accuracy_common: Known
    seconds_per_epoch: Known


class PairEntry(Record):
    """A pair of runs; `upper` None: no bound."""

    seed: StrictInt
    lower: Number
    upper: Number | None
    direction: Direction
    baseline: Convergence
    mask: Convergence


class NoPair(Record):
    """A seed without a pair: what became of the run that does not count, None for one that does."""

    seed: StrictInt
    baseline: Literal["failed", "unfinished", "not_run"] | None
    mask: Literal["failed", "unfinished", "not_run"] | None


class SpeedUpEntry(Record):
    """A mask against the baseline on a task: see `hf_semfocus.comparison.statistics.SpeedUp`."""

    task: StrictStr
    mask: StrictStr
    quantity: Quantity
    n_pairs: StrictInt
    pairs: list[PairEntry]
    without_pair: list[NoPair]
    faster: StrictInt
    slower: StrictInt
    equal: StrictInt
    undetermined: StrictInt
    estimate: Known
    estimate_kind: Literal["geometric_mean", "median"] | None
    low: Known
    high: Known
    interval_kind: Literal["student_t_95", "bootstrap_95", "censoring_bounds"] | None
    restricted_mean_ratio: Known
    restricted_at: StrictInt | None


class Unit(Open):
    """The means of the theory's quantities, further fields, of a mask on a task."""

    __pydantic_extra__: dict[str, Known]

    task: StrictStr
    mask: StrictStr
    k: StrictInt | None
    runs: StrictInt
    speedup: Known
    censored: StrictBool
    epochs: list[Convergence]


class Correlation(Record):
    """Whether the speed-up goes with a quantity as the theory says."""

    quantity: StrictStr
    predicted: StrictInt
    n: StrictInt
    tasks: StrictInt
    rho: Known
    low: Known
    high: Known
    verdict: Literal["as predicted", "against the prediction", "open", "too few tasks", "not defined"]


class MatchedPair(Record):
    """A ratio of two runs' Lipschitz estimates and, where losses are matched, the losses and the values there."""

    seed: StrictInt
    ratio: Number
    high: Known = None
    low: Known = None
    losses: list[Number] = []
    base: list[Number] = []
    own: list[Number] = []


class NoMatch(Record):
    """A seed without such a pair, and why."""

    seed: StrictInt
    reason: Literal["not_recorded", "baseline_not_recorded", "no_common_loss"]


class Matched(Record):
    """A mask's Lipschitz estimates over the baseline's: see `hf_semfocus.comparison.matched`."""

    task: StrictStr
    mask: StrictStr
    quantity: Literal["gradient_initial", "gradient", "trajectory"]
    pairs: list[MatchedPair]
    ratio: Known
    low: Known
    high: Known
    interval_kind: StrictStr | None
    smaller: StrictInt
    larger: StrictInt
    verdict: Literal["smaller", "larger", "open", "no pair"]
    without_pair: list[NoMatch]


class Analysis(Record):
    """What the theory predicts, and what was seen."""

    units: list[Unit] = []
    correlations: list[Correlation] = []
    k_sweep: list[Unit] = []
    matched: list[Matched] = []


class MachineCount(Record):
    """How many runs a machine trained; None: not recorded."""

    machine: Machine | None
    runs: StrictInt


class Summary(Record):
    """The whole of it."""

    format: Literal[2] = 2
    name: StrictStr | None
    note: StrictStr | None
    command: StrictStr | None
    created: StrictStr | None
    versions: Versions
    machine: Machine | None
    earlier: list[Earlier] = []
    machines: list[MachineCount] = []
    tau: Known = None
    heldout_tau: Known = None
    baseline: StrictStr
    tasks: list[TaskEntry]
    masks: list[StrictStr]
    variants: dict[StrictStr, Variant] = {}
    seeds: list[StrictInt]
    runs: list[RunEntry]
    reach: list[ReachEntry]
    aggregates: list[Aggregate]
    speedups: list[SpeedUpEntry]
    analysis: Analysis | None

    def runs_of(self, task: str, mask: str) -> list[RunEntry]:
        """The runs of a mask on a task, in the order of the seeds."""
        return [run for run in self.runs if (run.task, run.mask) == (task, mask)]

    @model_validator(mode="before")
    @classmethod
    def _of_format_1(cls, values: Any) -> Any:
        """Format 1 had words where there are numbers now; the numbers follow from the runs."""
        if not isinstance(values, dict) or values.get("format") != 1:
            return values
        values = {**copy.deepcopy(values), "format": 2}
        runs = {(run["task"], run["mask"], run["seed"]): RunEntry.model_validate(run) for run in values["runs"]}
        for entry in values["speedups"]:
            task, masks = entry["task"], {"baseline": values["baseline"], "mask": entry["mask"]}
            for pair in entry["pairs"]:
                of = {side: runs[task, mask, pair["seed"]] for side, mask in masks.items()}
                pair |= {side: run.convergence(entry["quantity"]) for side, run in of.items()}
            for one in entry["without_pair"]:
                known = {side: runs.get((task, mask, one["seed"])) for side, mask in masks.items()}
                one |= {side: _gap(run) for side, run in known.items()}
        analysis = values["analysis"] = values.get("analysis") or None
        for unit in [*analysis.get("units", []), *analysis.get("k_sweep", [])] if analysis else []:
            of_cell = [run for key, run in runs.items() if key[:2] == (unit["task"], unit["mask"]) and run.counts]
            unit["epochs"] = [run.convergence("train") for run in of_cell]
        reasons = {"not recorded": "not_recorded", "no training loss that both went through": "no_common_loss"}
        for entry in analysis.get("matched", []) if analysis else []:
            for one in entry["without_pair"]:
                one["reason"] = reasons.get(one["reason"], "baseline_not_recorded")
        return values


def _gap(run: RunEntry | None) -> str | None:
    return "not_run" if run is None else None if run.counts else run.status
