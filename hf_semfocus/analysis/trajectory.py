"""The change of the loss along the path that training takes, per unit of length (DESIGN §2; arXiv 2506.14095)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .probe import evaluated_loss


@dataclass(frozen=True)
class Snapshot:
    """A model's trained weights at one time, and its loss there.

    Args:
        loss: of a batch, in evaluation mode.
        parameters: copies of all trained parameters: as much memory as they take, once.
    """

    loss: float
    parameters: tuple[torch.Tensor, ...]


def snapshot(model: torch.nn.Module, batch: Mapping[str, Any], loss: float | None = None) -> Snapshot:
    """A snapshot of `model` now.

    Args:
        model: gives an output with a ``loss``.
        batch: with labels, on the model's device.
        loss: of this batch at these weights, where it is known already.
    """
    if loss is None:
        loss = float(evaluated_loss(model, batch).detach())
    return Snapshot(loss, tuple(value.clone() for value in _trained(model)))


def trajectory(before: Snapshot, model: torch.nn.Module, loss: float) -> dict[str, float]:
    """How far `model` has come since `before`, and ``|loss(θ_t) − loss(θ_t+1)| / ‖θ_t − θ_t+1‖₂`` on the way.

    Args:
        before: of the same model (or one with the same parameters), with the loss of the same batch.
        model: at θ_t+1.
        loss: of that batch at θ_t+1.

    Returns:
        ``step_norm`` (‖θ_t − θ_t+1‖₂ over all trained parameters, in fp64) and ``trajectory_ratio``, which is left out
        where the weights have not moved.

    Example:
        >>> start = snapshot(model, batch)  # doctest: +SKIP
        >>> trajectory(start, model_after_an_epoch, 0.41)  # doctest: +SKIP
        {'step_norm': 0.73, 'trajectory_ratio': 0.38}
    """
    length = distance(before.parameters, _trained(model))
    result = {"step_norm": length}
    if length > 0:
        result["trajectory_ratio"] = abs(loss - before.loss) / length
    return result


def path(models: Iterable[torch.nn.Module], batches: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """:func:`trajectory` between successive models, such as a run's checkpoints, for each batch.

    Args:
        models: with the same parameters, in the order of training; one at a time is looked at.
        batches: with labels.

    Returns:
        For each step ``step_norm``, ``losses`` (a batch each, where the step ends) and ``ratios`` (a batch each; empty where
        the weights have not moved).
    """
    steps = []
    before: tuple[list[torch.Tensor], list[float]] | None = None
    for model in models:
        device = next(model.parameters()).device
        losses = []
        for batch in batches:
            loss = evaluated_loss(model, {name: value.to(device) for name, value in batch.items()})
            losses.append(float(loss.detach()))
        now = [value.clone() for value in _trained(model)]
        if before is not None:
            length = distance(before[0], now)
            changes = [abs(new - old) for old, new in zip(before[1], losses, strict=True)]
            ratios = [change / length for change in changes] if length > 0 else []
            steps.append({"step_norm": length, "losses": losses, "ratios": ratios})
        before = now, losses
    return steps


def _trained(model: torch.nn.Module) -> list[torch.Tensor]:
    return [value.detach() for value in model.parameters() if value.requires_grad]


def distance(before: Sequence[torch.Tensor], after: Sequence[torch.Tensor]) -> float:
    """‖before − after‖₂ over all tensors, in fp64."""
    squares = [
        (new.double() - old.to(new.device).double()).pow(2).sum().cpu() for old, new in zip(before, after, strict=True)
    ]
    return float(torch.stack(squares).sum().sqrt())
