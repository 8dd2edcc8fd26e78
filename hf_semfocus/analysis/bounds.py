"""How far a softmax can move when its scores do: the two ℓ1 bounds of DESIGN §2."""

import math

import torch


def loose_bound(dispersion: torch.Tensor, kept: torch.Tensor | int) -> torch.Tensor:
    """L = 2 min(e^δ/n, ¼), with ‖softmax(z) − softmax(z')‖₁ ≤ L ‖z − z'‖₁ for rows z, z' of dispersion ≤ δ on the same n keys.

    Where e^δ/n ≥ ¼ it is ½, which holds for any scores: there the dispersion says nothing (:func:`is_vacuous`).

    Args:
        dispersion: δ, any shape; NaN stays NaN.
        kept: number of keys n, an integer or a tensor that broadcasts to `dispersion`.

    Returns:
        A tensor of the shape of `dispersion`, in (0, ½].

    Example:
        >>> loose_bound(torch.tensor([0.0, 9.0]), 20).tolist()
        [0.10000000149011612, 0.5]
    """
    return 2 * (dispersion - counted(kept, dispersion).log()).clamp(max=math.log(0.25)).exp()


def sharp_bound(dispersion: torch.Tensor, kept: torch.Tensor | int) -> torch.Tensor:
    """L = 2p(1 − p) with p = min(½, e^δ/(e^δ + n − 1)), otherwise as :func:`loose_bound`, and never above it.

    p is the largest weight that a row of dispersion δ can have; a row with one key δ above all others comes within 1 % of
    the bound.

    Example:
        >>> round(sharp_bound(torch.tensor(0.0), 20).item(), 4)   # p = 1/20
        0.095
    """
    # e^δ/(e^δ + n − 1) without e^δ, which overflows.
    largest = torch.sigmoid(dispersion - (counted(kept, dispersion) - 1).log()).clamp(max=0.5)
    return 2 * largest * (1 - largest)


def is_vacuous(dispersion: torch.Tensor, kept: torch.Tensor | int) -> torch.Tensor:
    """Whether the loose bound says no more than ½: e^δ/n ≥ ¼. bool; False for NaN."""
    return dispersion - counted(kept, dispersion).log() >= math.log(0.25)


def counted(kept: torch.Tensor | int, like: torch.Tensor) -> torch.Tensor:
    """A number of keys as a tensor of the type of `like`."""
    return torch.as_tensor(kept, device=like.device).to(like.dtype)
