"""The reference attention: plain, readable, for every mask strategy. It is the oracle for every faster path.

Shapes: B batch, H query heads, G key and value heads (G divides H), Q queries, K keys, T head dim.
"""

from typing import Any

import torch
import torch.nn.functional as F

from .attention_call import AttentionCall
from .mask_base import MaskStrategy
from .mask_inputs import compute_dtype, without_autocast
from .sparse_normalizers import normalizer_named


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
    call = AttentionCall.checked(
        query, key, value, mask_spec, valid, scale, dropout, query_positions, key_positions,
        bias=bias, softcap=softcap, sink_logits=sink_logits, mask_state=mask_state, normalizer=normalizer,
    )  # fmt: skip
    output, weights = attend_by_reference(call)
    return (output, weights) if return_weights else output


def attend_by_reference(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and weights of :func:`reference_attention`."""
    with without_autocast(call.query):
        scores_BHQK = scores_of(call)
        with torch.no_grad():
            keep_BHQK = call.mask(
                scores_BHQK,
                call.valid,
                call.query,
                call.key,
                call.query_positions,
                call.key_positions,
                call.mask_state,
            )
        normalize = normalizer_named(call.normalizer)
        if call.sink_logits is not None:
            sinks_BHQ1 = call.sink_logits.to(scores_BHQK).view(1, -1, 1, 1).expand(*scores_BHQK.shape[:-1], 1)
            with_sinks = torch.cat([scores_BHQK, sinks_BHQ1], dim=-1), F.pad(keep_BHQK, (0, 1), value=True)
            weights_BHQK = normalize(*with_sinks)[..., :-1]
        else:
            weights_BHQK = normalize(scores_BHQK, keep_BHQK)
        dropped = F.dropout(weights_BHQK, call.dropout) if call.dropout > 0 else weights_BHQK
        v_BHKT = repeat_heads(call.value.to(scores_BHQK.dtype), call.query.shape[1])
        return torch.matmul(dropped, v_BHKT).to(call.query.dtype), weights_BHQK


def scores_of(call: AttentionCall) -> torch.Tensor:
    """The scores D ``(B, H, Q, K)`` that a mask chooses by: scaled, soft-capped and biased, in the compute dtype."""
    with without_autocast(call.query):
        precise = compute_dtype(call.query.dtype)
        k_BHKT = repeat_heads(call.key.to(precise), call.query.shape[1])
        scores_BHQK = torch.matmul(call.query.to(precise), k_BHKT.transpose(-1, -2)) * call.scale
        if call.softcap is not None:
            scores_BHQK = torch.tanh(scores_BHQK / call.softcap) * call.softcap
        return scores_BHQK if call.bias is None else scores_BHQK + call.bias.to(precise)


def repeat_heads(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """``(B, G, K, T)`` → ``(B, heads, K, T)``: each key or value head serves ``heads // G`` query heads in a row."""
    if tensor.shape[1] == heads:
        return tensor
    return tensor.repeat_interleave(heads // tensor.shape[1], dim=1)
