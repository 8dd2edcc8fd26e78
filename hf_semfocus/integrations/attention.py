"""The attention function that :func:`register_attention` puts into Transformers' registry.

It takes what any model of the attention interface passes. What changes attention is applied or refused, never ignored.

Shapes: B batch, H query heads, G key heads, Q queries, K keys, T head dim.
"""

from collections.abc import Callable
from typing import Any

import torch

from ..model.attention_call import AttentionCall
from ..model.attention_interface import split_attention_mask
from ..model.attention_sparse import attend
from ..model.mask_base import MaskStrategy
from .positions import positions_for

try:
    # Some models (GPT-2, OPT) keep output_attentions from the attention function; this says whether it is wanted.
    from transformers.utils.output_capturing import _active_collector
except ImportError:  # an older or newer Transformers
    _active_collector = None  # type: ignore[assignment]

# Arguments of single models that choose or weigh keys, and that are not implemented.
REFUSED = {
    "sinks": "attention-sink scores for each token",
    "indices": "keys chosen by an indexer",
    "block_indices": "blocks of keys chosen by an indexer",
}

#: Called by name with what an attention function computes: module and call. They look and change nothing;
#: `hf_semfocus.analysis` collects scores with one.
observers: list[Callable[..., None]] = []


def attention_function(mask: MaskStrategy) -> Callable[..., tuple[torch.Tensor, torch.Tensor | None]]:
    """The attention function of a strategy, with the signature of the attention interface."""

    def attention(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        softcap: float | None = None,
        s_aux: torch.Tensor | None = None,
        position_bias: torch.Tensor | None = None,
        sliding_window: int | None = None,
        output_attentions: bool = False,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        _refuse(module, mask, attention_mask, sliding_window, kwargs)
        causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
        queries, keys = query.shape[2], key.shape[2]
        valid, bias = _valid_and_bias(attention_mask, position_bias, causal, queries, keys, query.device)
        positions = positions_for(mask, module, attention_mask, valid, queries, keys, causal, sliding_window)
        dtype = value.dtype
        call = AttentionCall.checked(
            *_one_dtype(query, key, value), mask, valid, scaling,
            # As every model's own attention: a module that does not train drops nothing.
            dropout if module.training else 0.0, *positions,
            bias=bias, softcap=softcap, sink_logits=_sinks(s_aux, query.shape[1]),
            return_weights=output_attentions or _attentions_are_captured(),
        )  # fmt: skip
        for observe in observers:
            observe(module=module, call=call)
        output, weights = attend(call)
        return output.to(dtype).transpose(1, 2).contiguous(), None if weights is None else weights.to(dtype)

    return attention


def _refuse(
    module: torch.nn.Module,
    mask: MaskStrategy,
    attention_mask: torch.Tensor | None,
    sliding_window: int | None,
    arguments: dict[str, Any],
) -> None:
    """``ValueError`` for what would change attention and is not implemented."""
    who = f"{type(module).__name__} with mask {str(mask)!r}"
    for name, what in REFUSED.items():
        if arguments.get(name) is not None:
            raise ValueError(f"{who}: {name} ({what}) is not supported by sparse attention")
    if getattr(module, "compressor", None) is not None:
        # DeepSeek V4 lengthens its mask by an additive one, which it casts to ours: it would mean the contrary.
        raise ValueError(
            f"{who}: keys that stand for several tokens (compressor) are not supported by sparse attention"
        )
    if arguments.get("cu_seq_lens_q") is not None:
        raise ValueError(f"{who}: texts packed in a row are given by position_ids, not by cu_seq_lens_q")
    if attention_mask is None:
        if sliding_window is not None:
            raise ValueError(f"{who}: a sliding window needs a mask that holds it, and the model gave none")
    elif attention_mask.dtype != torch.bool and not attention_mask.dtype.is_floating_point:
        raise ValueError(
            f"{who}: an attention mask of {attention_mask.dim()} dimensions must be boolean or additive floating point, "
            f"got {attention_mask.dtype}"
        )


def _valid_and_bias(
    attention_mask: torch.Tensor | None,
    position_bias: torch.Tensor | None,
    causal: bool,
    queries: int,
    keys: int,
    device: torch.device,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Valid keys (bool or None) and what is added to the scores (or None), with as many keys as there are."""
    valid, bias = split_attention_mask(attention_mask)
    if valid is None and causal:
        valid = _causal(queries, keys, device)
    if position_bias is not None:
        bias = position_bias if bias is None else bias + position_bias
    # As Transformers' eager attention does where a mask is longer than the keys.
    return (None if valid is None else valid[..., :keys]), (None if bias is None else bias[..., :keys])


def _causal(queries: int, keys: int, device: torch.device) -> torch.Tensor | None:
    """Keys up to each query's own, ``(1, 1, Q, K)``; queries are the last ones."""
    if queries == 1:
        return None
    position = torch.arange(keys - queries, keys, device=device).unsqueeze(-1)
    return (torch.arange(keys, device=device) <= position)[None, None]


def _one_dtype(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Under autocast, rotary embeddings leave queries and keys in another dtype than values."""
    dtype = torch.promote_types(torch.promote_types(query.dtype, key.dtype), value.dtype)
    return query.to(dtype), key.to(dtype), value.to(dtype)


def _sinks(s_aux: torch.Tensor | None, heads: int) -> torch.Tensor | None:
    if s_aux is not None and s_aux.numel() != heads:
        raise ValueError(
            f"s_aux must hold one attention-sink score for each of {heads} heads, got {tuple(s_aux.shape)}"
        )
    return s_aux


def _attentions_are_captured() -> bool:
    # The collector cannot be read while a model is compiled.
    if _active_collector is None or torch.compiler.is_compiling():
        return False
    return any("attentions" in name for name in _active_collector.get() or ())
