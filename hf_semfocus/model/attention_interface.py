"""Attention functions with the signature that Transformers gives to every attention implementation.

``"semfocus"`` is the path that models train with, ``"eager"`` the reference. Both read the mask strategy from the
module that calls them, honour boolean and additive masks, and apply every finite bias.
"""

import math
from typing import Any

import torch
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .attention_call import AttentionCall
from .attention_reference import attend_by_reference
from .attention_sparse import attend
from .mask_base import MaskStrategy
from .mask_inputs import first_valid_key

IMPLEMENTATION = "semfocus"

# Transformers writes "forbidden" as the lowest finite number of whatever dtype the mask was made in; the smallest of
# these in size is fp16's. Softmax gives such a key no weight anyway, but a selection must not count it as a candidate.
FORBIDDEN = -65504.0
# Arguments that our own layers pass besides those of Transformers.
OURS = ("query_positions", "key_positions", "keep", "mask_state", "normalizer")


def split_attention_mask(attention_mask: torch.Tensor | None) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """A four-dimensional mask as (valid keys, finite bias).

    Args:
        attention_mask: None, bool (True: may attend), or additive floating point ``(B, H or 1, Q or 1, K)``.

    Returns:
        `valid`, bool or None, and `bias`, the finite part of an additive mask with 0 where a key is forbidden, or None.

    Example:
        >>> valid, bias = split_attention_mask(torch.tensor([[[[0.0, -1.5, float("-inf")]]]]))
        >>> valid.tolist(), bias.tolist()
        ([[[[True, True, False]]]], [[[[0.0, -1.5, 0.0]]]])
    """
    if attention_mask is None or attention_mask.dtype == torch.bool:
        return attention_mask, None
    forbidden = attention_mask <= FORBIDDEN
    return ~forbidden, attention_mask.masked_fill(forbidden, 0.0)


def expand_attention_mask(attention_mask: torch.Tensor | None, batch: int, length: int) -> torch.Tensor | None:
    """The mask that a user passed to a model, as four dimensions for :func:`split_attention_mask`.

    Args:
        attention_mask: None; ``(B, L)`` integer or bool, non-zero for real tokens; ``(B, L)`` floating point, either
            the same 1/0 (some entry is positive) or additive (none is); or ``(B or 1, H or 1, L, L)`` bool, integer or
            additive floating point.
        batch, length: B and L.

    Returns:
        None, bool, or additive floating point with four dimensions.

    Raises:
        ValueError: for any other shape.
    """
    if attention_mask is None:
        return None
    shape = tuple(attention_mask.shape)
    if not attention_mask.dtype.is_floating_point:
        attention_mask = attention_mask != 0
    if len(shape) == 2 and shape == (batch, length):
        if attention_mask.dtype.is_floating_point:
            # Chosen without a branch on data, so that the model still compiles to one graph.
            ones_and_zeros = torch.where(attention_mask > 0, 0.0, -math.inf)
            attention_mask = torch.where((attention_mask > 0).any(), ones_and_zeros, attention_mask)
        return attention_mask[:, None, None, :]
    if len(shape) == 4 and shape[0] in (1, batch) and shape[2] in (1, length) and shape[3] == length:
        return attention_mask
    raise ValueError(
        f"attention_mask must have shape ({batch}, {length}) or ({batch}, heads or 1, {length}, {length}), got {shape}"
    )


def positions_from_mask(attention_mask: torch.Tensor) -> torch.Tensor:
    """Position of each token, counted from the first one that any query may see.

    Args:
        attention_mask: what :func:`expand_attention_mask` returns, not None.

    Returns:
        int64 ``(B or 1, L)``, negative in front of the first valid token.

    Example:
        >>> positions_from_mask(torch.tensor([[[[False, True, True]]]])).tolist()
        [[-1, 0, 1]]
    """
    valid, _ = split_attention_mask(attention_mask)
    assert valid is not None
    return torch.arange(attention_mask.shape[-1], device=attention_mask.device) - first_valid_key(valid).squeeze(1)


