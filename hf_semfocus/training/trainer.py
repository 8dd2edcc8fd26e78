"""The Trainer of a run: Transformers' own, with a rate that falls by the epoch and without work that no run of ours uses."""

import math
from pathlib import Path

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from .accuracy import Running
from .checkpoints import mark_whole


class SemFocusTrainer(Trainer):
    """`transformers.Trainer` with exponential decay per epoch, and checkpoints that are known to be whole.

    Args:
        lr_decay: the learning rate of epoch e (from 0) is `learning_rate · lr_decay**e`, whatever the number of processes.
        **kwargs: as for `Trainer`.

    What it leaves out, since it costs time at each step and nothing here reads it: the count of floating point operations and
    the gradient's norm where nothing is clipped.
    """

    def __init__(self, *args, lr_decay: float = 1.0, **kwargs):
        self.lr_decay = lr_decay
        self.running: Running | None = None  # gets each step's loss and logits, where there is one
        super().__init__(*args, **kwargs)

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None):
        """A `LambdaLR` whose factor is constant within an epoch. Steps an epoch are counted by ceiling: the last batch may be short."""
        if self.lr_scheduler is None:
            optimizer = optimizer or self.optimizer
            assert optimizer is not None, "Trainer makes the optimizer before the scheduler"
            steps_per_epoch = math.ceil(num_training_steps / math.ceil(self.args.num_train_epochs))
            self.lr_scheduler = LambdaLR(optimizer, EpochDecay(decay=self.lr_decay, steps_per_epoch=steps_per_epoch))
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Trainer's; `running` takes the step in."""
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if self.running is not None:
            self.running.add(loss, outputs.logits, inputs["labels"])
        return (loss, outputs) if return_outputs else loss

    def floating_point_ops(self, inputs) -> int:
        """Not counted: the estimate walks over all parameters at each step."""
        return 0

    def _get_grad_norm(self, model, grad_norm=None):
        # Trainer computes the norm even when nothing is clipped, only to log it.
        return grad_norm

    def _save_checkpoint(self, model, trial) -> None:
        super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            mark_whole(Path(str(self.args.output_dir)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")


class EpochDecay:
    """Step → `decay ** (step // steps_per_epoch)`. A class, so that the scheduler's state holds its two numbers."""

    def __init__(self, decay: float, steps_per_epoch: int):
        self.decay, self.steps_per_epoch = decay, steps_per_epoch

    def __call__(self, step: int) -> float:
        """The factor at `step` (from 0)."""
        return self.decay ** (step // self.steps_per_epoch)
