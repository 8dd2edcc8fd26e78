"""`cluster`: keys in the query's cluster, with centroids that each attention layer learns (DESIGN section 2).

Shapes: B batch, H query heads, G key heads, L length, T head dim, C clusters.
"""

from typing import Any

import torch
import torch.nn.functional as F

from .mask_base import MaskStrategy
from .mask_hashes import hyperplanes
from .mask_inputs import MaskContext, without_autocast
from .mask_parameters import parameter
from .mask_registry import register_mask_strategy
from .mask_state import Copy, MaskState


@register_mask_strategy("cluster")
class Cluster(MaskStrategy):
    """Keys in the query's cluster: the nearest of `clusters` centroids to the query is the nearest to the key as well.

    Queries and keys are first scaled to length 1, so that a shared cluster means a large score. Near is by Euclidean
    distance; of equally near centroids the one with the lowest index counts. Every key head of every layer has centroids
    of its own (query heads that share a key head share them), and learns them by running means: see
    :class:`Centroids`. A query whose cluster holds no key keeps none, and its output is zero; ``cluster:8+banded:1``
    keeps its own position besides.

    In the paper each centroid takes the same number of nearest queries and keys, for the hardware's sake; its definition
    (section 4.1), and ours, is by the nearest centroid alone, and clusters have any size.

    Cost: a product (Q + K) · T · C, and a comparison of Q · K numbers, besides dense scores; in training a second
    product of that size for the means.

    Source: Roy et al. 2021, "Efficient Content-Based Sparse Attention with Routing Transformers", section 4.1.

    Raises:
        ValueError: where there is no attention layer to learn centroids: in ``sparse_attention`` on plain tensors, and in
            other models through ``register_attention``.
    """

    clusters: int = parameter(minimum=1, maximum=2**16)
    decay: float = parameter(default=0.999, minimum=0.0, maximum=1.0)
    row_by_row = True
    counts_queries = counts_keys = False

    def make_state(self, head_dim: int, heads: int) -> "Centroids":
        """The centroids of one layer; see :meth:`MaskStrategy.make_state`."""
        return Centroids(heads, self.clusters, head_dim, self.decay)

    def keep(self, scores: torch.Tensor, valid: torch.Tensor, context: MaskContext) -> torch.Tensor:
        """Keys of the query's cluster; see :meth:`MaskStrategy.keep`."""
        query, key = context.query_and_key(self)
        if context.state is None:
            raise ValueError(
                f"mask {str(self)!r} needs an attention layer that learns its centroids, and there is none here: "
                "use it as the mask of a SemFocus model"
            )
        centroids_GCT = context.state
        if centroids_GCT.shape[0] != key.shape[1] or centroids_GCT.shape[2] != key.shape[3]:
            raise ValueError(
                f"mask {str(self)!r} has centroids for {centroids_GCT.shape[0]} key heads of size "
                f"{centroids_GCT.shape[2]}, and the keys have shape {tuple(key.shape)}"
            )
        clusters_BHQ = nearest_centroid(_unit(query.detach()), centroids_GCT)
        clusters_BGK = nearest_centroid(_unit(key.detach()), centroids_GCT)
        clusters_BHK = clusters_BGK.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        return clusters_BHQ.unsqueeze(-1) == clusters_BHK.unsqueeze(-2)


