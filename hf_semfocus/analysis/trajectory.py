"""The change of the loss along the path that training takes, per unit of length (DESIGN §2; arXiv 2506.14095)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .probe import evaluated_loss


@dataclass(frozen=True)
class Place:
    """Where a model stands on its path.

    Args:
        loss: of a batch, in evaluation mode.
        parameters: copies of all trained parameters: as much memory as they take, once.
    """

    loss: float
    parameters: tuple[torch.Tensor, ...]


def place(model: torch.nn.Module, batch: Mapping[str, Any], loss: float | None = None) -> Place:
    """The place of `model` now.

    Args:
        model: gives an output with a ``loss``.
        batch: with labels, on the model's device.
        loss: of this batch at these weights, where it is known already.
    """
    if loss is None:
        loss = float(evaluated_loss(model, batch).detach())
    return Place(loss, tuple(value.detach().clone() for value in model.parameters() if value.requires_grad))


def trajectory(before: Place, model: torch.nn.Module, loss: float) -> dict[str, float]:
    """How far `model` has come since `before`, and |loss(θ_t) − loss(θ_t+1)| / ‖θ_t − θ_t+1‖₂ on the way.

    Args:
        before: of the same model (or one with the same parameters), with the loss of the same batch.
        model: at θ_t+1.
        loss: of that batch at θ_t+1.

    Returns:
        ``step_norm`` (‖θ_t − θ_t+1‖₂ over all trained parameters, in fp64) and ``trajectory_ratio``, which is left out
        where the weights have not moved.

    Example:
        >>> start = place(model, batch)  # doctest: +SKIP
        >>> trajectory(start, model_after_an_epoch, 0.41)  # doctest: +SKIP
        {'step_norm': 0.73, 'trajectory_ratio': 0.38}
    """
    now = [value.detach() for value in model.parameters() if value.requires_grad]
    squares = [
        (new.double() - old.to(new.device).double()).pow(2).sum().cpu()
        for old, new in zip(before.parameters, now, strict=True)
    ]
    length = float(torch.stack(squares).sum().sqrt())
    found = {"step_norm": length}
    if length > 0:
        found["trajectory_ratio"] = abs(loss - before.loss) / length
    return found
