"""A callback that records the theory's quantities on a fixed batch while any Trainer trains."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import Trainer, TrainerCallback

from ..analysis.probe import probe_quantities

PREFIX = "analysis_"


class AnalysisCallback(TrainerCallback):
    """Logs :func:`hf_semfocus.analysis.probe_quantities` of one batch before training and every n epochs.

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
        self.trainer, self.batch, self.every = trainer, batch, every
        trainer.add_callback(self)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Records the initial weights; a resumed run has done so before."""
        if state.global_step == 0:
            self._record()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Records every n-th epoch and the last."""
        epoch = round(state.epoch)
        if epoch % self.every == 0 or epoch >= args.num_train_epochs:
            self._record()

    def _record(self) -> None:
        self.trainer.log(analysis_of(self.trainer, self.batch))


def analysis_of(trainer: Trainer, batch: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """The quantities of the Trainer's model on `batch`, named for a log; measured on every process, which stay in step."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    device = next(model.parameters()).device
    found = probe_quantities(model, {name: value.to(device) for name, value in batch.items()})
    return {f"{PREFIX}{name}": value for name, value in found.items()}