class Centroids(MaskState):
    """The centroids of one attention layer, learned by running means.

    A forward pass in training mode assigns queries and keys (of real positions; of all query heads that a key head
    serves) to the centroids as they are. A centroid μ that was given n > 0 of them, with mean m, becomes
    ``decay · μ + (1 − decay) · m`` *at the next forward pass in training mode*; the others stay, but the first of
    those that were given none moves to the vector that is farthest from its centroid. (The paper adds sums where we add
    means, which does not depend on the batch size. It gives every centroid the same number of vectors; where the
    nearest centroid alone counts, the few that start near the data would take it all, and the mask would keep all.)

    That it waits keeps three promises. A pass that gradient checkpointing repeats sees the centroids that it saw, and
    learns nothing twice: the same means are written to the same place, or dropped where a later pass has been counted
    already. Evaluation never changes a centroid. And under ``DistributedDataParallel``, which gives every process the
    buffers of the first one before each synchronised pass, all processes have equal centroids whenever they evaluate;
    what is learnt is learnt from the first process's share of the batch, as it is for batch normalisation.

    Everything is computed in fp32 (fp64 for fp64 models), also under autocast. SemFocus models
    load the buffers in fp32 whatever their ``dtype``; one that is cast to bf16 afterwards rounds small steps away.

    Attributes:
        centroids: ``(G, C, T)``, what masks are made from.
        next_centroids: ``(G, C, T)``, what they become.
    """

    centroids: torch.Tensor
    next_centroids: torch.Tensor

    def __init__(self, heads: int, clusters: int, head_dim: int, decay: float) -> None:
        super().__init__()
        self.decay = decay
        for name in ("centroids", "next_centroids"):
            self.register_buffer(name, torch.empty(heads, clusters, head_dim))
        self.reset()

    def reset(self, copy: Copy = torch.Tensor.copy_) -> None:
        """Fixed directions, other ones for each head, and the same on every device; no generator is touched."""
        heads, clusters, size = self.centroids.shape
        start = hyperplanes(size, heads * clusters, seed=0, device=self.centroids.device)
        start_GCT = _unit(start.T).view(heads, clusters, size)
        for buffer in (self.centroids, self.next_centroids):
            copy(buffer, start_GCT)

    @torch.no_grad()
    def read(self) -> torch.Tensor:
        """A copy of the centroids; in training mode, of those that the pass before has learnt."""
        if self.training:
            self.centroids.copy_(self.next_centroids)
        return self.centroids.clone()

    @torch.no_grad()
    def learn(self, read: Any, query: torch.Tensor, key: torch.Tensor, real: torch.Tensor | None) -> None:
        """Move `next_centroids`; see :meth:`MaskState.learn`."""
        unit_GNT, real_GN1, close_GNC = self._seen(read, query, key, real)
        assigned_GNC = F.one_hot(close_GNC.argmax(dim=-1), self.centroids.shape[1]).to(unit_GNT.dtype) * real_GN1
        count_GC1 = assigned_GNC.sum(dim=1).unsqueeze(-1)
        with without_autocast(query):
            mean_GCT = torch.matmul(assigned_GNC.transpose(-1, -2), unit_GNT) / count_GC1.clamp(min=1)
        learnt = torch.where(count_GC1 > 0, self.decay * read + (1 - self.decay) * mean_GCT, read)
        empty_GC1 = (count_GC1 == 0) & real_GN1.any(dim=1, keepdim=True)
        first_GC1 = empty_GC1 & (empty_GC1.cumsum(dim=1) == 1)
        near_GN1 = close_GNC.amax(dim=-1, keepdim=True).masked_fill(~real_GN1, torch.inf)
        farthest_G1T = unit_GNT.take_along_dim(near_GN1.argmin(dim=1, keepdim=True), dim=1)
        learnt = torch.where(first_GC1, farthest_G1T.to(learnt.dtype), learnt)
        # A repeated pass that is not the last one: what came after it has been counted.
        current = (self.centroids == read).all()
        self.next_centroids.copy_(torch.where(current, learnt, self.next_centroids))

    def _seen(
        self, centroids_GCT: torch.Tensor, query: torch.Tensor, key: torch.Tensor, real: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """All N queries and keys of each key head: their directions, whether they count, their closeness to centroids."""
        parts = []
        for vectors in (query, key):
            unit = _unit(vectors.detach())
            # What has no direction teaches none.
            counts = unit.isfinite().all(dim=-1, keepdim=True) & unit.any(dim=-1, keepdim=True)
            if real is not None:
                counts = counts & real.expand(unit.shape[0], unit.shape[2])[:, None, :, None]
            unit = torch.where(counts, unit, 0.0)
            parts.append((unit, counts, _closeness(unit, centroids_GCT)))
        groups = centroids_GCT.shape[0]
        unit_GNT, real_GN1, close_GNC = (
            # (B, H, L, x) → (G, B · H/G · L, x)
            torch.cat([part.unflatten(1, (groups, -1)).transpose(0, 1).flatten(1, 3) for part in pair], dim=1)
            for pair in zip(*parts, strict=True)
        )
        return unit_GNT, real_GN1, close_GNC


def nearest_centroid(unit_BHLT: torch.Tensor, centroids_GCT: torch.Tensor) -> torch.Tensor:
    """Index of the centroid with the smallest Euclidean distance; the lowest of equal ones.

    Args:
        unit_BHLT: vectors ``(B, H, L, T)`` in fp32 or fp64.
        centroids_GCT: G divides H, and head g of them serves heads gH/G … (g+1)H/G − 1.

    Returns:
        int64 ``(B, H, L)``.

    Example:
        >>> nearest_centroid(torch.tensor([[[[1.0, 0.0]]]]), torch.tensor([[[0.0, 1.0], [0.9, 0.1]]])).item()
        1
    """
    return _closeness(unit_BHLT, centroids_GCT).argmax(dim=-1)


def _closeness(unit_BHLT: torch.Tensor, centroids_GCT: torch.Tensor) -> torch.Tensor:
    """``x·μ − ‖μ‖²/2``, which is ``(‖x‖² − ‖x − μ‖²) / 2``: ``(B, H, L, C)``."""
    centroids = centroids_GCT.to(unit_BHLT.dtype)
    centroids_HCT = centroids.repeat_interleave(unit_BHLT.shape[1] // centroids.shape[0], dim=0)
    with without_autocast(unit_BHLT):
        products = torch.matmul(unit_BHLT, centroids_HCT.transpose(-1, -2))
    return products - centroids_HCT.square().sum(dim=-1)[:, None, :] / 2


def _unit(vectors: torch.Tensor) -> torch.Tensor:
    """Vectors of length 1, in fp32 or fp64; 0 stays 0."""
    precise = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
    return precise / precise.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(precise.dtype).tiny)
