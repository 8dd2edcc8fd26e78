"""Where the queries and keys of any Transformers model are in the text, for strategies that count positions.

Transformers builds a mask for each forward pass and hands it to the attention function. The mask builder knows more than
the mask shows: how many tokens came before the queries, and how many keys a sliding-window cache has dropped. The
positions travel with the mask, as an attribute of the tensor.

Shapes: B batch, H heads, Q queries, K keys.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch

from ..model.attention_interface import semfocus_mask
from ..model.mask_base import MaskStrategy

ATTRIBUTE = "_semfocus_positions"

# Positions of queries ``(B or 1, Q)`` and keys ``(B or 1, K)``, int64. None: the strategy takes its default.
Positions = tuple[torch.Tensor | None, torch.Tensor | None]


def mask_builder(mask: MaskStrategy) -> Callable[..., torch.Tensor]:
    """The mask builder of a strategy: a bool mask, never None, that carries positions where the strategy counts them."""

    def build(**kwargs: Any) -> torch.Tensor:
        built = semfocus_mask(**kwargs)
        if mask.counts_keys or mask.counts_queries:
            setattr(built, ATTRIBUTE, _positions_of(built, mask, **kwargs))
        return built

    return build


def _positions_of(
    built: torch.Tensor,
    mask: MaskStrategy,
    *,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    attention_mask: torch.Tensor | None = None,
    **kwargs: Any,
) -> Positions:
    queries, keys = built.shape[-2:]
    key_indices = torch.arange(keys, device=built.device)[None] + kv_offset
    query_indices = torch.arange(queries, device=built.device)[None] + q_offset
    # Only the builder of bidirectional masks has this argument. Without a cache it counts queries from 0: where they do
    # not end where the keys end (cross-attention, prefixes), it does not know where they are.
    aligned = "allow_is_bidirectional_skip" not in kwargs or bool(q_offset + queries == kv_offset + keys)
    if attention_mask is not None:
        first = (attention_mask != 0).to(torch.uint8).argmax(dim=-1, keepdim=True)
        return (query_indices - first if aligned else None), key_indices - first
    if aligned and queries == keys > 1 and isinstance(q_offset, int) and q_offset == kv_offset:
        start = _start_of_each_text(built, mask, **kwargs)
        return query_indices - start, key_indices - start
    return (query_indices if aligned else None), key_indices


def _start_of_each_text(
    built: torch.Tensor, mask: MaskStrategy, *, mask_function: Callable[..., Any], **kwargs: Any
) -> torch.Tensor:
    """Index at which each token's text starts, int64 ``(B or 1, L)``: several may be packed in one row.

    Transformers tells packed texts by their position ids, and passes only a mask on. In it, the first token of a text does
    not see the token before it. Where this may have other reasons, the mask function is asked what it was made of.

    Raises:
        ValueError: if it cannot be asked, because it is compiled.
    """
    local = kwargs.get("local_size")
    chunked = local is not None and local == getattr(kwargs.get("config"), "attention_chunk_size", None)
    if not (kwargs.get("use_vmap") or chunked or local == 1):
        first = ~built[:, 0].diagonal(offset=-1, dim1=-2, dim2=-1)
    elif torch.compiler.is_compiling():
        raise ValueError(
            f"mask {str(mask)!r} counts positions, and this model's own mask does not show, while it is compiled, whether "
            "several texts are packed in a row; give the model a two-dimensional attention_mask"
        )
    else:
        texts = _packed_texts(mask_function)
        if texts is None:
            return torch.zeros((1, 1), dtype=torch.int64, device=built.device)
        first = texts.diff(dim=-1) != 0
    indices = torch.arange(1, built.shape[-1], device=built.device)
    starts = torch.where(first, indices, 0).cummax(dim=-1).values
    return torch.nn.functional.pad(starts, (1, 0))


def _packed_texts(mask_function: Any) -> torch.Tensor | None:
    """The number of each token's text ``(B, L)``, which Transformers hides in a mask function; None: one text a row."""
    for name, value in inspect.getclosurevars(mask_function).nonlocals.items():
        if name == "packed_sequence_mask":
            return value
        for part in value if isinstance(value, tuple) else (value,):
            if inspect.isfunction(part) and (numbers := _packed_texts(part)) is not None:
                return numbers
    return None


def positions_for(
    mask: MaskStrategy,
    module: torch.nn.Module,
    attention_mask: torch.Tensor | None,
    valid: torch.Tensor | None,
    queries: int,
    keys: int,
    causal: bool,
    sliding_window: int | None,
) -> Positions:
    """Positions for an attention function.

    Args:
        mask: the strategy.
        module: the module that attends.
        attention_mask: as the module was given it.
        valid: its bool part, with its last dimension cut to `keys`; None: all keys of each query are valid.
        queries, keys: Q and K.
        causal: whether the module is causal.
        sliding_window: what the module says about its window.

    Returns:
        Positions of queries and keys. None: the strategy's own default, which is right.

    Raises:
        ValueError: if the strategy counts positions that are not known.
    """
    if not (mask.counts_keys or mask.counts_queries):
        return None, None
    known = getattr(attention_mask, ATTRIBUTE, None)
    cross = _attends_to_another_text(module)
    unknown = known[0] is None if known is not None else queries != keys and not causal
    if mask.counts_queries and (cross or unknown):
        raise ValueError(
            f"mask {str(mask)!r} counts positions of queries, and in {type(module).__name__} queries and keys are not of one "
            "text; allowed there: masks that do not, such as topk, topp, sink and their unions"
        )
    if known is not None:
        return known[0], known[1][..., :keys]
    # A mask that was not made by our builder: the user's, or a changed copy.
    if valid is None or queries == keys or cross or (not causal and not mask.counts_queries):
        return None, None
    if sliding_window is not None or torch.compiler.is_compiling() or not _last_query_sees_all(valid, keys):
        raise ValueError(
            f"mask {str(mask)!r} counts positions, and this attention mask of {tuple(valid.shape)} does not show where "
            "queries and keys are; give the model a two-dimensional attention_mask"
        )
    return None, None


def _attends_to_another_text(module: torch.nn.Module) -> bool:
    """Whether a module is known to be cross-attention, by the conventions of Transformers."""
    if getattr(module, "is_cross_attention", False) or "Cross" in type(module).__name__:
        return True
    return bool(getattr(module, "is_decoder", False)) and getattr(module, "is_causal", None) is False


def _last_query_sees_all(valid: torch.Tensor, keys: int) -> bool:
    """Whether the last query sees every key from the first one that it sees: then it is at the last key."""
    last = valid[..., -1, :]
    seen = last.sum(dim=-1)
    first = last.to(torch.uint8).argmax(dim=-1)
    return bool(((seen == keys - first) | (seen == 0)).all())
