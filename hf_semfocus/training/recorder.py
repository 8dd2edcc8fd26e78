"""The callback that sees each epoch's end: accuracies, the history file, the stopping rule, the best weights."""

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_model
from transformers import TrainerCallback

from ..experiments.spec import TrainingOptions
from ..files import atomic_write
from ..schema import ANALYSIS_PREFIX, Epoch, Stopped, finite
from .accuracy import Accuracy, Running, accuracy_if_at_least, measure_accuracy
from .analysis_callback import EpochProbe
from .rows import TensorRows
from .run_files import epochs_to

BEST = "best.safetensors"
# Held-out rows on which the theory's quantities are recorded: at most so many, and no more than a fiftieth of the training
# rows while that leaves enough, so that small runs too spend only a few per cent of their time on them.
ANALYSIS_ROWS = 100
FEWEST_ANALYSIS_ROWS = 20
OnEpoch = Callable[[Epoch], None]


def why_stop(history: list[Epoch], options: TrainingOptions) -> Stopped | None:
    """Why no further epoch is trained after `history`: "reached", "settled", "diverged", "budget", or None to go on (DESIGN §2)."""
    if not history:
        return None
    last = history[-1]
    if last.heldout_loss is None:
        return "diverged"
    if (
        options.stop_early
        and options.patience_share is None
        and (last.train_accuracy or 0.0) >= options.tau
        and last.heldout_accuracy >= options.heldout_tau
    ):
        return "reached"
    if options.stop_early and settled(history, options):
        return "settled"
    return "budget" if last.epoch >= options.epochs else None


def settled(history: list[Epoch], options: TrainingOptions) -> bool:
    """Whether held-out accuracy has stopped rising since training accuracy was learnt (`patience_share` of `TrainingOptions`)."""
    learnt = epochs_to(history, "train_accuracy", options.tau)
    if options.patience_share is None or learnt is None:
        return False
    # Rounded, so that a tenth of 30 epochs is 3 epochs, whatever a float makes of it.
    patience = max(options.patience_min, math.ceil(round(options.patience_share * learnt, 9)))
    if len(history) < learnt + patience:
        return False
    heldout = [entry.heldout_accuracy for entry in history]
    return round(max(heldout[-patience:]) - max(heldout[:-patience]), 9) <= options.patience_rise


def epoch_entries(log_history: list[dict[str, Any]]) -> list[Epoch]:
    """Our entries of a Trainer's log, one an epoch, epochs as whole numbers, without the Trainer's step count."""
    return [
        Epoch(**{**{key: value for key, value in entry.items() if key != "step"}, "epoch": round(entry["epoch"])})
        for entry in log_history
        if "heldout_accuracy" in entry
    ]


