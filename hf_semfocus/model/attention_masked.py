"""Attention for any mask, with all scores at once: same result as the reference, with a backward pass of its own.

Autograd through mask-then-softmax keeps the filled scores, the mask and the softmax, and walks all of them backwards.
Here the weights are computed outside the graph, and one function knows that they came from a softmax (or another
normalizer) of ``scale · query keyᵀ``: masked keys have weight 0, so they drop out of the normalizer's own gradient.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from .attention_call import AttentionCall
from .attention_reference import repeat_heads
from .dropout import draws_places, dropped_places
from .mask_inputs import compute_dtype, without_autocast
from .mask_positions import Full
from .sparse_normalizers import normalizer_named, scores_gradient


class _AttendWithWeights(torch.autograd.Function):
    """Output of given weights; its backward treats them as the normalizer's of ``scale · query keyᵀ`` over kept keys.

    All are three-dimensional, batch and heads in one (N, Q, T). `dropped` is what of the weights dropout leaves, before its
    division by `kept_share` = 1 − p; `places` are the elements that it dropped, where they are known.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        weights: torch.Tensor,
        scale: float,
        dropped: torch.Tensor | None,
        places: torch.Tensor | None,
        kept_share: float,
        normalizer: str,
    ) -> torch.Tensor:
        ctx.scale, ctx.factor, ctx.normalizer = scale, 1 / kept_share, normalizer
        ctx.save_for_backward(query, key, value, weights, dropped, places)
        return _product(weights if dropped is None else dropped, value, ctx.factor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, weights, dropped, places = ctx.saved_tensors
        # A caller may differentiate inside its autocast region.
        with without_autocast(query):
            used = weights if dropped is None else dropped
            grad_value = _product(used.transpose(1, 2), grad_output, ctx.factor)
            grad_weights = _product(grad_output, value.transpose(1, 2), ctx.factor)
            if places is not None:
                grad_weights.view(-1).index_fill_(0, places, 0.0)
            elif dropped is not None:
                # A weight that is 0 has no gradient through the normalizer either, so it need not be distinguished from a dropped one.
                grad_weights = grad_weights * (dropped != 0)
            grad_scores = scores_gradient(ctx.normalizer, weights, grad_weights)
            grad_query = _product(grad_scores, key, ctx.scale)
            grad_key = _product(grad_scores.transpose(1, 2), query, ctx.scale)
        return grad_query, grad_key, grad_value, None, None, None, None, None, None


def _product(left: torch.Tensor, right: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
    """``factor · left @ right`` of two batches of matrices, the factor applied within the product."""
    if factor == 1.0:
        return torch.bmm(left, right)
    if torch.compiler.is_compiling():
        return torch.bmm(left, right) * factor
    return torch.baddbmm(left.new_empty(()), left, right, beta=0, alpha=factor)


def masked_attention(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Output and weights (None unless asked for) as of the reference, cheaper to train, without gradients of gradients."""
    query, dropout, normalizer = call.query, call.dropout, call.normalizer
    heads = query.shape[1]
    with without_autocast(query):
        precise = compute_dtype(query.dtype)
        q_NQT = query.to(precise).flatten(0, 1)
        k_NKT = repeat_heads(call.key.to(precise), heads).flatten(0, 1)
        v_NKT = repeat_heads(call.value.to(precise), heads).flatten(0, 1)
        with torch.no_grad():
            scores_NQK = _product(q_NQT, k_NKT.transpose(1, 2), call.scale)
            scores_BHQK = scores_NQK.unflatten(0, query.shape[:2])
            keep = call.keep
            if keep is None and not (isinstance(call.mask, Full) and call.valid is None):
                keep = call.mask.kept(
                    scores_BHQK, call.valid, query, call.key, call.query_positions, call.key_positions, call.mask_state
                )
            if normalizer == "softmax":
                weights_BHQK = _masked_softmax(scores_BHQK, keep)
            else:
                everything = torch.ones((), dtype=torch.bool, device=query.device)
                weights_BHQK = normalizer_named(normalizer)(scores_BHQK, everything if keep is None else keep)
            weights_NQK = weights_BHQK.flatten(0, 1)
            dropped, places, kept_share = None, None, 1.0
            if draws_places(weights_NQK, dropout):
                dropped, kept_share = weights_NQK.clone(), 1 - dropout
                places = dropped_places(dropped.numel(), dropout)
                dropped.view(-1).index_fill_(0, places, 0.0)
            elif dropout > 0:
                dropped = weights_NQK * (F.dropout(torch.ones_like(weights_NQK), dropout) > 0)
                kept_share = 1 - dropout or 1.0
        output = _AttendWithWeights.apply(
            q_NQT, k_NKT, v_NKT, weights_NQK, call.scale, dropped, places, kept_share, normalizer
        )
        output = output.unflatten(0, query.shape[:2])
    return output.to(query.dtype), weights_BHQK if call.return_weights else None


def _masked_softmax(scores: torch.Tensor, keep: torch.Tensor | None) -> torch.Tensor:
    """Softmax over kept keys (None: all); 0 elsewhere, and 0 where nothing is kept. `keep` need only be broadcastable."""
    if keep is None:
        return scores.softmax(dim=-1)
    filled = torch.where(keep, scores, torch.finfo(scores.dtype).min)
    return filled.softmax(dim=-1).mul_(keep)
