"""What one run is: a serialisable specification, checked when it is made. A run is a pure function of it."""

import difflib
import hashlib
import inspect
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin

import numpy as np

from ..data import task_info
from ..data.options import check_options
from ..model.mask_strategies import MaskStrategy, mask_parts, parse_mask
from .imports import import_strategies
from .options import parse_length

if TYPE_CHECKING:
    from ..model.configuration_semfocus import SemFocusConfig

LARGEST = 3e38  # what a 32-bit float holds: torch takes no larger rate
SET_BY_THE_RUN = ("pad_token_id", "problem_type", "return_dict", "mask_sources", "architectures", "is_encoder_decoder")
VARIANT = r"[A-Za-z0-9][A-Za-z0-9:;=+._-]*"
OPTIMIZERS = ("sgd", "adam", "adamw")
KEEPS = ("last", "best")
TRACKERS = ("none", "trackio", "tensorboard", "wandb")
MOST_SNAPSHOTS = 1000
# Settings of which a run's weights do not depend, or not so far.
UNTRAINED = ("training.epochs", "training.snapshots", "training.report_to", "imports")
AUTO = "auto"
HELDOUT_SPLITS = ("test", "validation")


def spread_seed(seed: int) -> int:
    """The seed that torch, numpy and the shuffling get for the user's seed 0, 1, 2, …

    Accelerate shuffles epoch e with seed + e, so runs with neighbouring seeds would share batch orders (DESIGN §4). numpy's
    `SeedSequence` sends neighbours far apart; the result fits the 31 bits that every generator takes.

    >>> abs(spread_seed(0) - spread_seed(1)) > 10_000
    True
    """
    return int(np.random.SeedSequence(seed).generate_state(1)[0]) & 0x7FFFFFFF


def _check(condition: bool, name: str, value: Any, allowed: str) -> None:
    if not condition:
        raise ValueError(f"{name} is {value!r}; allowed: {allowed}")


def _check_keys(values: Mapping[Any, Any], what: str) -> None:
    for key in values:
        if not isinstance(key, str):
            raise ValueError(f"the {what} options hold the key {key!r}; allowed: names of options")


