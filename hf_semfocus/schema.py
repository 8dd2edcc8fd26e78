"""What runs and comparisons leave on the disk: one model a file, which its writer and all its readers share.

Numbers and names are stored, and words are made of them where they are read. Files written before lack some fields, or hold words in
their place: those are read too.
"""

import math
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

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
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

RESULT_FORMAT = 2
FINISHED = ("reached", "censored", "diverged")
STATUSES = (*FINISHED, "failed")
ANALYSIS_PREFIX = "analysis_"  # what the names of the theory's quantities begin with in a log

Status = Literal["reached", "censored", "diverged", "failed", "unfinished"]
Stopped = Literal["reached", "settled", "diverged", "budget"]
Quantity = Literal["train", "heldout"]


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

    def get(self, name: str, default: Any = None) -> Any:
        """The same, or `default` where there is none."""
        return getattr(self, name, default)

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
    """`spec.json`: the fields that are read without making a `RunSpec`, which would import the user's strategies."""

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
        """Earlier files have the words alone."""
        if not isinstance(values, dict) or "kind" in values or not isinstance(values.get("text"), str):
            return values
        numbers = [int(number) for number in re.findall(r"\d+", values["text"])]
        if values["text"] == "all":
            return {**values, "kind": "all"}
        if len(numbers) < (1 if values["text"].startswith(("own block", "±", "−")) else 2):
            raise ValueError("allowed: a reach, such as '±6 of 20 positions'")
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

    format: Annotated[StrictInt, Field(le=RESULT_FORMAT)] = 1
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
    placement: StrictStr | None = None
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
    """A mask with fields of the model, under a name."""

    mask: StrictStr


class ExperimentRecord(Open):
    """`experiment.json`: what was asked for, and where it was trained."""

    format: Annotated[StrictInt, Field(le=1)] = 1
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
        """A list of tasks without options."""
        if isinstance(value, list) and all(isinstance(task, str) for task in value):
            return dict.fromkeys(value)
        return value

    @field_validator("baseline")
    @classmethod
    def _asked_for(cls, value: str, info: ValidationInfo) -> str:
        if value not in info.data.get("masks", [value]):
            raise ValueError("allowed: one of the masks")
        return value
