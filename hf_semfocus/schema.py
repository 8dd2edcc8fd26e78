"""What runs and comparisons leave on the disk: one model a file, which its writer and all its readers share.

Numbers and names are stored, and words are made of them where they are read. Files written before lack some fields, or hold words in
their place: those are read too.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    PrivateAttr,
    Strict,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

SUMMARY_FORMAT = 2
FINISHED = ("reached", "censored", "diverged")
STATUSES = (*FINISHED, "failed")
ANALYSIS_PREFIX = "analysis_"  # what the names of the theory's quantities begin with in a log

Status = Literal["reached", "censored", "diverged", "failed", "unfinished"]
Stopped = Literal["reached", "settled", "diverged", "budget"]
Quantity = Literal["train", "heldout"]
Direction = Literal["faster", "slower", "equal", "undetermined"]


def finite(value: Any) -> Any:
    """`value`, or None for a NaN or an infinity, for which JSON has no number (a loss that diverged)."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _length(value: Any) -> Any:
    parts = value if isinstance(value, list | tuple) and len(value) == 2 else [value]
    if value is not None and any(type(part) is not int or part < 1 for part in parts):
        raise ValueError("allowed: a number of positions, or the lowest and the highest")
    return value


Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Known = Annotated[Number | None, BeforeValidator(finite)]
Share = Annotated[float, Strict(), Field(ge=0, le=1)]
Seconds = Annotated[float, Strict(), Field(ge=0, allow_inf_nan=False)]
Count = Annotated[StrictInt, Field(ge=1)]
Length = Annotated[int | list[int] | None, PlainValidator(_length)]
Versions = dict[StrictStr, StrictStr]
Machine = dict[StrictStr, StrictStr | StrictInt | Number | None]


@dataclass(frozen=True)
class Convergence:
    """When one run got to a threshold, or how long it went without.

    Args:
        epochs: the first epoch (counted from 1) at which the threshold was met if `reached`, otherwise the epochs
            trained.
        reached: whether the threshold was met.
        budget: the most epochs the run was allowed; None where it is not known.
        diverged: the loss became infinite or NaN. Such a run is censored at the epochs it trained, and will not go on.
        finished: False for a run that is still on its way (or was killed); its bound holds, but it may yet get there.
    """

    epochs: int
    reached: bool
    budget: int | None = None
    diverged: bool = False
    finished: bool = True

    def __post_init__(self) -> None:
        if self.epochs < (1 if self.reached else 0):
            raise ValueError(
                f"epochs is {self.epochs}; allowed: ≥ 1 for a run that reached its threshold, ≥ 0 otherwise"
            )


class Record(BaseModel):
    """A part of a file. Fields that it does not name are passed over."""

    def __getitem__(self, name: str) -> Any:
        """A field by its name, as f"{quantity}_accuracy" makes one."""
        try:
            return getattr(self, name)
        except AttributeError:
            raise KeyError(name) from None

    def get(self, name: str) -> Any:
        """The same; None where there is none."""
        return getattr(self, name, None)

    def to_json(self) -> dict[str, Any]:
        """Plain values: what was read or given, without defaults."""
        return self.model_dump(mode="json", exclude_unset=True)


class Open(Record):
    """A part whose further fields are kept."""

    model_config = ConfigDict(extra="allow")


class Epoch(Open):
    """A line of `history.jsonl`. Quantities of the theory, where they are recorded, are further fields, "analysis_…"."""

    __pydantic_extra__: dict[str, Known]

    epoch: Count
    learning_rate: Known = None
    train_accuracy: Share | None
    heldout_accuracy: Share
    train_token_accuracy: Share | None = None
    heldout_token_accuracy: Share | None = None
    validation_accuracy: Share | None = None
    train_loss: Known = None
    heldout_loss: Known = None
    running_loss: Known = None
    running_accuracy: Share | None = None
    train_seconds: Seconds
    seconds: Seconds

    @property
    def analysed(self) -> bool:
        """Whether quantities of the theory were recorded."""
        return any(name.startswith(ANALYSIS_PREFIX) for name in self.model_extra or {})


class TrainingRecord(Open):
    """The training options that are read without making a `RunSpec`."""

    epochs: Count
    tau: Share
    heldout_tau: Share
    keep: StrictStr = "last"
    evaluate_train: StrictBool = True


