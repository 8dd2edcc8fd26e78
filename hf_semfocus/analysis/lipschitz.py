"""Empirical Lipschitz estimates of the loss in the parameters θ (DESIGN §2; arXiv 2506.14095)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from .probe import evaluated_loss, gradient_norm
from .trajectory import distance

RADII = (1e-3, 1e-2, 1e-1)


@dataclass(frozen=True)
class Lipschitz:
    """Estimates at one θ, all fp64 on the CPU. N batches, R radii, J directions.

    Args:
        losses: (N,), the loss of each batch at θ.
        gradient_norms: (N,), ‖∇_θ loss‖₂ of each batch.
        radii: R, in units of ‖θ‖₂.
        ratios: (R, J, N), ``|loss(θ) − loss(θ')| / ‖θ − θ'‖₂``; NaN or infinite where a loss is.
        parameter_norm: ‖θ‖₂ over all trained parameters.
    """

    losses: torch.Tensor
    gradient_norms: torch.Tensor
    radii: tuple[float, ...]
    ratios: torch.Tensor
    parameter_norm: float


def lipschitz(
    model: torch.nn.Module,
    batches: Sequence[Mapping[str, Any]],
    generator: torch.Generator,
    radii: Sequence[float] = RADII,
    directions: int = 4,
    progress: Callable[[float], None] | None = None,
) -> Lipschitz:
    """‖∇_θ loss‖₂ over batches, and the change of the loss along random directions, per unit of length.

    The model is in evaluation mode for it. Weights (bit for bit), modes and ``.grad`` are as they were afterwards.
    Directions are uniform on the sphere; each is used at every radius and for every batch. A converged model has small
    gradients whatever its mask, so compare masks at the same θ, or at equal `losses`.

    Args:
        model: gives an output with a ``loss``. Parameters that are not trained stay where they are.
        batches: what its forward takes, with labels.
        generator: draws the directions; the same state gives the same result, and the same directions for another model
            with the same parameters.
        radii: distances ‖θ' − θ‖₂ in units of ‖θ‖₂, > 0.
        directions: how many, ≥ 1.
        progress: called with the share that is done.

    Raises:
        ValueError: without a batch, a radius > 0 or a direction, or with a model whose output has no loss.

    Example:
        >>> found = lipschitz(model, [batch], torch.Generator().manual_seed(0))  # doctest: +SKIP
        >>> found.gradient_norms, found.ratios.shape  # doctest: +SKIP
        (tensor([1.7], dtype=torch.float64), torch.Size([3, 4, 1]))
    """
    radii = tuple(map(float, radii))
    if not batches or directions < 1 or not radii or not all(0 < radius < float("inf") for radius in radii):
        raise ValueError(
            f"lipschitz got {len(batches)} batches, {directions} directions and radii {radii}; allowed: at least one of "
            "each, radii finite and above 0"
        )
    steps, done = len(batches) * (1 + directions * len(radii)), 0

    def tell(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done / steps)

    losses = losses_of(model, batches)
    norms = []
    for batch in batches:
        norms.append(gradient_norm(model, batch))
        tell(1)
    ratios = torch.empty((len(radii), directions, len(batches)), dtype=torch.float64)
    with weights_restored(model) as (parameters, before):
        length = float(torch.stack([value.double().pow(2).sum().cpu() for value in before]).sum().sqrt())
        for number in range(directions):
            direction = [
                torch.randn(value.shape, generator=generator, device=generator.device, dtype=torch.float64)
                for value in before
            ]
            unit = torch.stack([part.pow(2).sum() for part in direction]).sum().sqrt()
            for index, radius in enumerate(radii):
                moved = _move(parameters, before, direction, radius * length / unit)
                ratios[index, number] = (losses_of(model, batches) - losses).abs() / moved
                tell(len(batches))
    return Lipschitz(losses, torch.tensor(norms, dtype=torch.float64), radii, ratios, length)


@contextmanager
def weights_restored(model: torch.nn.Module) -> Iterator[tuple[list[torch.nn.Parameter], list[torch.Tensor]]]:
    """The trained parameters, to be moved inside, and copies of them, which they are again afterwards."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    before = [parameter.detach().clone() for parameter in parameters]
    try:
        yield parameters, before
    finally:
        with torch.no_grad():
            for parameter, value in zip(parameters, before, strict=True):
                parameter.copy_(value)


def _move(
    parameters: Sequence[torch.nn.Parameter],
    before: Sequence[torch.Tensor],
    direction: Sequence[torch.Tensor],
    factor: torch.Tensor,
) -> float:
    """Puts the parameters at θ + factor · direction; returns how far they really went, rounding included."""
    with torch.no_grad():
        for parameter, value, part in zip(parameters, before, direction, strict=True):
            parameter.copy_(value.double() + (factor * part).to(value.device))
        return distance(before, parameters)


def losses_of(model: torch.nn.Module, batches: Sequence[Mapping[str, Any]]) -> torch.Tensor:
    """The loss of each batch in evaluation mode, fp64 on the CPU; `ValueError` where the model gives none."""
    return torch.stack([evaluated_loss(model, batch, graph=False).double().cpu() for batch in batches])
