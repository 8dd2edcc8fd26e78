"""`lsh`: keys that fall into the same bucket as the query, by locality-sensitive hashing (DESIGN section 2)."""

import functools

import torch

from .mask_base import MaskStrategy
from .mask_inputs import MaskContext, without_autocast
from .mask_parameters import parameter
from .mask_positions import position_hash
from .mask_registry import register_mask_strategy

# The sum of this many uniform numbers has the variance of a normal one, and is close to it.
UNIFORMS = 12


@register_mask_strategy("lsh")
class LSH(MaskStrategy):
    """Keys that share a hash bucket with the query in any of `rounds` rounds, and the query's own position.

    A round has `bits` random hyperplanes through the origin, fixed by `seed`: the bucket of a query or key x is the
    word of the signs ``x · r_i > 0``. So the number in ``lsh:4`` counts *bits*, and a round has 2⁴ = 16 buckets: any number
    of bits is a hash, a number of buckets would have to be a power of two, and each further bit halves what is kept
    (``lsh:4;rounds=2`` keeps 5 of 40 keys of random directions on average, as ``topk:5`` does). A query and a key at the
    angle θ share a round's bucket with probability ``(1 − θ/π)^bits`` over the choice of hyperplanes; lengths do not count.

    Queries and keys are hashed as they are scored, each by its own projection, so that a shared bucket means a large
    score; in Reformer they share one. Buckets are kept whole: none is cut to a size.

    The hyperplanes are the same for all heads and layers, and on every device (:func:`hyperplanes`). A score within rounding
    of 0 may have either sign.

    Cost: two products (Q + K) · T · rounds · bits, and a comparison of Q · K words a round, besides dense scores.

    Sources: Charikar 2002, "Similarity Estimation Techniques from Rounding Algorithms", section 3; Kitaev et al. 2020,
    "Reformer", section 2.

    Raises:
        ValueError: where the caller has no queries and keys (``mask(scores)`` alone).
    """

    bits: int = parameter(minimum=1, maximum=62)
    rounds: int = parameter(default=1, minimum=1, maximum=1024)
    seed: int = parameter(default=0, minimum=0, maximum=2**62)
    row_by_row = True

    def keep(self, scores: torch.Tensor, valid: torch.Tensor, context: MaskContext) -> torch.Tensor:
        """Keys with an equal word in any round, and the query's own; see :meth:`MaskStrategy.keep`."""
        query, key = context.query_and_key(self)
        kept = context.query_positions == context.key_positions
        query_words, key_words = self._words(query), self._words(key)
        if key_words.shape[1] != query_words.shape[1]:
            key_words = key_words.repeat_interleave(query_words.shape[1] // key_words.shape[1], dim=1)
        for theirs, ours in zip(key_words.unbind(-1), query_words.unbind(-1), strict=True):
            kept = kept | (ours.unsqueeze(-1) == theirs.unsqueeze(-2))
        return kept

    def _words(self, vectors_BHLT: torch.Tensor) -> torch.Tensor:
        """The bucket of each vector in each round, int64 ``(B, H, L, rounds)``."""
        precise = torch.promote_types(vectors_BHLT.dtype, torch.float32)
        size, device = vectors_BHLT.shape[-1], vectors_BHLT.device
        # A compiler traces with tensors that must not outlive it.
        make = hyperplanes if torch.compiler.is_compiling() else _remembered_hyperplanes
        planes_Tn = make(size, self.rounds * self.bits, self.seed, device).to(precise)
        with without_autocast(vectors_BHLT):
            signs = torch.matmul(vectors_BHLT.detach().to(precise), planes_Tn) > 0
        powers = 2 ** torch.arange(self.bits, device=device)
        return (signs.unflatten(-1, (self.rounds, self.bits)) * powers).sum(dim=-1)


def hyperplanes(size: int, count: int, seed: int, device: torch.device | None = None) -> torch.Tensor:
    """Normal vectors of random hyperplanes, the same on every device and platform.

    Each entry is the sum of twelve numbers of :func:`position_hash`, less its mean: nearly normal, of variance 1, and
    exact, since whole numbers are added.

    Args:
        size: T, at least 1.
        count: number of hyperplanes.
        seed: another seed gives others.

    Returns:
        fp32 ``(T, count)``.

    Example:
        >>> hyperplanes(2, 3, seed=0).shape
        torch.Size([2, 3])
    """
    row = torch.arange(size, device=device)[:, None, None]
    column = torch.arange(count * UNIFORMS, device=device).view(1, count, UNIFORMS)
    # A sum of twelve 31-bit numbers; without its last 12 bits it fits the 24 bits of fp32.
    total = position_hash(row, column, seed).sum(dim=-1) - UNIFORMS // 2 * (2**31 - 1)
    return (total >> 12).to(torch.float32) / 2**19


@functools.lru_cache(maxsize=64)
def _remembered_hyperplanes(size: int, count: int, seed: int, device: torch.device) -> torch.Tensor:
    with torch.inference_mode(False):
        return hyperplanes(size, count, seed, device)
