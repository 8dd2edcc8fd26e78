"""Collects attention scores and kept keys from a model, without a change to what the model computes.

From SemFocus models, and from any other whose attention goes through `register_attention`.

Shapes: B batch, H heads, Q queries, K keys, T head dim. Rows are queries; in self-attention Q = K = L.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..integrations import attention as model_attention
from ..integrations.evaluation import evaluating
from ..integrations.saving import is_ours
from ..model.attention_call import AttentionCall
from ..model.attention_interface import expand_attention_mask, split_attention_mask
from ..model.attention_reference import scores_of
from ..model.mask_base import MaskStrategy
from ..model.mask_registry import parse_mask

CHUNK_ELEMENTS = 2**24
"""Scores that are in memory at once: 64 MB in fp32."""


@dataclass(frozen=True)
class LayerScores:
    """What one attention layer saw and kept.

    Args:
        scores: (B, H, Q, K) scaled scores D in fp32 (fp64 for fp64 models), soft-capped where the model does so, finite
            biases included; rows are queries.
        keep: bool (B, H, Q, K): the keys that the mask kept.
        valid: bool (B, H, Q, K): the keys that it could have kept. Both are False throughout for a query that is
            padding.
        input_dependent: whether the mask chose by the scores.
        first_query: where the part's queries begin; above 0 it goes on with the rows of the part before.
    """

    scores: torch.Tensor
    keep: torch.Tensor
    valid: torch.Tensor
    input_dependent: bool
    first_query: int = 0


Visit = Callable[[int, LayerScores], None]


def capture_scores(
    model: torch.nn.Module, batch: Mapping[str, Any], mask: str | MaskStrategy | None = None
) -> list[LayerScores]:
    """The scores and kept keys of every attention layer, first layer first, for one batch.

    Runs one forward in evaluation mode without gradients; training flags are as they were afterwards.

    Args:
        model: a SemFocus model, with or without a head, or any model with :func:`apply_attention`'s attention.
        batch: what its forward takes ("input_ids", "attention_mask", …), on the model's device. Padding is what no
            query may attend to, and is counted neither as key nor as query.
        mask: look at what this mask would keep of the same scores, which stay those of the model as it is. None: the
            model's own masks.

    Raises:
        ValueError: the model has no attention layer of ours.

    Example:
        >>> layers = capture_scores(model, {"input_ids": ids})  # doctest: +SKIP
        >>> dispersion(layers[0].scores, layers[0].keep).shape  # doctest: +SKIP
        torch.Size([2, 1, 20])
    """
    captured: list[LayerScores] = []
    _visit_calls(model, batch, lambda _, call: captured.extend(_seen(call, mask, math.inf)))
    return captured


def visit_scores(
    model: torch.nn.Module, batch: Mapping[str, Any], visit: Visit, mask: str | MaskStrategy | None = None
) -> None:
    """As :func:`capture_scores`, a part at a time: memory for `CHUNK_ELEMENTS` scores, whatever the length.

    Args:
        visit: called as `visit(index, part)` for each part of each layer, as the layer is reached. Parts are some rows of
            the batch, or some queries of one row; the same for the same shapes. A layer that is used several times (as in
            ALBERT) counts as several.
    """

    def look(index: int, call: AttentionCall) -> None:
        for part in _seen(call, mask, CHUNK_ELEMENTS):
            visit(index, part)

    _visit_calls(model, batch, look)


def attention_layers(model: torch.nn.Module) -> list[Any]:
    """The attention layers of a SemFocus model, in order: those that hold a mask strategy and give queries and keys."""
    return [module for module in model.modules() if hasattr(module, "mask_strategy") and hasattr(module, "query_key")]


def real_positions(batch: Mapping[str, Any]) -> torch.Tensor:
    """Which positions of a batch are text: those that some query may attend to, whatever the form of the mask.

    Returns:
        bool (B, L).
    """
    first = batch["input_ids"] if batch.get("input_ids") is not None else batch["inputs_embeds"]
    rows, length = first.shape[:2]
    valid, _ = split_attention_mask(expand_attention_mask(batch.get("attention_mask"), rows, length))
    if valid is None:
        return torch.ones((rows, length), dtype=torch.bool, device=first.device)
    return valid.any(1).any(1).expand(rows, length)


def _visit_calls(model: torch.nn.Module, batch: Mapping[str, Any], look: Callable[[int, AttentionCall], None]) -> None:
    """One forward in evaluation mode without gradients; `look` is called as each attention layer is reached."""
    layers, inside = attention_layers(model), {id(module) for module in model.modules()}
    configs = [getattr(module, "config", None) for module in model.modules()]
    if not layers and not any(is_ours(getattr(config, "_attn_implementation", None)) for config in configs):
        raise ValueError(
            f"{type(model).__name__} has no attention layer with a mask strategy; use a SemFocus model, or "
            "apply_attention(model, mask) first"
        )
    handles = []
    index = 0

    def seen(call: AttentionCall) -> None:
        nonlocal index
        device = call.query.device
        # A mask that draws must draw for the model what it drew here.
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            look(index, call)
        index += 1

    def hook(layer: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        query, key = layer.query_key(args[0] if args else kwargs["hidden_states"])
        valid, bias = split_attention_mask(kwargs.get("attention_mask"))
        # Nobody looks at values: the keys stand in for them.
        seen(
            AttentionCall.checked(
                query, key, key, layer.mask_strategy, valid, layer.scale, bias=bias, mask_state=layer.read_mask_state()
            )
        )

    def observe(*, module: torch.nn.Module, call: AttentionCall) -> None:
        if id(module) in inside:
            seen(call)

    model_attention.observers.append(observe)
    try:
        handles += [layer.register_forward_pre_hook(hook, with_kwargs=True) for layer in layers]
        with evaluating(model), torch.no_grad():
            model(**batch)
    finally:
        model_attention.observers.remove(observe)
        for handle in handles:
            handle.remove()
    if not index:
        raise ValueError(f"{type(model).__name__} called none of our attention layers")


def _seen(call: AttentionCall, mask: str | MaskStrategy | None, most: float) -> Iterator[LayerScores]:
    """Scores and kept keys of one layer, at most `most` scores at a time where the mask allows it."""
    chosen = call.mask if mask is None else parse_mask(mask)
    state = call.mask_state if chosen == call.mask else None
    batch, heads, queries, keys = call.shape
    # A position that no query may see is padding, and as a query it counts for nothing. Only self-attention without a
    # cache has its queries among its keys.
    real_BL = None if call.valid is None or queries != keys else call.valid.any(1).any(1)
    call = call.located().with_positions()
    rows = batch if most == math.inf else max(1, int(most // (heads * queries * keys)))
    step = queries if rows > 1 or most == math.inf or not chosen.row_by_row else max(1, int(most // (heads * keys)))
    for first in range(0, batch, rows):
        some = slice(first, first + rows)
        for low in range(0, queries, step):
            part = call.part(slice(low, low + step), some)
            scores = scores_of(part)
            allowed = torch.ones((), dtype=torch.bool, device=scores.device) if part.valid is None else part.valid
            allowed = allowed.expand(scores.shape)
            keep = chosen(scores, allowed, part.query, part.key, part.query_positions, part.key_positions, state)
            if real_BL is not None:
                is_query = real_BL.expand(batch, queries)[some, None, low : low + step, None]
                keep, allowed = keep & is_query, allowed & is_query
            yield LayerScores(scores, keep, allowed, bool(chosen.input_dependent), low)
