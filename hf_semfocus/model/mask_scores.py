"""Input-dependent mask strategies ("heavy hitters"): the kept keys are chosen by their scores (DESIGN section 2)."""

import torch

from .kth_largest import kth_largest
from .mask_base import MaskContext, MaskStrategy, parameter
from .mask_registry import register_mask_strategy
from .mask_structure import Structure


@register_mask_strategy("topk")
class TopK(MaskStrategy):
    """The k largest scores of each query among its valid keys: exactly min(k, valid), ties to the lowest key index.

    A row that holds NaN keeps at least its NaN keys, so that the NaN shows in the output of that query and of no other.
    """

    k: int = parameter(minimum=1)
    row_by_row = True

    def structure(self, keys: int) -> Structure:
        """A selection; see :meth:`MaskStrategy.structure`."""
        return Structure(selected=min(self.k, keys))

    def keep(self, scores: torch.Tensor, valid: torch.Tensor, context: MaskContext) -> torch.Tensor:
        """The k largest scores; see :meth:`MaskStrategy.keep`."""
        return topk_keys(scores, valid, self.k)


def topk_keys(scores: torch.Tensor, valid: torch.Tensor, k: int) -> torch.Tensor:
    """Bool mask of the k largest scores in each row, ties to the lowest index.

    ``torch.topk`` breaks ties as it likes, so only the k-th largest value is used: what lies above it is kept, and of what
    equals it, as many as are missing, from the left. Compiled, it has no branch on data and makes one graph.

    Args:
        scores: ``(…, K)``, −inf where a key is not valid.
        valid: bool, broadcastable to `scores`.
        k: at least 1.

    Returns:
        bool, in the shape of `scores`.
    """
    k = min(k, scores.shape[-1])
    smallest = kth_largest(scores, k)
    if not torch.compiler.is_compiling():
        kept = ~(scores < smallest)
        if int(kept.sum()) == k * smallest.numel():
            # No ties, and nothing that is not valid among the k: the common case, at half the cost.
            return kept
    # Written so that NaN, which compares False with everything, counts as above.
    above = ~(scores <= smallest)
    tied = (scores == smallest) & valid
    missing = k - above.sum(dim=-1, keepdim=True)
    return above | (tied & (tied.cumsum(dim=-1) <= missing))
