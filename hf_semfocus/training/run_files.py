"""A run's folder, read back: `spec.json`, `history.jsonl` and `result.json`. A file that cannot be read raises and is named."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..files import parse_record, read_record
from ..schema import ANALYSIS_PREFIX, Convergence, Epoch, Quantity, RunResult, SpecRecord, Status

QUANTITIES: dict[Quantity, tuple[str, str]] = {
    "train": ("train_accuracy", "tau"),
    "heldout": ("heldout_accuracy", "heldout_tau"),
}
SNAPSHOTS = "snapshots"
REPAIR = "restore it, or move the run's folder away and run `semfocus compare` again to redo that run"


@dataclass(frozen=True)
class Run:
    """One run as read from its folder. Without a folder it was asked for and never started: its `spec` has task, mask and seed alone.

    Args:
        result: None while it has not finished.
        more: it ended at a smaller budget than the one that is now asked for: what it had at its end says nothing.
    """

    spec: SpecRecord
    folder: Path | None
    history: Sequence[Epoch] = ()
    result: RunResult | None = None
    more: bool = False

    @property
    def key(self) -> tuple[str, str, int]:
        """Task, label (variant or mask) and seed, which name a run within an experiment."""
        return self.spec.task, self.label, self.spec.seed

    @property
    def label(self) -> str:
        """What stands for the run among those of other masks: its variant, or its mask."""
        return self.spec.label

    @property
    def status(self) -> Status:
        """`reached`, `censored`, `diverged`, `failed`, or `unfinished`."""
        return "unfinished" if self.result is None or self.more else self.result.status

    @property
    def diverged(self) -> bool:
        """Whether the loss became NaN or infinite, even if the run had met its training threshold before."""
        return self.result is not None and "diverged" in (self.result.status, self.result.stopped)

    @property
    def counts(self) -> bool:
        """Whether the run says something about convergence: a failed run does not, nor one without an epoch."""
        return self.status != "failed" and (bool(self.history) or self.status != "unfinished")

    def convergence(self, quantity: Quantity) -> Convergence:
        """Epochs to τ ("train") or to held-out τ ("heldout"), or the epochs trained without."""
        name, threshold = QUANTITIES[quantity]
        training = self.spec.training
        epochs = epochs_to(self.history, name, training[threshold])
        return Convergence(
            epochs=len(self.history) if epochs is None else epochs,
            reached=epochs is not None,
            budget=training.epochs,
            diverged=self.diverged,
            finished=self.status != "unfinished",
        )

    def seconds_to(self, quantity: Quantity) -> float | None:
        """Seconds of training (without evaluation) until the threshold was met; None if it was not."""
        reached = self.convergence(quantity)
        return self.history[reached.epochs - 1].train_seconds if reached.reached else None

    def values(self, name: str) -> list[float]:
        """A quantity over the epochs, without those at which it is missing."""
        return [row[name] for row in self.history if row.get(name) is not None]

    def initial(self, name: str) -> float | None:
        """A quantity of the theory at the initial weights; None where it was not recorded."""
        recorded = self.result and self.result.initial_analysis
        return recorded.get(f"{ANALYSIS_PREFIX}{name}") if recorded else None

    def under(self, budget: int) -> "Run":
        """The run as it stands under another budget, which may be above the one that it ended at."""
        if self.result is None or not wants_more(self.result, budget):
            return self
        training = self.spec.training.model_copy(update={"epochs": budget})
        return replace(self, spec=self.spec.model_copy(update={"training": training}), more=True)


def epochs_to(history: Sequence[Epoch], quantity: str, threshold: float) -> int | None:
    """The first epoch whose `quantity` is ≥ `threshold`, counted from 1; None when there is none (censored).

    Args:
        history: the epochs in order; a value of None never meets a threshold.
        quantity: "train_accuracy" or "heldout_accuracy" (whole-sequence accuracy for sequence tasks).
        threshold: τ.
    """
    return next((row.epoch for row in history if (value := row[quantity]) is not None and value >= threshold), None)


def wants_more(result: RunResult, epochs: int) -> bool:
    """Whether a run that ended with `result` goes on under a budget of `epochs`: a smaller one alone had stopped it."""
    return result.stopped == "budget" and (result.epochs_trained or 0) < epochs


def read_run(folder: Path) -> Run | None:
    """The run in `folder`; None where nothing was begun.

    Raises:
        ValueError: one of its files is missing or cannot be read; the message names it.
    """
    spec_path, history_path, result_path = (folder / n for n in ("spec.json", "history.jsonl", "result.json"))
    if not spec_path.is_file():
        for path in (history_path, result_path):
            if path.exists():
                raise ValueError(f"{spec_path} is missing beside {path.name}; {REPAIR}")
        return None
    spec = read_record(spec_path, SpecRecord, REPAIR)
    history = read_history(history_path) if history_path.exists() else []
    result = read_record(result_path, RunResult, REPAIR) if result_path.exists() else None
    run = Run(spec, folder, history, result)
    if result is not None and result.status != "failed":
        _check_ends(result_path, run, result)
    return run


def read_history(path: Path) -> list[Epoch]:
    """The epochs of a `history.jsonl`, in their order.

    Raises:
        ValueError: it cannot be read; the message names it and the line.
    """
    lines = path.read_bytes().splitlines()
    history = [parse_record(line, Epoch, str(path), REPAIR, f"line {at}: ") for at, line in enumerate(lines, start=1)]
    wrong = next((number for number, row in enumerate(history, start=1) if row.epoch != number), None)
    if wrong is not None or not history:
        problem = f"line {wrong} is epoch {history[wrong - 1].epoch}" if wrong else "it is empty"
        raise ValueError(f"{path} is damaged: {problem}; {REPAIR}")
    return history


def _check_ends(path: Path, run: Run, result: RunResult) -> None:
    """Result and history must agree, or one of the two files is not what the run wrote."""
    if not run.history:
        raise ValueError(f"history.jsonl is missing beside {path}; {REPAIR}")
    ends: dict[str, int | None] = {"epochs_trained": len(run.history)}
    for name, threshold in QUANTITIES.values():
        ends[f"epochs_to_{threshold}"] = epochs_to(run.history, name, run.spec.training[threshold])
    for name, value in ends.items():
        if result[name] != value:
            raise ValueError(
                f"{path} or history.jsonl beside it is damaged: {name} is {result[name]!r} in the one, and {value!r} by the other; "
                f"{REPAIR}"
            )
