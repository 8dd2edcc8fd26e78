"""Softmax stability constants ξ, in logs so that they never overflow (DESIGN §2; arXiv 2506.14095).

A small ξ means that a change of the scores changes the attention weights little. For scores of dispersion ≤ δ on n
keys, ‖softmax(z) − softmax(z')‖₁ ≤ 2 min(e^δ/n, ¼) ‖z − z'‖₁.
"""

import torch

from .bounds import counted


def log_stability(
    dispersion: torch.Tensor, kept: torch.Tensor | int, separation: torch.Tensor | None = None
) -> torch.Tensor:
    """log ξ = δ − log k, plus log(1 + 1/Δ) for masks that choose keys by their scores.

    Full attention: `log_stability(δ_s, n)`. Input-agnostic: `log_stability(δ, k)`. Heavy hitters:
        `log_stability(δ_h, k, Δ_h)`.

    Args:
        dispersion: δ, any shape; NaN stays NaN.
        kept: number of kept keys k, an integer or a tensor that broadcasts to `dispersion`.
        separation: Δ, of the same shape, or None for no penalty. 0 gives +∞, a negative value NaN (the bound does not
            hold), NaN (nothing was left out, so nothing can be swapped) and +∞ no penalty.

    Returns:
        A tensor of the shape of `dispersion`.

    Example:
        >>> round(log_stability(torch.tensor(2.0), 4, torch.tensor(1.0)).item(), 4)   # 2 − log 4 + log 2
        1.3069
    """
    value = dispersion - counted(kept, dispersion).log()
    if separation is None:
        return value
    # log(1 + 1/Δ) without 1/Δ, which overflows for tiny Δ; log of a negative Δ is NaN, as it should be.
    penalty = separation.log1p() - separation.log()
    # Undefined: nothing was left out. Infinite: nothing can be swapped, and ∞ − ∞ above is not 0 by itself.
    none = separation.isnan() | separation.isposinf()
    return value + torch.where(none, torch.zeros_like(penalty), penalty)