class SpecRecord(Open):
    """`spec.json`: the fields that are read without making a `RunSpec`, which would import the user's own strategies."""

    task: StrictStr
    mask: StrictStr
    variant: StrictStr | None = None
    seed: StrictInt
    length: Length = None
    train_size: Count | None = None
    validation_size: Count | None = None
    test_size: Count | None = None
    task_options: dict[str, Any] = {}
    model: dict[str, Any] = {}
    training: TrainingRecord
    imports: list[StrictStr] = []
    _given: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _keep_given(cls, values: Any, handler: Any) -> Any:
        record = handler(values)
        if isinstance(values, dict):
            record._given = values
        return record

    @model_serializer
    def _as_given(self) -> dict[str, Any]:
        """In the order in which it was written."""
        return {**self._given, "training": {**self._given["training"], "epochs": self.training.epochs}}

    @property
    def label(self) -> str:
        """What stands for the run among those of other masks: its variant, or its mask."""
        return self.variant or self.mask


class Spread(Record):
    """Statistics of one quantity over queries, heads and layers."""

    mean: Known
    median: Known = None
    q95: Known = None
    max: Known = None


class Dispersion(Record):
    """Dispersion of all scores, and of those that the mask keeps."""

    full: Spread
    mask: Spread


class ReachRecord(Record):
    """How far information travels through all layers: see `hf_semfocus.analysis.Reach`.

    Args:
        kind: "all"; "window" of `left` and `right` positions; "block" of `most` positions; "some", `fewest` to `most` positions.
    """

    kind: Literal["all", "window", "block", "some"]
    left: StrictInt | None = None
    right: StrictInt | None = None
    sees_all: StrictBool | None = None
    length: StrictInt | None = None
    fewest: StrictInt | None = None
    most: StrictInt | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_words(cls, values: Any) -> Any:
        """Before there was a kind, the words told it."""
        if not isinstance(values, dict) or "kind" in values or not isinstance(values.get("text"), str):
            return values
        numbers = [int(number) for number in re.findall(r"\d+", values["text"])]
        if values["text"] == "all":
            return {**values, "kind": "all"}
        if values["text"].startswith("own block"):
            return {**values, "kind": "block", "fewest": numbers[0], "most": numbers[0]}
        if values["text"].startswith(("±", "−")):
            return {**values, "kind": "window", "length": numbers[-1]}
        return {**values, "kind": "some", "fewest": numbers[0], "most": numbers[-2], "length": numbers[-1]}


class DataRecord(Record):
    """What accuracy is to be compared with, on the training rows."""

    chance: Known = None
    majority_accuracy: Known = None
    token_chance: Known = None
    token_majority_accuracy: Known = None
    label_histogram: dict[StrictStr, StrictInt] | None = None


class AttentionRecord(Open):
    """The attention of an untrained model: `hf_semfocus.analysis.InitialAttention`, the gain and the rows it was measured on."""

    __pydantic_extra__: dict[str, Known]

    attention_gain: Number
    rows: StrictInt
    entropy: Known
    dispersion_all: Known
    entropy_by_layer: list[Known] = []


class RunResult(Record):
    """`result.json`: how a run ended. One that failed has its error, the versions and the machine alone."""

    format: StrictInt = 1
    status: Literal["reached", "censored", "diverged", "failed"]
    stopped: Stopped | None = None
    error: StrictStr | None = None
    epochs_trained: StrictInt | None = None
    epochs_to_tau: StrictInt | None = None
    epochs_to_heldout_tau: StrictInt | None = None
    seconds_to_tau: Known = None
    seconds: Known = None
    train_seconds: Known = None
    parameters: StrictInt | None = None
    data: DataRecord | None = None
    reach: ReachRecord | None = None
    dispersion: Dispersion | None = None
    initial_analysis: dict[str, Known] | None = None
    initial_attention: AttentionRecord | None = None
    processes: StrictInt | None = None
    versions: Versions = {}
    machine: Machine = {}


class Earlier(Record):
    """Where and when a comparison was at work before it went on elsewhere."""

    created: StrictStr | None = None
    versions: Versions | None = None
    machine: Machine | None = None


class AskedTraining(Open):
    """Training options of `experiment.json`."""

    epochs: Count = 0  # not said


class Asked(Open):
    """Options of all runs, or of a task's, as `experiment.json` has them."""

    training: AskedTraining = AskedTraining()


class Variant(Open):
    """A mask with fields of the model, under a name of its own."""

    mask: StrictStr


