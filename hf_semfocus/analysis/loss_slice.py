"""Two-dimensional slices of the loss around a model's weights (arXiv 2506.14095, figure 5; Li et al., arXiv 1712.09913)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .aggregate import quantile
from .lipschitz import losses_of, weights_restored

SIZE = 21
"""Points a side: 0.1 apart, and the weights themselves are one. The paper has 200, a hundred times the work."""
HALF_WIDTHS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
SLOPE_LEVELS = (50, 75, 95, 99)


@dataclass(frozen=True)
class LossSlice:
    """The loss on a square grid in parameter space, fp64 on the CPU.

    Args:
        offsets: (S,), −1 to 1: in units of the directions.
        losses: (S, S), the loss at θ + offsets[i] u + offsets[j] v; NaN or infinite where it is.
    """

    offsets: torch.Tensor
    losses: torch.Tensor

    def slopes(self, half_width: float) -> torch.Tensor:
        """Absolute difference of neighbouring points over the step, of all pairs along either direction in [−half_width, half_width]².

        Returns:
            (n,) sorted; empty where the square holds no two neighbours. Pairs whose loss is not finite are left out.
        """
        # A step of 2/(S − 1) is not exact in binary.
        inside = self.offsets.abs() <= half_width + 1e-9
        part = self.losses[inside][:, inside]
        step = (self.offsets[1] - self.offsets[0]).item()
        pairs = torch.cat([part.diff(dim=0).flatten(), part.diff(dim=1).flatten()]).abs() / step
        return pairs[pairs.isfinite()].sort().values

    def slope_percentiles(self) -> dict[str, Any]:
        """The slopes as figure 5 of the paper has them.

        Returns:
            ``half_widths``, those of `HALF_WIDTHS` that hold two neighbours; ``levels``, `SLOPE_LEVELS`; ``slopes``, for each
            half-width a percentile a level.
        """
        known = {width: self.slopes(width) for width in HALF_WIDTHS}
        known = {width: slopes for width, slopes in known.items() if len(slopes)}
        return {
            "half_widths": list(known),
            "levels": list(SLOPE_LEVELS),
            "slopes": [[quantile(slopes, level / 100) for level in SLOPE_LEVELS] for slopes in known.values()],
        }


def loss_slice(
    model: torch.nn.Module,
    batches: Sequence[Mapping[str, Any]],
    generator: torch.Generator,
    size: int = SIZE,
    progress: Callable[[float], None] | None = None,
) -> LossSlice:
    """The loss around a model's weights in a plane of two random directions, in evaluation mode: size² passes.

    Each direction is Gaussian and scaled, parameter tensor by parameter tensor, to the norm of that tensor: a step of 1
    is as long as the weights are. Weights (bit for bit), modes and ``.grad`` are as they were afterwards.

    Args:
        model: gives an output with a ``loss``. Parameters that are not trained stay where they are.
        batches: what its forward takes, with labels; the loss is the mean over their rows.
        generator: draws the directions; the same state gives the same directions, up to the tensors' norms, for any model
            with the same shapes.
        size: points a side, ≥ 2; an odd number has the weights themselves among them.
        progress: called with the share that is done.

    Raises:
        ValueError: for a size below 2, without a batch, or with a model that gives no loss.

    Example:
        >>> found = loss_slice(model, [batch], torch.Generator().manual_seed(0), size=21)  # doctest: +SKIP
        >>> found.losses.shape, found.slopes(0.5).median()  # doctest: +SKIP
        (torch.Size([21, 21]), tensor(1.7, dtype=torch.float64))
    """
    if size < 2 or not batches:
        raise ValueError(f"a slice of {size} points a side over {len(batches)} batches; allowed: at least 2 and 1")
    with weights_restored(model) as (parameters, before):
        first, second = _direction(before, generator), _direction(before, generator)
        rows = torch.tensor([len(batch["labels"]) for batch in batches], dtype=torch.float64)
        offsets = torch.linspace(-1, 1, size, dtype=torch.float64)
        losses = torch.empty((size, size), dtype=torch.float64)
        for row in range(size):
            for column in range(size):
                with torch.no_grad():
                    for parameter, value, u, v in zip(parameters, before, first, second, strict=True):
                        parameter.copy_(value + offsets[row].item() * u + offsets[column].item() * v)
                losses[row, column] = (losses_of(model, batches) * rows).sum() / rows.sum()
            if progress is not None:
                progress((row + 1) / size)
    return LossSlice(offsets, losses)


def _direction(values: Sequence[torch.Tensor], generator: torch.Generator) -> list[torch.Tensor]:
    """Gaussian, and as long as each tensor."""
    drawn = [torch.randn(value.shape, generator=generator, device=generator.device).to(value) for value in values]
    return [part * (value.norm() / part.norm()) for part, value in zip(drawn, values, strict=True)]
