"""The reference attention: plain, readable, for every mask strategy. It is the oracle for every faster path.

Shapes: B batch, H query heads, G key and value heads (G divides H), Q queries, K keys, T head dim.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F

from .mask_base import MaskStrategy, compute_dtype, without_autocast
from .mask_registry import parse_mask
from .sparse_normalizers import normalizer_named


def check_attention_shapes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    """Raise ``ValueError``, naming the shapes, unless the three tensors fit together."""
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    if not query.dim() == key.dim() == value.dim() == 4:
        raise ValueError(f"query, key and value must have four dimensions (batch, heads, length, head dim): {shapes}")
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        raise ValueError(f"batch sizes differ: {shapes}")
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(f"query and key differ in head dim: {shapes}")
    if query.shape[-1] == 0 or value.shape[-1] == 0:
        raise ValueError(f"the head dim must be at least 1: {shapes}")
    if key.shape[1:3] != value.shape[1:3]:
        raise ValueError(f"key and value differ in heads or length: {shapes}")
    if key.shape[1] == 0 or query.shape[1] % key.shape[1]:
        raise ValueError(f"the number of query heads must be a multiple of the number of key heads: {shapes}")
    if not query.dtype == key.dtype == value.dtype or not query.dtype.is_floating_point:
        raise ValueError(
            f"query, key and value must share one floating point dtype, got {query.dtype}, {key.dtype}, {value.dtype}"
        )


def score_scale(query: torch.Tensor, scale: float | None) -> float:
    """The factor on the scores: `scale`, or ``1 / sqrt(T)`` where it is None; ``ValueError`` unless it is finite."""
    if scale is None:
        return query.shape[-1] ** -0.5
    if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not math.isfinite(scale):
        raise ValueError(f"scale must be a finite number or None, got {scale!r}")
    return scale


def check_dropout(dropout: float) -> None:
    """Raise ``ValueError`` unless `dropout` is a probability."""
    if not 0 <= dropout <= 1:
        raise ValueError(f"dropout must be a probability from 0 to 1, got {dropout!r}")


def repeat_heads(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """``(B, G, K, T)`` → ``(B, heads, K, T)``: each key or value head serves ``heads // G`` query heads in a row."""
    if tensor.shape[1] == heads:
        return tensor
    return tensor.repeat_interleave(heads // tensor.shape[1], dim=1)


def reference_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask_spec: str | MaskStrategy,
    valid: torch.Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    query_positions: torch.Tensor | None = None,
    key_positions: torch.Tensor | None = None,
    *,
    bias: torch.Tensor | None = None,
    softcap: float | None = None,
    sink_logits: torch.Tensor | None = None,
    mask_state: Any = None,
    normalizer: str = "softmax",
    return_weights: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Masked attention, equation by equation (DESIGN section 2).

    ``D = scale · query keyᵀ + bias``; the strategy picks S_i from D; ``A_ij = exp(D_ij) / Σ_{l∈S_i} exp(D_il)`` for j
    in S_i (softmax; `normalizer` may name another equation) and exactly 0 elsewhere; the output is A value. D is
    accumulated in fp32 (fp64 for fp64 inputs), also under autocast, and the selection sees it unrounded. The selection is
    a constant for the gradient. A query with no kept key has a zero output and zero gradients. A NaN score makes its own
    row NaN and no other. With softmax there are gradients of gradients.

    Args:
        query: ``(B, H, Q, T)`` floating point.
        key: ``(B, G, K, T)``, same dtype; G divides H, and key head g serves query heads gH/G … (g+1)H/G − 1.
        value: ``(B, G, K, T_v)``, same dtype.
        mask_spec: a specification such as ``"topk:5"``, or a strategy.
        valid: bool, broadcastable to ``(B, H, Q, K)``; False forbids a key. None: every key is valid.
        scale: factor on the scores; None: ``1 / sqrt(T)``.
        dropout: probability with which a weight is dropped; as in ``scaled_dot_product_attention`` it is applied
            whenever it is above 0.
        query_positions, key_positions: see :meth:`MaskStrategy.__call__`.
        bias: added to the scores before the selection, broadcastable to ``(B, H, Q, K)``; None: nothing.
        softcap: c in ``c · tanh(D / c)``, which replaces the scaled scores before a bias is added (Gemma 2); None:
            nothing.
        sink_logits: ``(H,)``: the score of one more key of each head, always kept, whose value is zero (gpt-oss); None:
            there is none.
        mask_state: what the layer has learnt, for strategies that learn (:meth:`MaskState.read`).
        normalizer: what makes weights of the kept scores: "softmax", "entmax15" or "sparsemax".
        return_weights: also return the weights A ``(B, H, Q, K)``, before dropout, in the compute dtype.

    Returns:
        ``(B, H, Q, T_v)`` in the dtype of `query`, with the weights if asked for.

    Raises:
        ValueError: for shapes, dtypes or masks that do not fit, or an unknown normalizer.

    Example:
        >>> q = k = torch.eye(3)[None, None]
        >>> reference_attention(q, k, q, "topk:1").equal(q)
        True
    """
    check_attention_shapes(query, key, value)
    check_dropout(dropout)
    normalize = normalizer_named(normalizer)
    mask = parse_mask(mask_spec)
    scale = score_scale(query, scale)
    with without_autocast(query):
        precise = compute_dtype(query.dtype)
        q_BHQT = query.to(precise)
        k_BHKT = repeat_heads(key.to(precise), query.shape[1])
        v_BHKT = repeat_heads(value.to(precise), query.shape[1])
        scores_BHQK = torch.matmul(q_BHQT, k_BHKT.transpose(-1, -2)) * scale
        if softcap is not None:
            scores_BHQK = torch.tanh(scores_BHQK / softcap) * softcap
        if bias is not None:
            scores_BHQK = scores_BHQK + bias.to(precise)
        with torch.no_grad():
            keep_BHQK = mask(scores_BHQK, valid, query, key, query_positions, key_positions, mask_state)
        if sink_logits is not None:
            sinks_BHQ1 = sink_logits.to(precise).view(1, -1, 1, 1).expand(*scores_BHQK.shape[:-1], 1)
            with_sinks = torch.cat([scores_BHQK, sinks_BHQ1], dim=-1), F.pad(keep_BHQK, (0, 1), value=True)
            weights_BHQK = normalize(*with_sinks)[..., :-1]
        else:
            weights_BHQK = normalize(scores_BHQK, keep_BHQK)
        dropped = F.dropout(weights_BHQK, dropout) if dropout > 0 else weights_BHQK
        output = torch.matmul(dropped, v_BHKT).to(query.dtype)
    return (output, weights_BHQK) if return_weights else output