class ExperimentRecord(Open):
    """`experiment.json`: what was asked for, and where it was trained."""

    format: StrictInt = 1
    name: StrictStr | None = None
    note: StrictStr | None = None
    command: StrictStr | None = None
    created: StrictStr | None = None
    versions: Versions = {}
    machine: Machine | None = None
    earlier: list[Earlier] = []
    tasks: dict[StrictStr, Asked | None]
    masks: list[StrictStr]
    seeds: list[StrictInt]
    defaults: Asked | None = None
    baseline: StrictStr = "full"
    variants: dict[StrictStr, Variant] = {}
    units: list[StrictStr] = []

    @field_validator("tasks", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        """A list of tasks without options of their own."""
        if isinstance(value, list) and all(isinstance(task, str) for task in value):
            return dict.fromkeys(value)
        return value

    @field_validator("baseline")
    @classmethod
    def _asked_for(cls, value: str, info: ValidationInfo) -> str:
        if value not in info.data.get("masks", [value]):
            raise ValueError("allowed: one of the masks")
        return value


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
    """`summary.json`: what every run of a comparison did, and what follows from it."""

    format: Literal[2] = SUMMARY_FORMAT
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
        """Format 1 had words where there are numbers now; the runs tell the numbers."""
        if not isinstance(values, dict) or values.get("format") != 1:
            return values
        runs = {(run["task"], run["mask"], run["seed"]): RunEntry.model_validate(run) for run in values["runs"]}

        def gone(run: RunEntry | None) -> str | None:
            return "not_run" if run is None else None if run.counts else run.status

        speedups = []
        for entry in values["speedups"]:
            found = {"pairs": [], "without_pair": []}
            for part, entries in found.items():
                for pair in entry[part]:
                    sides = {side: runs.get((entry["task"], mask, pair["seed"]))
                             for side, mask in (("baseline", values["baseline"]), ("mask", entry["mask"]))}  # fmt: skip
                    told = {
                        side: run.convergence(entry["quantity"]) if run and part == "pairs" else gone(run)
                        for side, run in sides.items()
                    }
                    entries.append({**pair, **told})
            speedups.append({**entry, **found})
        return {**values, "format": 2, "speedups": speedups, "analysis": _analysis_of_format_1(values, runs)}


def _analysis_of_format_1(values: Mapping[str, Any], runs: Mapping[tuple, RunEntry]) -> Any:
    if not values.get("analysis"):
        return None

    def unit(entry: Mapping[str, Any]) -> dict[str, Any]:
        own = [run for key, run in runs.items() if key[:2] == (entry["task"], entry["mask"]) and run.counts]
        return {**entry, "epochs": [run.convergence("train") for run in own]}

    reasons = {"not recorded": "not_recorded", "no training loss that both went through": "no_common_loss"}
    found = dict(values["analysis"])
    for part in ("units", "k_sweep"):
        found[part] = [unit(entry) for entry in found.get(part, [])]
    found["matched"] = [
        {
            **entry,
            "without_pair": [
                {**one, "reason": reasons.get(one["reason"], "baseline_not_recorded")} for one in entry["without_pair"]
            ],
        }
        for entry in found.get("matched", [])
    ]
    return found


AnyRecord = TypeVar("AnyRecord", bound=Record)


def read_record(path: Path, model: type[AnyRecord], remedy: str) -> AnyRecord:
    """The record that a file of JSON holds.

    Raises:
        ValueError: it is damaged; the message names the file and the field, and ends with `remedy`.
    """
    return parse_record(path.read_bytes(), model, str(path), remedy)


def parse_record(text: bytes, model: type[AnyRecord], path: str, remedy: str, place: str = "") -> AnyRecord:
    """As `read_record`, of text that stands at `place` in the file."""
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        problem = _problem(error)
    except (KeyError, TypeError, AttributeError) as error:  # of a file of a format before
        problem = f"{type(error).__name__} {error}"
    raise ValueError(f"{path} is damaged: {place}{problem}; {remedy}")


def _problem(error: ValidationError) -> str:
    """The first fault, with its field and what stands there."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"] if part not in ("str", "int", "float"))
    if first["type"] == "missing":
        return f"{where} is missing"
    if not where:
        return f"it is not JSON of its kind ({first['msg']})"
    return f"{where} is {str(first['input'])[:80]!r} ({first['msg'].removeprefix('Value error, ')})"
