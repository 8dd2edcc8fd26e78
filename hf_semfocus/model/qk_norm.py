"""QK-norm: queries and keys are normalised in each head, so the size of the scores is set and does not drift.

Henry et al. 2020, "Query-Key Normalization for Transformers", with the root-mean-square norm that later models take.
"""

import torch
from torch import nn

from .attention_reference import compute_dtype


class QKNorm(nn.Module):
    """Divides each query and key by its root mean square over the head dim.

    Scores ``q k / √T`` then lie within ±``initial_scale`` · √T at the start, whatever the weights before it.

    Args:
        head_dim: T.
        initial_scale: factor on the normalised scores at the start.
        learnable: whether factors of each of the T dimensions, shared by the heads, are trained; otherwise `initial_scale`
            stays.
        eps: added to the mean square.

    Example:
        >>> query, key = QKNorm(2)(torch.tensor([[3.0, 4.0]]), torch.tensor([[-30.0, -40.0]]))
        >>> round(query.square().mean().item(), 3), round((query @ key.T).item(), 3)   # opposite, each of length √2
        (1.0, -2.0)
    """

    def __init__(self, head_dim: int, initial_scale: float = 1.0, learnable: bool = True, eps: float = 1e-6) -> None:
        super().__init__()
        if initial_scale <= 0:
            raise ValueError(f"initial_scale is {initial_scale}; allowed: a number > 0")
        self.initial_scale, self.eps = initial_scale, eps
        weight = torch.full((head_dim,), self.initial_weight)
        self.query_weight = nn.Parameter(weight) if learnable else None
        self.key_weight = nn.Parameter(weight.clone()) if learnable else None

    @property
    def initial_weight(self) -> float:
        """What both weights are filled with: √initial_scale."""
        return self.initial_scale**0.5

    def forward(self, query: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries ``(..., Q, T)`` and keys ``(..., K, T)``, normalised in fp32 at least, each in its own dtype."""
        return self._normalised(query, self.query_weight), self._normalised(key, self.key_weight)

    def _normalised(self, vectors: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        precise = vectors.to(compute_dtype(vectors.dtype))
        normal = precise * torch.rsqrt(precise.square().mean(-1, keepdim=True) + self.eps)
        return (normal * (self.initial_weight if weight is None else weight.to(precise.dtype))).to(vectors.dtype)
