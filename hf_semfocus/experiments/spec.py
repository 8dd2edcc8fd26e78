"""What one run is: a serialisable specification. A run is a pure function of it."""

import re
from collections.abc import Mapping
from dataclasses import asdict, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field, PlainValidator
from pydantic.dataclasses import dataclass

from ..data import task_info
from ..data.options import SIZES, check_options, parse_length
from ..data.tasks import get_task
from ..files import source_digest
from ..model.mask_strategies import mask_parts, parse_mask
from ..text import did_you_mean, mask_slug
from .imports import import_strategies
from .options import STRICT, one_line_errors, parse

if TYPE_CHECKING:
    from ..model.configuration_semfocus import SemFocusConfig

LARGEST = 3e38  # what a 32-bit float holds: torch takes no larger rate
AUTO = "auto"
UNTRAINED = ("training.epochs", "training.snapshots", "training.report_to", "imports")
"""Settings that may change where a run goes on: weights do not depend on them, or not so far."""
RUN_SETS = ("length", "train_size", "validation_size", "test_size", "seed", "pooling")
"""Options of the task's builder that are fields of the run."""
MODEL_SETS = (
    "mask", "layer_masks", "vocab_size", "id2label", "label2id", "num_labels", "auto_map", "pad_token_id", "problem_type",
    "return_dict", "mask_sources", "architectures", "is_encoder_decoder",
)  # fmt: skip
"""Fields of the model that follow from the mask, the task and the tokenizer."""

Count = Annotated[int, Field(ge=1, lt=2**31)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Share = Annotated[float, Field(gt=0, le=1)]
Names = Annotated[tuple[str, ...], Field(strict=False)]  # not strict: JSON and YAML have lists


def spread_seed(seed: int) -> int:
    """The seed that torch, numpy and the shuffling get for the user's seed 0, 1, 2, …

    Accelerate shuffles epoch e with seed + e, so runs with neighbouring seeds would share batch orders (DESIGN §4). numpy's
    `SeedSequence` sends neighbours far apart; the result fits the 31 bits that every generator takes.

    >>> abs(spread_seed(0) - spread_seed(1)) > 10_000
    True
    """
    return int(np.random.SeedSequence(seed).generate_state(1)[0]) & 0x7FFFFFFF


@one_line_errors("training")
@dataclass(frozen=True, config=STRICT)
class TrainingOptions:
    """How a run is trained: the same for every mask of a comparison.

    Args:
        optimizer: "sgd", "adam" or "adamw".
        learning_rate: the rate of the first epoch; 0.3 is what full attention was seen to learn with (SGD, clipped).
        lr_decay: the factor applied after each epoch (0.99 in the paper).
        momentum: of SGD.
        weight_decay: of "sgd" and "adamw".
        batch_size: examples a step, over all processes together.
        max_grad_norm: gradients are clipped to this ℓ2 norm; 0 for no clipping.
        epochs: the budget. A run that has not reached `tau` by then is censored.
        tau: training accuracy (whole-sequence accuracy for sequence tasks) that counts as learnt.
        heldout_split: what "held-out" means: "test", or "validation" where something is chosen by it; `test` is then not looked at.
        heldout_tau: the run stops early once training accuracy is ≥ `tau` and held-out accuracy ≥ `heldout_tau`.
        stop_early: whether to stop then (or as `patience_share` says), or to use all of the budget.
        patience_share: where it is given, a run stops once it has settled instead. With t the first epoch whose training accuracy is
            ≥ `tau`, and n = max(`patience_min`, ⌈`patience_share` · t⌉), it has settled at the first epoch e ≥ t + n at which held-out
            accuracy is not rising: the best of the last n epochs, e − n + 1 … e, is not above the best of epochs 1 … e − n by more than
            `patience_rise`. The rule looks at nothing but this run's history, and never ends a run that has not reached `tau`.
        patience_min: the least n, in epochs.
        patience_rise: how much better held-out accuracy must have become to count as rising. 0.01 is about a standard error on 2,000
            rows.
        evaluate_train: evaluate the training split at each epoch's end. Off, `tau` cannot be seen and no run stops early.
        shorten_evaluation: leave out what of that evaluation decides nothing. It ends as soon as so many rows are wrong that accuracy
            cannot be ≥ `tau`: then all the others being right would not make it so, and no epoch at `tau` is missed. After the first
            epoch at `tau` it is made only where the run may stop by it: without `patience_share`, where held-out accuracy is ≥
            `heldout_tau`. The epoch that ends the run and the one whose weights are kept are evaluated in full. Where it was not,
            `train_accuracy` is None in the history; `running_loss` and `running_accuracy` (means over the epoch's steps, in training
            mode) are there for each epoch.
        keep: "last", or "best": the weights of the epoch with the best *validation* accuracy are the ones saved.
        eval_batch_size: examples an evaluation step, on each process.
        gradient_checkpointing: recompute each layer in the backward pass to save memory.
        bf16: autocast to bfloat16.
        analysis_every: record the theory's quantities on held-out rows at the start, after each so many epochs and at the
            end (see `hf_semfocus.analysis.probe_quantities`); 0: never. It does not change what is trained.
        snapshots: store what the model attends to on a few held-out rows at about so many epochs; 0: never.
        report_to: where the Trainer reports each epoch: "none", "trackio", "tensorboard" or "wandb".
    """

    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    learning_rate: Annotated[float, Field(gt=0, le=LARGEST)] = 0.3
    lr_decay: Share = 0.99
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Field(ge=0, le=LARGEST)] = 0.0
    batch_size: Count = 100
    max_grad_norm: Annotated[float, Field(ge=0)] = 1.0
    epochs: Count = 100
    tau: Share = 0.95
    heldout_split: Literal["test", "validation"] = "test"
    heldout_tau: Share = 0.95
    stop_early: bool = True
    patience_share: Annotated[float, Field(ge=0)] | None = None
    patience_min: Count = 5
    patience_rise: Annotated[float, Field(ge=0, le=1)] = 0.01
    evaluate_train: bool = True
    shorten_evaluation: bool = False
    keep: Literal["last", "best"] = "last"
    eval_batch_size: Count = 250
    gradient_checkpointing: bool = False
    bf16: bool = False
    analysis_every: Annotated[int, Field(ge=0, lt=2**31)] = 0
    snapshots: Annotated[int, Field(ge=0, le=1000)] = 0
    report_to: Literal["none", "trackio", "tensorboard", "wandb"] = "none"

    def __post_init__(self) -> None:
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(f"momentum is {self.momentum}; allowed: 0 unless the optimizer is sgd")
        if self.weight_decay and self.optimizer == "adam":
            raise ValueError(f"weight_decay is {self.weight_decay}; allowed: 0 for adam (adamw decays weights)")

    @classmethod
    def from_dict(cls, values: Any) -> "TrainingOptions":
        """Makes options from a mapping; unknown keys and wrong types raise `ValueError`."""
        return parse(cls, values, "training")


