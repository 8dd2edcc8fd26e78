"""Accuracy over a whole split: every example counted once, on one process or many, without touching a random generator."""

from dataclasses import dataclass

import torch
from accelerate import Accelerator

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


# A mask that draws (`redraw`) draws here too.
@torch.random.fork_rng()
@torch.no_grad()
def measure_accuracy(
    model: torch.nn.Module, rows: TensorRows, batch_size: int, accelerator: Accelerator | None = None
) -> Accuracy:
    """Accuracy and loss of `model` on all `rows`, in eval mode; the model's mode is put back.

    No DataLoader: making its iterator draws from torch's global generator, which would change the dropout of the next
    epoch. With several processes each takes every world-size-th block of rows, and the counts (not the means) are summed.
    """
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    rank, world = (accelerator.process_index, accelerator.num_processes) if accelerator is not None else (0, 1)
    # float64 counts: exact for every count, and the losses' sum does not depend on the number of batches in fp32
    totals = torch.zeros(5, dtype=torch.float64, device=device)
    for start in range(rank * batch_size, len(rows), world * batch_size):
        batch = {name: value.to(device) for name, value in rows.batch(slice(start, start + batch_size)).items()}
        labels = batch.pop("labels")
        logits = model(**batch).logits.float()
        losses = torch.nn.functional.cross_entropy(
            logits.flatten(0, -2), labels.flatten(), reduction="sum", ignore_index=-100
        )
        labelled = labels != -100
        right = (logits.argmax(-1) == labels) & labelled
        whole = (right == labelled).all(-1) if rows.per_token else right
        counts = [whole.sum(), len(labels), right.sum(), labelled.sum(), losses]
        totals += torch.stack([torch.as_tensor(count, dtype=torch.float64, device=device) for count in counts])
    if accelerator is not None and world > 1:
        totals = accelerator.reduce(totals, reduction="sum")
    if was_training:
        model.train()
    rows_right, rows_seen, tokens_right, tokens_seen, loss = totals.tolist()
    return Accuracy(
        accuracy=rows_right / rows_seen,
        token_accuracy=tokens_right / tokens_seen if rows.per_token else None,
        loss=loss / tokens_seen,
    )
