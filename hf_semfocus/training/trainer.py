"""The Trainer of a run: Transformers' own, with a rate that falls by the epoch and without work that no run of ours uses."""

import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from .accuracy import Running
from .checkpoints import write_manifest


class SemFocusTrainer(Trainer):
    """`transformers.Trainer` with exponential decay per epoch, and a manifest in each checkpoint.

    Args:
        lr_decay: the learning rate of epoch e (from 0) is `learning_rate · lr_decay**e`, whatever the number of processes.
        **kwargs: as for `Trainer`.

    What it leaves out, since it costs time at each step and nothing here reads it: the count of floating point operations and
    the gradient's norm where nothing is clipped. A process that trains alone, without accumulating gradients, also does without what
    Trainer and Accelerate ask at each step of how it trains: the same operations on the same numbers, and so the same bits.
    """

    def __init__(self, *args, lr_decay: float = 1.0, **kwargs):
        self.lr_decay = lr_decay
        self.running: Running | None = None  # gets each step's loss and logits, where there is one
        super().__init__(*args, **kwargs)
        self._weights: list[torch.nn.Parameter] | None = None
        self._alone = self._trains_alone()

    def _trains_alone(self) -> bool:
        one = self.accelerator.num_processes == 1 and self.args.n_gpu <= 1
        return one and self.args.gradient_accumulation_steps == 1 and self.accelerator.scaler is None

    def create_optimizer(self, model=None) -> torch.optim.Optimizer:
        """Trainer's; on a CPU, SGD steps all weights in one call, in the way that gives the same bits as one call for each."""
        optimizer = super().create_optimizer(model)
        if isinstance(optimizer, torch.optim.SGD) and self.args.device.type == "cpu":
            for group in optimizer.param_groups:
                group["foreach" if group["momentum"] else "fused"] = True
        return optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None):
        """An `EpochLR`. Steps an epoch are counted by ceiling: the last batch may be short."""
        if self.lr_scheduler is None:
            optimizer = optimizer or self.optimizer
            assert optimizer is not None, "Trainer makes the optimizer before the scheduler"
            steps_per_epoch = math.ceil(num_training_steps / math.ceil(self.args.num_train_epochs))
            # Accelerate's wrapper has the same groups, and may be left aside in training.
            optimizer = getattr(optimizer, "optimizer", optimizer)
            self.lr_scheduler = EpochLR(optimizer, EpochDecay(decay=self.lr_decay, steps_per_epoch=steps_per_epoch))
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def _prepare_for_training(self, max_steps, train_dataloader, resume_from_checkpoint):
        prepared = super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        self._weights = None
        if self._alone:  # the wrapper looks for an optional package at each step
            bare = self.optimizer.optimizer  # type: ignore[union-attr]
            self.optimizer = self.callback_handler.optimizer = bare
        return prepared

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """Trainer's; alone, a batch's own labels are all there are, and the model's mean is over them."""
        if not self._alone:
            return super().get_batch_samples(epoch_iterator, num_batches, device)
        return [batch for batch in (next(epoch_iterator, None),) if batch is not None], None

    def training_step(self, model, inputs, num_items_in_batch=None) -> torch.Tensor:
        """Forward and backward."""
        if not self._alone:
            return super().training_step(model, inputs, num_items_in_batch)
        if not model.training:
            model.train()
        loss = self.compute_loss(model, self._prepare_inputs(inputs))
        loss.backward()
        return loss.detach()

    def _clip_grad_norm(self, model):
        if not self._alone:
            return super()._clip_grad_norm(model)
        if self._weights is None:
            self._weights = [weight for weight in model.parameters() if weight.requires_grad]
        return torch.nn.utils.clip_grad_norm_(self._weights, self.args.max_grad_norm)

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
            write_manifest(Path(str(self.args.output_dir)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")


class EpochLR(LambdaLR):
    """A `LambdaLR` with an `EpochDecay`: the rate is set where an epoch begins, and stays within it."""

    def step(self, epoch: int | None = None) -> None:
        """Counts a step, and sets the rate of the next one where it is another."""
        if epoch is None and (self.last_epoch + 1) % self.lr_lambdas[0].steps_per_epoch:  # type: ignore[attr-defined]
            self.last_epoch += 1
            self._step_count += 1
        else:
            super().step(epoch)


class EpochDecay:
    """Step → `decay ** (step // steps_per_epoch)`. A class, so that the scheduler's state holds its two numbers."""

    def __init__(self, decay: float, steps_per_epoch: int):
        self.decay, self.steps_per_epoch = decay, steps_per_epoch

    def __call__(self, step: int) -> float:
        """The factor at `step` (from 0)."""
        return self.decay ** (step // self.steps_per_epoch)


class AfterCheckpoint(TrainerCallback):
    """Calls `then` on the main process when a checkpoint is whole."""

    def __init__(self, then: Callable[[], None]):
        self.then = then

    def on_save(self, args, state, control, **kwargs):
        """A checkpoint has been written."""
        if state.is_world_process_zero:
            self.then()