def _from_mapping(cls: type, values: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The values with their keys checked against the fields of `cls`, whole numbers and reals told apart."""
    if not isinstance(values, Mapping):
        raise ValueError(f"the {what} options are {values!r}; allowed: a mapping of options")
    _check_keys(values, what)
    known = {entry.name: entry for entry in fields(cls)}
    checked = {}
    for key, value in values.items():
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"unknown {what} option {key!r}{hint} (known: {', '.join(known)})")
        checked[key] = _typed(f"{what} option {key}", value, known[key].type)
    return checked


def _typed(name: str, value: Any, annotation: Any) -> Any:
    """`value` if it has the annotated type; whole numbers pass as reals, and nothing else is converted."""
    allowed = get_args(annotation) if get_origin(annotation) not in (None, tuple, dict) else (annotation,)
    plain = tuple(get_origin(entry) or entry for entry in allowed)
    if isinstance(value, bool) and bool not in plain:
        pass
    elif isinstance(value, int) and float in plain and int not in plain:
        return float(value)
    elif isinstance(value, plain):
        return value
    elif isinstance(value, list) and tuple in plain:
        return tuple(value)
    names = " or ".join("none" if entry is type(None) else entry.__name__ for entry in plain)
    raise ValueError(f"{name} is {value!r}; allowed: {names}")


@dataclass(frozen=True)
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
        stop_early: whether to stop then (or as `patience_share` says), or to use the whole budget.
        patience_share: where it is given, a run stops once it has settled instead. With t the first epoch whose training accuracy is
            ≥ `tau`, and n = max(`patience_min`, ⌈`patience_share` · t⌉), it has settled at the first epoch e ≥ t + n at which held-out
            accuracy is not rising: the best of the last n epochs, e − n + 1 … e, is not above the best of epochs 1 … e − n by more than
            `patience_rise`. The rule looks at nothing but this run's own history, and never ends a run that has not reached `tau`.
        patience_min: the least n, in epochs.
        patience_rise: how much better held-out accuracy must have become to count as rising. 0.01 is about a standard error on 2,000
            rows.
        evaluate_train: evaluate the training split at each epoch's end. Off, `tau` cannot be seen and no run stops early.
        shorten_evaluation: leave out what of that evaluation decides nothing. It ends as soon as so many rows are wrong that accuracy
            cannot be ≥ `tau`: then all the others being right would not make it so, and no epoch at `tau` is missed. After the first
            epoch at `tau` it is made only where the run may stop by it: without `patience_share`, where held-out accuracy is ≥
            `heldout_tau`. The epoch that ends the run and the one whose weights are kept are evaluated whole. Where it was not,
            `train_accuracy` is None in the history; `running_loss` and `running_accuracy` (means over the epoch's steps, in training
            mode) are there for each epoch.
        keep: "last", or "best": the weights of the epoch with the best *validation* accuracy are the ones saved.
        eval_batch_size: examples an evaluation step, on each process.
        gradient_checkpointing: recompute each layer in the backward pass to save memory.
        bf16: autocast to bfloat16.
        analysis_every: record the theory's quantities on held-out rows at the start, after each so many epochs and at the
            end (see `hf_semfocus.analysis.probe_quantities`); 0: never. It does not change what is trained.
        snapshots: store what the model attends to on a few held-out rows at about so many epochs; 0: never. `report_to`: where the
            Trainer reports each epoch: none, trackio, tensorboard or wandb. Neither changes what is trained, so a run that goes on may
            have had others.
    """

    optimizer: str = "sgd"
    learning_rate: float = 0.3
    lr_decay: float = 0.99
    momentum: float = 0.0
    weight_decay: float = 0.0
    batch_size: int = 100
    max_grad_norm: float = 1.0
    epochs: int = 100
    tau: float = 0.95
    heldout_split: str = "test"
    heldout_tau: float = 0.95
    stop_early: bool = True
    patience_share: float | None = None
    patience_min: int = 5
    patience_rise: float = 0.01
    evaluate_train: bool = True
    shorten_evaluation: bool = False
    keep: str = "last"
    eval_batch_size: int = 250
    gradient_checkpointing: bool = False
    bf16: bool = False
    analysis_every: int = 0
    snapshots: int = 0
    report_to: str = "none"

    def __post_init__(self) -> None:
        _check(self.optimizer in OPTIMIZERS, "optimizer", self.optimizer, ", ".join(OPTIMIZERS))
        _check(
            0 < self.learning_rate <= LARGEST, "learning_rate", self.learning_rate, f"0 < learning_rate ≤ {LARGEST:g}"
        )
        _check(0 < self.lr_decay <= 1, "lr_decay", self.lr_decay, "0 < lr_decay ≤ 1")
        _check(0 <= self.momentum < 1, "momentum", self.momentum, "0 ≤ momentum < 1")
        _check(
            self.momentum == 0 or self.optimizer == "sgd", "momentum", self.momentum, "0 unless the optimizer is sgd"
        )
        _check(0 <= self.weight_decay <= LARGEST, "weight_decay", self.weight_decay, f"0 ≤ weight_decay ≤ {LARGEST:g}")
        _check(
            self.weight_decay == 0 or self.optimizer != "adam",
            "weight_decay",
            self.weight_decay,
            "0 for adam (adamw decays weights)",
        )
        share = self.patience_share
        _check(
            share is None or 0 <= share < math.inf, "patience_share", share, "none, or a finite number of at least 0"
        )
        _check(0 <= self.patience_rise <= 1, "patience_rise", self.patience_rise, "0 … 1")
        for name in ("batch_size", "eval_batch_size", "epochs", "patience_min"):
            _check(1 <= getattr(self, name) < 2**31, name, getattr(self, name), "1 … 2147483647")
        _check(0 <= self.analysis_every < 2**31, "analysis_every", self.analysis_every, "0 (never) … 2147483647")
        _check(0 <= self.snapshots <= MOST_SNAPSHOTS, "snapshots", self.snapshots, f"0 (none) … {MOST_SNAPSHOTS}")
        _check(self.report_to in TRACKERS, "report_to", self.report_to, ", ".join(TRACKERS))
        _check(
            0 <= self.max_grad_norm < math.inf, "max_grad_norm", self.max_grad_norm, "a finite number of at least 0"
        )
        for name in ("tau", "heldout_tau"):
            _check(0 < getattr(self, name) <= 1, name, getattr(self, name), "0 < threshold ≤ 1")
        _check(self.heldout_split in HELDOUT_SPLITS, "heldout_split", self.heldout_split, ", ".join(HELDOUT_SPLITS))
        _check(self.keep in KEEPS, "keep", self.keep, ", ".join(KEEPS))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TrainingOptions":
        """Makes options from a mapping; unknown keys and wrong types raise `ValueError`."""
        return cls(**_from_mapping(cls, values, "training"))


@dataclass(frozen=True)
class RunSpec:
    """One run: a task's data, a mask, a model and how it is trained. Equal specifications give equal results.

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
        imports: Python files or modules to import first: they register the mask strategies that `mask` names.
        mask_source: digest of the source of a user's own strategies in `mask`, filled in: results of an edited mask are other results.

    Example:
        >>> RunSpec(task="even_pairs", mask="topk:5", length=20, model={"num_hidden_layers": 3}).name
        'even_pairs/topk-5/seed-0'
    """

    task: str
    mask: str = "topk:5"
    variant: str | None = None
    seed: int = 0
    length: int | tuple | None = None
    train_size: int = 5000
    validation_size: int = 1000
    test_size: int = 2000
    task_options: dict = field(default_factory=dict)
    model: dict = field(default_factory=dict)
    training: TrainingOptions = field(default_factory=TrainingOptions)
    imports: tuple = ()
    mask_source: str | None = None

    def __post_init__(self) -> None:
        import_strategies(self.imports)
        info = task_info(self.task)
        mask = parse_mask(self.mask)
        object.__setattr__(self, "mask", str(mask))
        object.__setattr__(self, "mask_source", source_digest(mask))
        _check(
            self.variant is None or re.fullmatch(VARIANT, self.variant) is not None,
            "variant",
            self.variant,
            "a name of letters, digits and : ; = + . _ -",
        )
        _check(0 <= self.seed < 2**31, "seed", self.seed, "0 … 2147483647")
        for name in ("train_size", "validation_size", "test_size"):
            _check(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        _check_keys(self.model, "model")
        _check_keys(self.task_options, "task")
        own = sorted(
            {"length", "train_size", "validation_size", "test_size", "seed", "pooling"} & set(self.task_options)
        )
        if own:
            where = "model.pooling" if own[0] == "pooling" else f"the run's own {own[0]}"
            raise ValueError(f"task option {own[0]!r} would go over the run's; allowed: {where}")
        reserved = {
            "mask",
            "layer_masks",
            "vocab_size",
            "id2label",
            "label2id",
            "num_labels",
            "auto_map",
            *SET_BY_THE_RUN,
        } & set(self.model)
        if reserved:
            raise ValueError(
                f"model option {sorted(reserved)[0]!r} is set by the run itself (mask, task and tokenizer)"
            )
        if self.length is None:
            object.__setattr__(self, "length", info.default_length)
        if isinstance(self.length, list):
            object.__setattr__(self, "length", tuple(self.length))
        self.check_room(self._longest_input())

    def _longest_input(self) -> int:
        """Tokens of the longest row that the task's options allow."""
        options = check_options(self.task, self.data_options())
        outputs = task_info(self.task, self.answer).output_length(options.high) or 0
        return options.high + outputs + (options.pooling == "cls")

    def check_room(self, longest: int) -> None:
        """Refuses a model that inputs of `longest` tokens do not fit, padding and global tokens counted."""
        config, given = self.config(), self.model.get("max_position_embeddings")
        multiple = config.pad_to_multiple_of or 1
        _check(
            multiple <= longest,
            f"pad_to_multiple_of of {self.label}",
            multiple,
            f"1 … {longest}, the length of the inputs",
        )
        needed = config.padded_length(longest)
        _check(
            given is None or given >= needed,
            "max_position_embeddings",
            given,
            f"at least {needed}, as long as an input gets",
        )

    def config(self) -> "SemFocusConfig":
        """The model's configuration but for the vocabulary and the labels, with room for any input where no room is asked for."""
        from ..model.configuration_semfocus import LARGEST_SIZE, SemFocusConfig

        if "target_entropy" in self.model and "attention_gain" not in self.model:
            raise ValueError(
                "model option 'target_entropy' needs attention_gain: auto, which is what it is the target of"
            )
        return SemFocusConfig(**{"max_position_embeddings": LARGEST_SIZE, **self.config_fields()})

    def config_fields(self) -> dict[str, Any]:
        """The model's fields, known ones only; without a gain that is still to be chosen."""
        from ..model.configuration_semfocus import SemFocusConfig

        known = {entry.name for entry in fields(SemFocusConfig)} | {"output_attentions"}  # a property there
        for key in self.model:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                raise ValueError(f"unknown model option {key!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
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
        if self.variant is None:  # as it was before there were variants
            del values["variant"]
        if isinstance(self.length, tuple):
            values["length"] = list(self.length)
        values["imports"] = list(self.imports)
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "RunSpec":
        """Makes a specification from a mapping; unknown keys and wrong types raise `ValueError`."""
        if not isinstance(values, Mapping):
            raise ValueError(f"a run is {values!r}; allowed: a mapping of options")
        values = dict(values)
        if isinstance(values.get("length"), str):  # "500-600" in a YAML file
            values["length"] = parse_length(values["length"])
        training = values.pop("training", {})
        if not isinstance(training, TrainingOptions):
            training = TrainingOptions.from_dict(training)
        return cls(**_from_mapping(cls, values, "run"), training=training)


def mask_slug(mask: str) -> str:
    """A mask specification, or the name of a variant, as a folder's name: "topk:5+sink:1" → "topk-5_sink-1".

    >>> mask_slug("random:5;seed=0+sink:1")
    'random-5-seed-0_sink-1'
    """
    return mask.translate(str.maketrans(":;=+", "---_"))


def source_digest(mask: MaskStrategy) -> str | None:
    """A digest of the files that define a user's own strategies in `mask`; None where all are built in."""
    own = {type(part) for part in mask_parts(mask)}
    files = {
        inspect.getsourcefile(cls)
        for cls in own
        if not cls.__module__.startswith(MaskStrategy.__module__.partition(".")[0] + ".")
    }
    if not files:
        return None
    texts = sorted(Path(file).read_bytes() if file and Path(file).is_file() else b"" for file in files)
    return hashlib.blake2b(b"".join(texts), digest_size=8).hexdigest()


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings with dotted names: {"model": {"hidden_size": 64}} → {"model.hidden_size": 64}."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found.update(flat(value, f"{key}.") if isinstance(value, Mapping) else {prefix + key: value})
    return found


def difference(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> str | None:
    """The first setting in which two specifications (as `to_dict` gives them) differ, in words; None: one continues the other.

    The budget may differ, what is only recorded (`UNTRAINED`), and the place of a file with a mask: its content counts (`mask_source`). A setting that
    the earlier one was written without has its default.
    """

    defaults = {f"training.{entry.name}": entry.default for entry in fields(TrainingOptions)}
    old, new = {**defaults, **flat(earlier)}, flat(later)
    for key in [*new, *old]:
        if key not in UNTRAINED and old.get(key) != new.get(key):
            return f"{key}: {old.get(key)!r} there, {new.get(key)!r} asked"
    return None
