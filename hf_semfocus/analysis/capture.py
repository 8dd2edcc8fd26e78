"""Collects attention scores and kept keys from a SemFocus model, without a change to what the model computes.

Shapes: B batch, H heads, L sequence length.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..model.attention_interface import split_attention_mask
from .aggregate import aggregate
from .dispersion import dispersion

CHUNK_ELEMENTS = 2**24
"""Scores of one layer that `probe_dispersion` holds at once: 64 MB in fp32."""


@dataclass(frozen=True)
class LayerScores:
    """What one attention layer saw and kept.

    Args:
        scores: (B, H, L, L) scaled scores D in fp32 (fp64 for fp64 models), finite biases included; rows are queries.
        keep: bool (B, H, L, L): the keys that the layer's mask kept.
        valid: bool (B, H, L, L): the keys that it could have kept. Both are False throughout for a query that is
            padding.
        input_dependent: whether the mask chose by the scores.
    """

    scores: torch.Tensor
    keep: torch.Tensor
    valid: torch.Tensor
    input_dependent: bool


def capture_scores(model: torch.nn.Module, batch: Mapping[str, Any]) -> list[LayerScores]:
    """The scores and kept keys of every attention layer, first layer first, for one batch.

    Runs one forward in evaluation mode without gradients; training flags are as they were afterwards.

    Args:
        model: a SemFocus model with or without a head.
        batch: what its forward takes ("input_ids", "attention_mask", …), on the model's device. Padding is what no
            query may attend to.

    Raises:
        ValueError: the model has no attention layer with a mask strategy.

    Example:
        >>> layers = capture_scores(model, {"input_ids": ids})  # doctest: +SKIP
        >>> dispersion(layers[0].scores, layers[0].keep).shape  # doctest: +SKIP
        torch.Size([2, 1, 20])
    """
    captured: list[LayerScores] = []
    visit_scores(model, batch, lambda index, layer: captured.append(layer))
    return captured


def probe_dispersion(model: torch.nn.Module, batch: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Dispersion of all valid scores, and of those the model's masks keep, over every query, head, layer and example.

    Args:
        model, batch: see `capture_scores`. Rows are taken in parts, so long inputs do not need all scores at once.

    Returns:
        {"full": {"mean", "median", "q95", "max"}, "mask": {the same}}, on the same scores; padding is not counted.
    """
    found: dict[str, list[torch.Tensor]] = {"full": [], "mask": []}

    def measure(index: int, layer: LayerScores) -> None:
        found["full"].append(dispersion(layer.scores, layer.valid).flatten())
        found["mask"].append(dispersion(layer.scores, layer.keep).flatten())

    for part in _parts(model, batch):
        visit_scores(model, part, measure)
    return {name: aggregate(torch.cat(values)) for name, values in found.items()}


def visit_scores(model: torch.nn.Module, batch: Mapping[str, Any], visit: Callable[[int, LayerScores], None]) -> None:
    """One forward as `capture_scores`; `visit(index, layer)` is called as each attention layer is reached."""
    layers = attention_layers(model)
    modes = [(module, module.training) for module in model.modules()]
    handles = []
    try:
        for index, layer in enumerate(layers):

            def hook(module: torch.nn.Module, args: tuple, kwargs: dict[str, Any], index: int = index) -> None:
                visit(index, _seen(module, args, kwargs))

            handles.append(layer.register_forward_pre_hook(hook, with_kwargs=True))
        model.eval()
        with torch.no_grad():
            model(**batch)
    finally:
        for handle in handles:
            handle.remove()
        for module, training in modes:
            module.training = training


def attention_layers(model: torch.nn.Module) -> list[Any]:
    """The model's attention layers that have a mask strategy and give their scores, in order; `ValueError` if none."""
    layers = [module for module in model.modules() if hasattr(module, "mask_strategy") and hasattr(module, "scores")]
    if not layers:
        raise ValueError(f"{type(model).__name__} has no attention layer with a mask strategy; use a SemFocus model")
    return layers


def _seen(layer: Any, args: tuple, kwargs: Mapping[str, Any]) -> LayerScores:
    """What the layer is about to compute from, by the rules of its forward."""
    hidden_BLd = args[0] if args else kwargs["hidden_states"]
    scores = layer.scores(hidden_BLd)
    valid, bias = split_attention_mask(kwargs.get("attention_mask"))
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    if valid is None:
        valid = torch.ones((), dtype=torch.bool, device=scores.device)
    valid = valid.expand(scores.shape)
    query, key = layer.query_key(hidden_BLd)
    keep = layer.mask_strategy(scores, valid, query, key)
    real_BL = valid.any(1).any(1)  # a position that no query may see is padding, and as a query it counts for nothing
    is_query = real_BL[:, None, :, None]
    return LayerScores(scores, keep & is_query, valid & is_query, bool(layer.mask_strategy.input_dependent))


def _parts(model: torch.nn.Module, batch: Mapping[str, Any]) -> list[dict[str, Any]]:
    """`batch` cut along its rows so that one layer's scores stay below `CHUNK_ELEMENTS`."""
    first = batch["input_ids"] if batch.get("input_ids") is not None else batch["inputs_embeds"]
    rows, length = first.shape[:2]
    heads = max(getattr(layer, "heads", 1) for layer in attention_layers(model))
    step = max(1, CHUNK_ELEMENTS // (heads * length**2))

    def cut(value: Any, start: int) -> Any:
        # A mask with one row serves all rows.
        has_rows = isinstance(value, torch.Tensor) and value.ndim > 0 and len(value) == rows and rows > 1
        return value[start : start + step] if has_rows else value

    return [{name: cut(value, start) for name, value in batch.items()} for start in range(0, rows, step)]
