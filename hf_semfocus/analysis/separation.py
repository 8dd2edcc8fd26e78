"""Semantic separation Δ: how far the kept scores of a query lie above those left out (DESIGN §2; arXiv 2506.14095)."""

import math

import torch

from .dispersion import checked


def separation(scores: torch.Tensor, keep: torch.Tensor, valid: torch.Tensor | None = None) -> torch.Tensor:
    """Δ_i = min_{j∈S_i} D_ij − max_{j∉S_i, j valid} D_ij.

    At least 0 for top-k (0 with a tie across the selection's edge); usually negative for masks that do not look at
    scores.

    Args:
        scores: (B, H, Q, K) scaled scores D, any float type.
        keep: bool, broadcastable to `scores`: the kept keys S_i.
        valid: bool, broadcastable to `scores`: keys that exist (not padding, not forbidden). None: all.

    Returns:
        (B, H, Q) in score units, in fp32 (fp64 for fp64 scores); NaN where no valid key is left out, or none is kept.

    Example:
        >>> separation(torch.tensor([[[[1.0, 4.0, -2.0]]]]), torch.tensor([[[[False, True, False]]]])).item()
        3.0
    """
    scores, keep, valid = checked(scores, keep, valid)
    left_out = valid & ~keep
    lowest_kept = scores.masked_fill(~keep, math.inf).amin(-1)
    highest_left_out = scores.masked_fill(~left_out, -math.inf).amax(-1)
    defined = keep.any(-1) & left_out.any(-1)
    return (lowest_kept - highest_left_out).masked_fill(~defined, math.nan)
