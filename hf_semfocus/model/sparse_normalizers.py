"""Sparsemax and entmax-1.5: what takes softmax's place where the scores themselves decide which keys get weight zero.

Both project a row of scores on the simplex; with τ chosen so that the weights sum to 1,

    sparsemax    A_j = max(z_j − τ, 0)          Martins and Astudillo 2016, arXiv 1602.02068
    entmax-1.5   A_j = max(z_j / 2 − τ, 0)²     Peters, Niculae and Martins 2019, arXiv 1905.05702

τ is exact (by sorting), and so are the gradients: with s = 1 on the support for sparsemax and s = √A for entmax-1.5,
∂L/∂z = s ∘ (g − ⟨s, g⟩ / ⟨s, 1⟩), g = ∂L/∂A.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from .mask_inputs import compute_dtype

OUTSIDE = -2.0
"""Below every threshold: relative to its row's maximum, τ is at least −1 for both."""


def masked_softmax(scores: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Softmax over the kept keys; exactly 0 elsewhere, and all 0 where nothing is kept.

    The fill is the lowest finite number, not −inf: a row of −inf has NaN for a softmax, and NaN gradients.

    Example:
        >>> masked_softmax(torch.tensor([0.0, 0.0, 9.0]), torch.tensor([True, True, False])).tolist()
        [0.5, 0.5, 0.0]
    """
    filled = scores.masked_fill(~keep, torch.finfo(scores.dtype).min)
    return filled.softmax(dim=-1).masked_fill(~keep, 0.0)


def sparsemax(scores: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Sparsemax over the kept keys of each row.

    Args:
        scores: ``(..., K)`` floating point.
        keep: bool, broadcastable to `scores`; other keys get weight and gradient exactly 0.

    Returns:
        ``(..., K)`` in the dtype of `scores`, ≥ 0, computed in fp32 at least. Rows sum to 1; those with no kept key are 0,
        with gradients 0. A NaN among the kept scores makes its own row NaN.

    Example:
        >>> sparsemax(torch.tensor([1.0, 0.5, -3.0, 9.0]), torch.tensor([True, True, True, False])).tolist()
        [0.75, 0.25, 0.0, 0.0]
    """
    return _Sparse.apply(scores, keep.expand(scores.shape), "sparsemax")


def entmax15(scores: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Entmax with α = 1.5 over the kept keys of each row; arguments and result as of :func:`sparsemax`.

    Example:
        >>> entmax15(torch.tensor([2.0, 0.0, 0.0]), torch.tensor([True, True, False])).tolist()
        [1.0, 0.0, 0.0]
    """
    return _Sparse.apply(scores, keep.expand(scores.shape), "entmax15")


NORMALIZERS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "softmax": masked_softmax,
    "entmax15": entmax15,
    "sparsemax": sparsemax,
}
"""By name: functions of scores and kept keys, both ``(..., K)``, that give attention weights."""


def normalizer_named(name: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The function of `NORMALIZERS` with this name; ``ValueError`` where there is none."""
    if name not in NORMALIZERS:
        raise ValueError(f"unknown normalizer {name!r}; allowed: {', '.join(NORMALIZERS)}")
    return NORMALIZERS[name]


def scores_gradient(name: str, weights: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """∂L/∂z of a normalizer from its weights A and ∂L/∂A, both ``(..., K)`` of one dtype, in which it is computed."""
    if name == "softmax":
        return torch.ops.aten._softmax_backward_data(gradient, weights, -1, weights.dtype)
    slope = weights.sqrt() if name == "entmax15" else torch.where(weights > 0, 1.0, weights)  # NaN stays
    total = slope.sum(-1, keepdim=True)
    seen = torch.where(slope == 0, 0.0, slope * gradient)  # what has no weight may have any gradient, NaN too
    mean = seen.sum(-1, keepdim=True) / total.masked_fill(total == 0, 1.0)
    return seen - slope * mean


def _shifted(scores: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Scores less their row's maximum, in the compute dtype; what is not kept, or too small for any weight: `OUTSIDE`."""
    precise = scores.to(compute_dtype(scores.dtype))
    filled = precise.masked_fill(~keep, torch.finfo(precise.dtype).min)
    return (filled - filled.amax(-1, keepdim=True)).masked_fill(~keep, OUTSIDE)


def _ranks(ordered: torch.Tensor) -> torch.Tensor:
    return torch.arange(1, ordered.shape[-1] + 1, device=ordered.device, dtype=ordered.dtype)


class _Sparse(torch.autograd.Function):
    """The weights of a sparse normalizer, by its name."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: torch.Tensor, keep: torch.Tensor, name: str) -> torch.Tensor:
        weights = _entmax15_weights(scores, keep) if name == "entmax15" else _sparsemax_weights(scores, keep)
        return weights.masked_fill(~keep, 0.0).to(scores.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, torch.Tensor, str], output: torch.Tensor) -> None:
        ctx.name = inputs[2]
        ctx.save_for_backward(output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (weights,) = ctx.saved_tensors
        precise = compute_dtype(weights.dtype)
        return scores_gradient(ctx.name, weights.to(precise), gradient.to(precise)).to(weights.dtype), None, None


def _sparsemax_weights(scores: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    shifted = _shifted(scores, keep).clamp(min=OUTSIDE)
    ordered = shifted.sort(-1, descending=True).values
    ranks, sums = _ranks(ordered), ordered.cumsum(-1)
    # The support is a prefix of the order: as long as 1 + j z_(j) > z_(1) + … + z_(j).
    size = (1 + ranks * ordered > sums).sum(-1, keepdim=True).clamp(min=1)
    threshold = (sums.gather(-1, size - 1) - 1) / size
    return (shifted - threshold).clamp(min=0)


def _entmax15_weights(scores: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    shifted = (_shifted(scores, keep) / 2).masked_fill(~keep, OUTSIDE).clamp(min=OUTSIDE)
    ordered = shifted.sort(-1, descending=True).values
    ranks = _ranks(ordered)
    means, squares = ordered.cumsum(-1) / ranks, ordered.square().cumsum(-1) / ranks
    # τ of each prefix of the order, from Σ (z − τ)² = 1; the support is the longest that lies above its own.
    thresholds = means - ((1 / ranks) - (squares - means.square())).clamp(min=0).sqrt()
    size = (thresholds <= ordered).sum(-1, keepdim=True).clamp(min=1)
    return (shifted - thresholds.gather(-1, size - 1)).clamp(min=0).square()