def last_position(attention_mask: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Position of the last token that any query may see, int64 ``(B, 1)``; −1 where there is none.

    Args:
        attention_mask: four dimensions, ``(B or 1, …, L)``.
        positions: int64 ``(B, L)``, see :func:`positions_from_mask`.
    """
    valid, _ = split_attention_mask(attention_mask)
    assert valid is not None
    return positions.masked_fill(~valid.flatten(1, 2).any(dim=1), -1).amax(dim=1, keepdim=True)


def extend_attention_mask(attention_mask: torch.Tensor, more: int) -> torch.Tensor:
    """The mask of a text with `more` tokens behind it, which all may attend to and which attend to all that any may.

    Args:
        attention_mask: four dimensions ``(B or 1, H or 1, L or 1, L)``, bool or additive.

    Returns:
        ``(B or 1, H or 1, L + more or 1, L + more)``.
    """
    free = True if attention_mask.dtype == torch.bool else 0.0
    if attention_mask.shape[2] > 1:
        seen = attention_mask.amax(dim=2, keepdim=True).expand(-1, -1, more, -1)
        attention_mask = torch.cat([attention_mask, seen], dim=2)
    return torch.nn.functional.pad(attention_mask, (0, more), value=free)


def _call(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    output_attentions: bool = False,
    **arguments: Any,
) -> AttentionCall:
    """The call of a module; ``ValueError`` for arguments that change attention and are not implemented."""
    for name in ("softcap", "s_aux", "position_bias", "sliding_window"):
        if arguments.get(name) is not None:
            raise ValueError(f"attention implementation {IMPLEMENTATION!r} does not support {name}")
    if arguments.get("is_causal"):
        raise ValueError(f"attention implementation {IMPLEMENTATION!r} needs causality in its mask, not as is_causal")
    mask = getattr(module, "mask_strategy", None)
    if not isinstance(mask, MaskStrategy):
        raise ValueError(
            f"attention implementation {IMPLEMENTATION!r} takes its mask from the attention module, and "
            f"{type(module).__name__} has no mask_strategy"
        )
    valid, bias = split_attention_mask(attention_mask)
    ours = {name: value for name, value in arguments.items() if name in OURS}
    return AttentionCall.checked(
        query, key, value, mask, valid, scaling, dropout, bias=bias, return_weights=output_attentions, **ours
    )


def semfocus_attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **arguments: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention of `module`, by the path that models train with.

    Args:
        module: has the strategy as ``module.mask_strategy``.
        query, key, value: ``(B, H, Q, T)``, ``(B, G, K, T)``, ``(B, G, K, T_v)``.
        attention_mask: None, bool or additive, broadcastable to ``(B, H, Q, K)``.
        arguments: ``dropout``, ``scaling``; ``query_positions``, ``key_positions``, ``keep``, ``mask_state`` and
            ``normalizer`` as in :func:`sparse_attention`; ``output_attentions``: also return the weights ``(B, H, Q, K)``,
            before dropout, which does not change the output. Others that change attention are refused.

    Returns:
        ``(B, Q, H, T_v)``, and the weights or None.
    """
    output, weights = attend(_call(module, query, key, value, attention_mask, **arguments))
    return output.transpose(1, 2).contiguous(), None if weights is None else weights.to(query.dtype)


def eager_attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **arguments: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """As :func:`semfocus_attention_forward`, by the reference: weights are in the graph, gradients of gradients work."""
    call = _call(module, query, key, value, attention_mask, **arguments)
    output, weights = attend_by_reference(call)
    return output.transpose(1, 2).contiguous(), weights.to(query.dtype) if call.return_weights else None


def semfocus_mask(*args: Any, **kwargs: Any) -> torch.Tensor:
    """The mask for ``"semfocus"``: always a bool tensor ``(B, 1, Q, K)``, never None.

    Transformers lets a mask builder answer None for "nothing to mask", and then trusts the attention function to be
    causal by itself where it must be. Ours gets everything from its mask.
    """
    kwargs.update(allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
    mask = sdpa_mask(*args, **kwargs)
    assert mask is not None, "a mask builder that must not skip returned no mask"
    return mask


ALL_ATTENTION_FUNCTIONS.register(IMPLEMENTATION, semfocus_attention_forward)
ALL_MASK_ATTENTION_FUNCTIONS.register(IMPLEMENTATION, semfocus_mask)
