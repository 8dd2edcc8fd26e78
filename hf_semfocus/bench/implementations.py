"""The implementations of attention that are measured beside each other, each as a user would call it.

Each takes a mask and the keys' number, prepares what does not depend on the inputs (which is not measured), and gives a
function of query, key and value ``(B, H, L, T)``; or None, where it has no such mask.

Shapes: B batch, H heads, L length (queries and keys), T head dim.
"""

import functools
import operator
from collections.abc import Callable

import torch
import torch.nn.functional as F

from ..model.attention_sparse import sparse_attention
from ..model.mask_base import MaskStrategy
from ..model.mask_positions import Full
from ..model.mask_registry import mask_parts
from ..model.mask_scores import TopK

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class NotInstalledError(ValueError):
    """The package of an implementation is missing."""


def ours(mask: MaskStrategy, length: int, device: torch.device) -> Attend:
    """:func:`hf_semfocus.attention.sparse_attention`."""
    return lambda query, key, value: sparse_attention(query, key, value, mask)  # type: ignore[return-value]


def dense(mask: MaskStrategy, length: int, device: torch.device) -> Attend:
    """``scaled_dot_product_attention`` over all keys, whatever the mask, as PyTorch computes it by default."""
    return F.scaled_dot_product_attention


def fastest_dense(mask: MaskStrategy, length: int, device: torch.device) -> Attend:
    """Attention over all keys in the fastest exact way that we know on this machine: ours under ``full``."""
    full = Full()
    return lambda query, key, value: sparse_attention(query, key, value, full)  # type: ignore[return-value]


def mask_then_softmax(mask: MaskStrategy, length: int, device: torch.device) -> Attend:
    """Sparse attention as it is usually written, differentiated by autograd: all scores, a mask, a softmax, a product.

    A selection is a threshold at the k-th largest score. Parts fixed by positions are made before the clock starts. Other
    strategies are asked with the scores in hand.
    """
    parts = mask_parts(mask)
    selected = [part.k for part in parts if isinstance(part, TopK)]
    others = [part for part in parts if not isinstance(part, TopK)]
    asked = any(not part.fixed for part in others)
    dropped = None
    if others and not asked:
        dropped = ~functools.reduce(operator.or_, [part.on_positions(length, device=device) for part in others])

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
        with torch.no_grad():
            masked = dropped
            if asked:
                masked = ~mask(scores, query=query, key=key)
            elif selected:
                kth = scores.topk(min(max(selected), length), dim=-1).values[..., -1:]
                masked = scores < kth if dropped is None else (scores < kth) & dropped
        return scores.masked_fill(masked, -torch.inf).softmax(dim=-1) @ value

    return attend


def x_transformers(mask: MaskStrategy, length: int, device: torch.device) -> Attend | None:
    """``Attend(sparse_topk=k)`` of the package x-transformers, which has ``topk`` alone.

    Raises:
        NotInstalledError: if the package is missing.
    """
    try:
        from x_transformers.attend import Attend as TheirAttend
    except ImportError:
        raise NotInstalledError(
            "x-transformers is not installed; pip install -c constraints.txt -e '.[bench]'"
        ) from None
    if not isinstance(mask, TopK):
        return None
    attend = TheirAttend(sparse_topk=min(mask.k, length))
    # What it also returns (scores before and after the softmax) is let go: kept, it would count as memory.
    return lambda query, key, value: attend(query, key, value)[0]


IMPLEMENTATIONS: dict[str, Callable[[MaskStrategy, int, torch.device], Attend | None]] = {
    "ours": ours,
    "dense": dense,
    "fastest dense": fastest_dense,
    "mask-then-softmax": mask_then_softmax,
    "x-transformers": x_transformers,
}