def initial_analysis(log_history: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The quantities recorded before the first step, from a Trainer's log; None where none were."""
    for entry in log_history:
        if "heldout_accuracy" not in entry and any(key.startswith(ANALYSIS_PREFIX) for key in entry):
            return {key: value for key, value in entry.items() if key.startswith(ANALYSIS_PREFIX)}
    return None


class EpochRecorder(TrainerCallback):
    """Measures both accuracies at each epoch's end, writes `history.jsonl`, and applies the stopping rule.

    Args:
        folder: where `history.jsonl` (and `best.safetensors`) go.
        train, heldout: the splits that are evaluated in full; `validation` only where the best weights are kept.
        options: see `TrainingOptions`.
        on_epoch: called with the epoch's entry, on the main process.
    """

    def __init__(
        self,
        folder: Path,
        train: TensorRows,
        heldout: TensorRows,
        validation: TensorRows,
        options: TrainingOptions,
        on_epoch: OnEpoch | None = None,
    ):
        self.folder, self.options, self.on_epoch = folder, options, on_epoch
        self.train_rows, self.heldout_rows, self.validation_rows = train, heldout, validation
        self.trainer: Any = None  # set once the Trainer exists: the two need each other
        self._before = {"train_seconds": 0.0, "seconds": 0.0}
        self._epoch_started, self._rate = 0.0, 0.0
        rows = max(FEWEST_ANALYSIS_ROWS, min(ANALYSIS_ROWS, len(train) // 50))
        self._probe = EpochProbe(heldout.batch(slice(0, rows))) if options.analysis_every else None

    def on_epoch_begin(self, args, state, control, optimizer=None, **kwargs):
        """Takes the time so far from the history, which a resumed run has read from its checkpoint."""
        history = epoch_entries(state.log_history)
        if history:
            self._before = {name: history[-1][name] for name in self._before}
        if self._probe is not None:
            self._probe.epoch_begins(self.trainer)
        self._rate = optimizer.param_groups[0]["lr"]  # read, not computed: what the epoch's steps really use
        self.trainer.running = Running() if self.options.shorten_evaluation else None
        self._epoch_started = time.perf_counter()

    def on_epoch_end(self, args, state, control, model=None, **kwargs):
        """Evaluates, records, and decides whether to go on."""
        trained = time.perf_counter()
        history = epoch_entries(state.log_history)
        entry = self._measure(model, round(state.epoch), history)
        if self._probe is not None and (
            entry.epoch % self.options.analysis_every == 0 or why_stop([*history, entry], self.options) is not None
        ):
            _fill(entry, self._analysis(self._probe))
        entry.train_seconds = self._before["train_seconds"] + trained - self._epoch_started
        entry.seconds = self._before["seconds"] + time.perf_counter() - self._epoch_started
        self.trainer.log({key: value for key, value in entry.to_json().items() if key != "epoch"})
        history = epoch_entries(state.log_history)
        if state.is_world_process_zero:
            atomic_write(self.folder / "history.jsonl", "".join(json.dumps(row.to_json()) + "\n" for row in history))
            if self.on_epoch is not None:
                self.on_epoch(history[-1])
        if why_stop(history, self.options) is not None:
            control.should_training_stop = True
        return control

    def on_train_begin(self, args, state, control, **kwargs):
        """Records the quantities of the initial weights; a resumed run has done so before."""
        if self._probe is not None and state.global_step == 0:
            self.trainer.log(self._analysis(self._probe))

    def _analysis(self, probe: EpochProbe) -> dict[str, float]:
        return {name: value for name, value in probe.measured(self.trainer).items() if math.isfinite(value)}

    def _measure(self, model: torch.nn.Module, epoch: int, history: list[Epoch]) -> Epoch:
        options = self.options
        model = self.trainer.accelerator.unwrap_model(model)
        heldout, train = measure_accuracy(*self._measurement(model, self.heldout_rows, epoch)), None
        if options.evaluate_train and not options.shorten_evaluation:
            train = measure_accuracy(*self._measurement(model, self.train_rows, epoch))
        elif options.evaluate_train and (
            epochs_to(history, "train_accuracy", options.tau) is None
            or (options.patience_share is None and heldout.accuracy >= options.heldout_tau)
        ):
            train = accuracy_if_at_least(options.tau, *self._measurement(model, self.train_rows, epoch))
        # The seconds are filled in at the end: until then the time goes on.
        numbers = {**_numbers("train", train), **_numbers("heldout", heldout)}
        entry = Epoch(epoch=epoch, learning_rate=self._rate, train_seconds=0.0, seconds=0.0, **numbers)
        best = options.keep == "best" and self._keep_if_best(model, entry, history)
        if options.evaluate_train and train is None and (best or why_stop([*history, entry], options) is not None):
            train = measure_accuracy(*self._measurement(model, self.train_rows, epoch))
            _fill(entry, _numbers("train", train))
        if train is not None and entry.train_loss is None:
            entry.heldout_loss = None  # weights that give no finite loss on the training rows have diverged
        if self.trainer.running is not None:
            loss, accuracy = self.trainer.running.means(self.trainer.accelerator)
            _fill(entry, {"running_loss": finite(loss), "running_accuracy": accuracy})
        return entry

    def _measurement(self, model: torch.nn.Module, rows: TensorRows, epoch: int) -> tuple[Any, ...]:
        # Masks that draw keys draw other ones at each epoch, and the same ones where a run is repeated.
        trainer = self.trainer
        return model, rows, self.options.eval_batch_size, trainer.accelerator, trainer.args.seed + epoch

    def _keep_if_best(self, model, entry: Epoch, history: list[Epoch]) -> bool:
        """Validation chooses, never the held-out split; of equal epochs the first stays."""
        accuracy = measure_accuracy(*self._measurement(model, self.validation_rows, entry.epoch)).accuracy
        entry.validation_accuracy = accuracy
        better = all(accuracy > (earlier.validation_accuracy or 0.0) for earlier in history)
        if better and self.trainer.args.should_save:
            temporary = self.folder / f".{BEST}"
            save_model(model, str(temporary))
            temporary.replace(self.folder / BEST)
        return better


def _fill(entry: Epoch, numbers: dict[str, Any]) -> None:
    for name, value in numbers.items():
        setattr(entry, name, value)


def _numbers(split: str, measured: Accuracy | None) -> dict[str, Any]:
    if measured is None:
        return dict.fromkeys((f"{split}_accuracy", f"{split}_token_accuracy", f"{split}_loss"))
    return {
        f"{split}_accuracy": measured.accuracy,
        f"{split}_token_accuracy": measured.token_accuracy,
        f"{split}_loss": finite(measured.loss),
    }
