"""β: how many queries keep a key (arXiv 2506.14095)."""

import math

import torch


def queries_per_key(keep: torch.Tensor, valid: torch.Tensor | None = None) -> torch.Tensor:
    """β_j, the number of queries i with j among their kept keys S_i.

    Its sum over the keys is the sum of the sizes of all S_i, so with as many queries as keys its mean is the mean
    number of kept keys: a mask fixes the mean and only how uneven β is depends on the scores.

    Args:
        keep: bool (B, H, Q, K): the kept keys.
        valid: bool, broadcastable to `keep`: keys that exist. None: all.

    Returns:
        (B, H, K) fp32; NaN for a key that no query may see.

    Example:
        >>> queries_per_key(torch.tensor([[[[True, False], [True, False], [True, True]]]])).tolist()
        [[[3.0, 1.0]]]
    """
    counts = keep.sum(-2).float()
    return counts if valid is None else counts.masked_fill(~valid.expand(keep.shape).any(-2), math.nan)
