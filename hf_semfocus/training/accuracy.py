"""Accuracy over a whole split: every example counted once, on one process or many, without touching a random generator."""

from dataclasses import dataclass

import torch
from accelerate import Accelerator

from ..integrations.evaluation import evaluating
from .rows import TensorRows


@dataclass(frozen=True)
class Accuracy:
    """Means over a split.

    Args:
        accuracy: share of examples that are right; for sequence tasks, of rows whose every labelled position is right.
        token_accuracy: share of labelled positions that are right (None where a row has one label).
        loss: mean cross-entropy, in nats, of an example (of a labelled position for sequence tasks).
    """

    accuracy: float
    token_accuracy: float | None
    loss: float


def right_rows(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Which rows, bool (B,), and which labelled positions, bool of the labels' shape, the logits get right."""
    labelled = labels != -100
    right = (logits.argmax(-1) == labels) & labelled
    return (right == labelled).all(-1) if labels.ndim == 2 else right, right


def measure_accuracy(
    model: torch.nn.Module, rows: TensorRows, batch_size: int, accelerator: Accelerator | None = None, seed: int = 0
) -> Accuracy:
    """Accuracy and loss of `model` on all `rows`, in eval mode; the model's mode is put back.

    No DataLoader: making its iterator draws from torch's global generator, which would change the dropout of the next
    epoch. With several processes each takes every world-size-th block of rows, and the counts (not the means) are summed.

    Args:
        model, rows, batch_size: what is measured, and how many rows at a time.
        accelerator: knows the processes; None for one.
        seed: of what masks draw here. The generators are put back.
    """
    measured = accuracy_if_at_least(0.0, model, rows, batch_size, accelerator, seed)
    assert measured is not None, "no accuracy is below 0"
    return measured


@torch.no_grad()
def accuracy_if_at_least(
    threshold: float,
    model: torch.nn.Module,
    rows: TensorRows,
    batch_size: int,
    accelerator: Accelerator | None = None,
    seed: int = 0,
) -> Accuracy | None:
    """`measure_accuracy` where accuracy is at least `threshold`, None where it is below.

    The rest of the rows is left out once so many were wrong that the threshold cannot be reached if all the others are right.
    """
    device = next(model.parameters()).device
    rank, world = (accelerator.process_index, accelerator.num_processes) if accelerator is not None else (0, 1)
    # float64 counts: exact for every count, and the losses' sum does not depend on the number of batches in fp32
    totals = torch.zeros(6, dtype=torch.float64, device=device)
    wrong = 0
    with evaluating(model), torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        for start in range(rank * batch_size, len(rows), world * batch_size):
            batch = {name: value.to(device) for name, value in rows.batch(slice(start, start + batch_size)).items()}
            labels = batch.pop("labels")
            logits = model(**batch).logits.float()
            losses = torch.nn.functional.cross_entropy(
                logits.flatten(0, -2), labels.flatten(), reduction="sum", ignore_index=-100
            )
            whole, right = right_rows(logits, labels)
            counts = [whole.sum(), len(labels), right.sum(), (labels != -100).sum(), losses, 0]
            totals += torch.stack([torch.as_tensor(count, dtype=torch.float64, device=device) for count in counts])
            if threshold > 0:
                wrong += len(labels) - int(whole.sum())
                if (len(rows) - wrong) / len(rows) < threshold:  # this process's rows alone put it out of reach
                    totals[5] = 1
                    break
    if accelerator is not None and world > 1:
        totals = accelerator.reduce(totals, reduction="sum")
    rows_right, rows_seen, tokens_right, tokens_seen, loss, left_out = totals.tolist()
    if left_out or rows_right / rows_seen < threshold:
        return None
    return Accuracy(
        accuracy=rows_right / rows_seen,
        token_accuracy=tokens_right / tokens_seen if rows.per_token else None,
        loss=loss / tokens_seen,
    )


class Running:
    """Loss and accuracy over the steps of an epoch, in training mode: what the steps have computed anyway."""

    def __init__(self) -> None:
        self._totals: torch.Tensor | None = None

    def add(self, loss: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Takes in a step: its mean loss, logits (B, C) or (B, L, C) and labels (B,) or (B, L)."""
        rows, tokens = len(labels), labels.numel() if labels.ndim == 1 else (labels != -100).sum()
        right, _ = right_rows(logits.detach(), labels)
        counts = torch.stack([loss.detach().double() * tokens, right.sum().double()])
        counts = torch.cat([counts, counts.new_tensor([tokens, rows])])
        self._totals = counts if self._totals is None else self._totals + counts

    def means(self, accelerator: Accelerator) -> tuple[float, float]:
        """Mean loss of an example (of a labelled position for sequence tasks) and share of rows that were right."""
        assert self._totals is not None, "an epoch has at least one step"
        totals = self._totals if accelerator.num_processes == 1 else accelerator.reduce(self._totals, reduction="sum")
        loss, right, tokens, rows = totals.tolist()
        return loss / tokens, right / rows
