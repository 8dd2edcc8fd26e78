"""Attention for any mask, with all scores at once: same result as the reference, with a backward pass of its own.

Autograd through mask-then-softmax keeps the filled scores, the mask and the softmax, and walks all of them backwards.
Here the weights are computed outside the graph, and one function knows that they came from a softmax of
``scale · query keyᵀ``: masked keys have weight 0, so they drop out of the softmax's own gradient.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from .attention_reference import (
    check_attention_shapes,
    compute_dtype,
    repeat_heads,
    score_scale,
    without_autocast,
)
from .mask_base import MaskStrategy


class _AttendWithWeights(torch.autograd.Function):
    """Output of given weights; its backward treats them as the softmax of ``scale · query keyᵀ`` over kept keys."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        weights: torch.Tensor,
        scale: float,
        dropout_mask: torch.Tensor | None,
    ) -> torch.Tensor:
        ctx.scale = scale
        ctx.save_for_backward(query, key, value, weights, dropout_mask)
        return torch.matmul(weights if dropout_mask is None else weights * dropout_mask, value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, weights, dropout_mask = ctx.saved_tensors
        dropped = weights if dropout_mask is None else weights * dropout_mask
        # A caller may differentiate inside its autocast region.
        with without_autocast(query):
            grad_value = torch.matmul(dropped.transpose(-1, -2), grad_output)
            grad_weights = torch.matmul(grad_output, value.transpose(-1, -2))
            if dropout_mask is not None:
                grad_weights = grad_weights * dropout_mask
            # Softmax: grad_scores = weights · (grad_weights − Σ weights · grad_weights), 0 where the weight is 0.
            grad_scores = torch.ops.aten._softmax_backward_data(grad_weights, weights, -1, weights.dtype) * ctx.scale
            grad_query = torch.matmul(grad_scores, key)
            grad_key = torch.matmul(grad_scores.transpose(-1, -2), query)
        return grad_query, grad_key, grad_value, None, None, None


def masked_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: MaskStrategy,
    valid: torch.Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    query_positions: torch.Tensor | None = None,
    key_positions: torch.Tensor | None = None,
    *,
    keep: torch.Tensor | None = None,
    mask_state: Any = None,
    return_weights: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """As :func:`reference_attention`, cheaper to train. Gradients of gradients are not available here.

    Args:
        keep: what `mask` keeps under `valid`, where the caller knows it already (a mask fixed by positions is the same
            in every layer); bool, broadcastable to ``(B, H, Q, K)``. None: it is computed.
        return_weights: also return the weights, computed beside the output and without a gradient.

    The other arguments, shapes and errors are those of :func:`reference_attention`.
    """
    check_attention_shapes(query, key, value)
    scale = score_scale(query, scale)
    heads = query.shape[1]
    with without_autocast(query):
        precise = compute_dtype(query.dtype)
        q_BHQT = query.to(precise)
        k_BHKT = repeat_heads(key.to(precise), heads)
        v_BHKT = repeat_heads(value.to(precise), heads)
        with torch.no_grad():
            scores_BHQK = torch.matmul(q_BHQT, k_BHKT.transpose(-1, -2)) * scale
            if keep is None:
                keep = mask.kept(scores_BHQK, valid, query, key, query_positions, key_positions, mask_state)
            weights_BHQK = _masked_softmax(scores_BHQK, keep)
            dropout_mask = None
            if dropout > 0:
                dropout_mask = F.dropout(torch.ones_like(weights_BHQK), dropout)
        output = _AttendWithWeights.apply(q_BHQT, k_BHKT, v_BHKT, weights_BHQK, scale, dropout_mask)
    return output.to(query.dtype), weights_BHQK if return_weights else None


def _masked_softmax(scores: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Softmax over kept keys; 0 elsewhere, and 0 where nothing is kept. `keep` need only be broadcastable."""
    filled = torch.where(keep, scores, torch.finfo(scores.dtype).min)
    return filled.softmax(dim=-1) * keep
