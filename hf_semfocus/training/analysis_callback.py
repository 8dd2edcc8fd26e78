"""A callback that records the theory's quantities on a fixed batch while any Trainer trains."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import Trainer, TrainerCallback

from ..analysis.probe import probe_quantities
from ..analysis.trajectory import Snapshot, snapshot, trajectory
from ..schema import ANALYSIS_PREFIX


class AnalysisCallback(TrainerCallback):
    """Logs :func:`hf_semfocus.analysis.probe_quantities` of one batch before training and every n epochs.

    With labels also :func:`hf_semfocus.analysis.trajectory` over the epoch that ends: how far the weights went, and how much
    the loss changed on the way, per unit of length. That takes one copy of the weights.

    The values go where the Trainer's own do: ``state.log_history``, ``trainer_state.json`` and every tracker of
    ``report_to``, under names that begin with ``analysis_``. Training is not changed: no generator is touched.

    Args:
        trainer: the Trainer that trains; the callback adds itself to it. Its model must use our attention.
        batch: a fixed batch, with labels for the gradient's norm. 50 to 200 rows are enough, at a few per cent of an
            epoch's time.
        every: record after each so many epochs, and after the last.

    Raises:
        ValueError: if `every` is not a whole number of at least 1.

    Example:
        >>> AnalysisCallback(trainer, batch, every=5)  # doctest: +SKIP
        >>> trainer.train()  # doctest: +SKIP
    """

    def __init__(self, trainer: Trainer, batch: Mapping[str, torch.Tensor], every: int = 1):
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"every is {every!r}; allowed: a whole number of epochs of at least 1")
        self.trainer, self.every = trainer, every
        self.probe = EpochProbe(batch)
        self._recorded_at: int | None = None  # the step of the last recording
        trainer.add_callback(self)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Records the initial weights; a resumed run has done so before."""
        if state.global_step == 0:
            self._record()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Remembers where the epoch starts."""
        self.probe.epoch_begins(self.trainer)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Records every n-th epoch and the last."""
        # max_steps counts with --max_steps and with part of an epoch, where num_train_epochs does not.
        last = control.should_training_stop or state.global_step >= state.max_steps
        if last or round(state.epoch) % self.every == 0:
            self._record()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Records where an evaluation ends training early, before the best weights may take the last ones' place."""
        if control.should_training_stop and self._recorded_at != state.global_step:
            self._record()

    def _record(self) -> None:
        self._recorded_at = self.trainer.state.global_step
        self.trainer.log(self.probe.measured(self.trainer))


class EpochProbe:
    """The quantities of a Trainer's model on one batch, those of the way through the current epoch among them.

    An epoch's start, and not the recording before, is where the way begins: a resumed run stands there again.

    Args:
        batch: see :class:`AnalysisCallback`.
    """

    def __init__(self, batch: Mapping[str, torch.Tensor]):
        self.batch = batch
        self._start: Snapshot | None = None
        self._known: tuple[int, float] | None = None  # the last measured loss, and the step at which it was

    def epoch_begins(self, trainer: Trainer) -> None:
        """Copies the weights; the loss there is known where it was just measured, as it is when every epoch is."""
        model, batch = self._ready(trainer)
        if "labels" in batch:
            step = trainer.state.global_step
            known = self._known[1] if self._known is not None and self._known[0] == step else None
            self._start = snapshot(model, batch, known)

    def measured(self, trainer: Trainer) -> dict[str, float]:
        """The quantities, named for a log; measured on every process, which stay in step."""
        model, batch = self._ready(trainer)
        quantities = probe_quantities(model, batch)
        if "loss" in quantities:
            self._known = trainer.state.global_step, quantities["loss"]
            if self._start is not None:
                quantities.update(trajectory(self._start, model, quantities["loss"]))
        return {f"{ANALYSIS_PREFIX}{name}": value for name, value in quantities.items()}

    def _ready(self, trainer: Trainer) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
        model = trainer.accelerator.unwrap_model(trainer.model)
        device = next(model.parameters()).device
        return model, {name: value.to(device) for name, value in self.batch.items()}
