"""Semantic dispersion δ: how far apart the kept scores of a query are (DESIGN §2; arXiv 2506.14095).

Shapes: B batch, H heads, Q queries, K keys. Rows are queries.
"""

import math

import torch


def dispersion(scores: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """δ_i = max_{j∈S_i} D_ij − min_{j∈S_i} D_ij, S_i the kept keys of query i.

    With every valid key kept this is δ_s of full attention; with a heavy-hitter mask on the same scores it is δ_h ≤
    δ_s.

    Args:
        scores: (B, H, Q, K) scaled scores D, any float type. Values where `keep` is False are not looked at.
        keep: bool, broadcastable to `scores`.

    Returns:
        (B, H, Q) ≥ 0, in score units, in fp32 (fp64 for fp64 scores); 0 for one kept key, NaN for none.

    Example:
        >>> dispersion(torch.tensor([[[[1.0, 4.0, -2.0]]]]), torch.tensor([[[[True, True, False]]]])).item()
        3.0
    """
    scores, keep = checked(scores, keep)
    highest = scores.masked_fill(~keep, -math.inf).amax(-1)
    lowest = scores.masked_fill(~keep, math.inf).amin(-1)
    return (highest - lowest).masked_fill(~keep.any(-1), math.nan)


def checked(scores: torch.Tensor, *masks: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    """`scores` in at least fp32, and each mask (None: all) with the shape of `scores`; `ValueError` where they do not fit."""
    if scores.ndim != 4 or not scores.is_floating_point():
        raise ValueError(f"scores are {scores.dtype} {tuple(scores.shape)}; allowed: floats of shape (B, H, Q, K)")
    expanded = []
    for mask in masks:
        if mask is None:
            mask = torch.ones((), dtype=torch.bool, device=scores.device)
        if mask.dtype != torch.bool:
            raise ValueError(f"a mask is {mask.dtype}; allowed: torch.bool")
        try:
            expanded.append(mask.expand(scores.shape))
        except RuntimeError:
            raise ValueError(
                f"a mask of shape {tuple(mask.shape)} does not broadcast to scores of shape {tuple(scores.shape)}"
            ) from None
    # A difference of two fp16 scores can exceed fp16's largest number.
    return scores.to(torch.promote_types(scores.dtype, torch.float32)), *expanded