def _length(value: Any) -> int | tuple[int, int] | None:
    value = parse_length(value) if isinstance(value, str) else value
    if value is None or type(value) is int:
        return value
    if isinstance(value, list | tuple) and [type(entry) for entry in value] == [int, int]:
        return value[0], value[1]
    raise ValueError(f"length is {value!r}; allowed: a number, or a range such as 500-600")


@one_line_errors("run")
@dataclass(frozen=True, config=STRICT)
class RunSpec:
    """One run: a task's data, a mask, a model and how it is trained. Equal specifications give equal results.

    Making one checks types and ranges alone; `resolved` imports, and checks the rest.

    Args:
        task: a name of `hf_semfocus.data.list_tasks()`.
        mask: a mask specification such as "topk:5".
        variant: the name under which a comparison has this mask and some fields of `model`; None: the mask is its name.
        seed: 0, 1, 2, … Fixes the data, the initial weights and the batch order; runs that differ only in the mask are paired.
        length: of the inputs; None for the task's default, (low, high) for a range.
        train_size, validation_size, test_size: examples a split.
        task_options: further options of the task's builder.
        model: fields of `SemFocusConfig` other than the mask, the vocabulary and the labels. `attention_gain` may be "auto":
            it is then chosen for each run so that its untrained attention has the normalised entropy `target_entropy` (0.4 where it is
            not given) on its first 500 training rows, and the model's configuration holds the number.
        training: see `TrainingOptions`.
        imports: Python files or modules to import first: they register the task, and the mask strategies that `mask` names.
        mask_source: digest of the source of a user's strategies in `mask`, which `resolved` fills in: an edited mask has other results.
        task_source: the same of a user's task.

    Example:
        >>> RunSpec(task="even_pairs", mask="topk:5", length=20, model={"num_hidden_layers": 3}).name
        'even_pairs/topk-5/seed-0'
    """

    task: str
    mask: str = "topk:5"
    variant: str | None = None
    seed: Seed = 0
    length: Annotated[int | tuple[int, int] | None, PlainValidator(_length)] = None
    train_size: Count = SIZES["train"]
    validation_size: Count = SIZES["validation"]
    test_size: Count = SIZES["test"]
    task_options: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    training: Annotated[TrainingOptions, BeforeValidator(TrainingOptions.from_dict)] = field(
        default_factory=TrainingOptions
    )
    imports: Names = ()
    mask_source: str | None = None
    task_source: str | None = None

    def __post_init__(self) -> None:
        if self.variant is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9:;=+._-]*", self.variant):
            raise ValueError(f"variant is {self.variant!r}; allowed: a name of letters, digits and : ; = + . _ -")
        for name in self.task_options:
            if name in RUN_SETS:
                where = "model.pooling" if name == "pooling" else f"the run's {name}"
                raise ValueError(f"task_options.{name} would go over the run's; allowed: {where}")
        for name in self.model:
            if name in ("dtype", "torch_dtype"):
                raise ValueError(f"model.{name} is float32 in training; allowed for less: training.bf16")
            if name in MODEL_SETS:
                raise ValueError(f"model.{name} is set by the run itself (mask, task and tokenizer)")

    def resolved(self) -> "RunSpec":
        """The run as it is stored: the mask as it is written everywhere, with the digest of its code, and the length filled in.

        Imports `imports` and makes the model's configuration.

        Raises:
            ValueError: an import fails; there is no such task, mask or option of the task or the model; the inputs do not fit the model.
        """
        import_strategies(self.imports)
        info, mask = task_info(self.task), parse_mask(self.mask)
        length = info.default_length if self.length is None else self.length
        spec = replace(
            self,
            mask=str(mask),
            mask_source=source_digest(type(part) for part in mask_parts(mask)),
            task_source=source_digest([type(get_task(self.task, self.answer))]),
            length=length,
        )
        options = check_options(spec.task, spec.data_options())
        outputs = task_info(spec.task, spec.answer).output_length(options.high) or 0
        spec.check_room(options.high + outputs + (options.pooling == "cls"))
        return spec

    def check_room(self, longest: int) -> None:
        """Refuses a model that inputs of `longest` tokens do not fit, padding and global tokens counted."""
        config, given = self.config(), self.model.get("max_position_embeddings")
        multiple, needed = config.pad_to_multiple_of or 1, config.padded_length(longest)
        if multiple > longest:
            allowed = f"1 … {longest}, the length of the inputs"
            raise ValueError(f"pad_to_multiple_of of {self.label} is {multiple}; allowed: {allowed}")
        if given is not None and given < needed:
            raise ValueError(
                f"max_position_embeddings is {given}; allowed: at least {needed}, as long as an input gets"
            )

    def config(self) -> "SemFocusConfig":
        """The model's configuration but for the vocabulary and the labels, with room for any input where no room is asked for."""
        from ..model.configuration_semfocus import LARGEST_SIZE, SemFocusConfig

        if "target_entropy" in self.model and "attention_gain" not in self.model:
            raise ValueError("model.target_entropy needs model.attention_gain=auto, whose target it is")
        return SemFocusConfig(**{"max_position_embeddings": LARGEST_SIZE, **self.config_fields()})

    def config_fields(self) -> dict[str, Any]:
        """The model's fields, known ones only; without a gain that is still to be chosen."""
        from ..model.configuration_semfocus import SemFocusConfig

        known = {entry.name for entry in fields(SemFocusConfig)} | {"output_attentions"}  # a property there
        for key in self.model:
            if key not in known:
                raise ValueError(f"unknown model option {key!r}{did_you_mean(key, known)}")
        given = {name: value for name, value in self.model.items() if (name, value) != ("attention_gain", AUTO)}
        return {"mask": self.mask, **given}

    @property
    def chooses_gain(self) -> bool:
        """Whether the attention gain is to be chosen on the run's inputs."""
        return self.model.get("attention_gain") == AUTO

    @property
    def answer(self) -> str | None:
        """The task's kind of answer, where `task_options` choose it."""
        return self.task_options.get("answer")

    def data_options(self) -> dict[str, Any]:
        """What `load_task` is called with, beside the task's name."""
        return {
            "length": self.length,
            "train_size": self.train_size,
            "validation_size": self.validation_size,
            "test_size": self.test_size,
            "seed": self.seed,
            "pooling": self.model.get("pooling", "mean"),
            **self.task_options,
        }

    @property
    def label(self) -> str:
        """What stands for the run among those of other masks: its variant, or its mask."""
        return self.variant or self.mask

    @property
    def name(self) -> str:
        """Where the run lives below `runs/`: task/label/seed, safe as a path."""
        return f"{self.task}/{mask_slug(self.label)}/seed-{self.seed}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; `from_dict` gives an equal specification back."""
        values = asdict(self)
        for name in ("variant", "task_source"):  # as it was before there were any
            if values[name] is None:
                del values[name]
        if isinstance(self.length, tuple):
            values["length"] = list(self.length)
        values["imports"] = list(self.imports)
        return values

    @classmethod
    def from_dict(cls, values: Any) -> "RunSpec":
        """Makes a resolved specification from a mapping; whatever is wrong in it raises `ValueError`."""
        return parse(cls, values, "run").resolved()


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings with dotted names: {"model": {"hidden_size": 64}} → {"model.hidden_size": 64}."""
    flattened: dict[str, Any] = {}
    for key, value in values.items():
        flattened.update(flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value})
    return flattened


def difference(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> str | None:
    """The first setting in which two resolved specifications (as `to_dict` gives them) differ, in words; None: one continues the other.

    What `UNTRAINED` names may differ; of a user's file its content counts (`mask_source`, `task_source`). A setting that
    the earlier one was written without has its default.
    """
    defaults = {f"training.{entry.name}": entry.default for entry in fields(TrainingOptions)}
    old, new = {**defaults, **flat(earlier)}, flat(later)
    for key in [*new, *old]:
        if key not in UNTRAINED and old.get(key) != new.get(key):
            return f"{key}: {old.get(key)!r} there, {new.get(key)!r} asked"
    return None
