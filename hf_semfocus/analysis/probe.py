"""The theory's quantities on one fixed batch as plain numbers: what a callback records while a model trains."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from ..integrations.evaluation import evaluating
from .aggregate import aggregate
from .capture import visit_scores
from .mask_stability import mask_stability, some_rows
from .quantities import Collected

NOISE = 0.1
"""ε of the recorded mask stability."""
NOISE_ROWS = 25
"""Rows of the batch that it is measured on: it takes two forward passes more, and thousands of queries are enough."""
AGGREGATED = ("dispersion_full", "dispersion_mask", "separation")


def probe_quantities(model: torch.nn.Module, batch: Mapping[str, Any]) -> dict[str, float]:
    """Dispersion, separation, stability and the loss's gradient on one batch, over all layers, heads and queries.

    One forward pass without gradients, two of `NOISE_ROWS` rows where a mask looks at the scores and, where the batch has
    labels and the model a trained parameter, one with gradients.
    The noise comes from a generator of its own, the same each time; no gradient is left behind,
    and modes are as they were afterwards.

    Args:
        model: a model with our attention; see :func:`capture_scores`.
        batch: what its forward takes, on the model's device. Padding is not counted.

    Returns:
        ``dispersion_full_mean`` (also ``_median``, ``_q95``, ``_max``: δ_s, all valid keys) and ``dispersion_mask_…`` (δ
        of the kept keys, on the same scores), ``dispersion_ratio`` (of the two means), ``separation_…`` (Δ),
        ``improvement_share`` (share of queries with log ξ < log ξ_s, of those for which it is defined),
        ``mask_stability`` (share of kept keys that stay kept under noise of ε = `NOISE`, mean over layers; only where a mask
        looks at the scores: for any other it is 1 by definition), ``loss``, and ``gradient_norm`` (‖∇_θ loss‖₂, an estimate
        of the loss's Lipschitz constant). A quantity that is not defined (the separation of a mask that keeps everything) is
        left out.

    Example:
        >>> probe_quantities(model, {"input_ids": ids, "labels": labels})["dispersion_ratio"]  # doctest: +SKIP
        0.41
    """
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    seen = Collected((*AGGREGATED, "improvement"))
    visit_scores(model, inputs, seen)
    result: dict[str, float] = {}
    for name in AGGREGATED:
        result.update({f"{name}_{kind}": value for kind, value in aggregate(seen.joined(name)).items()})
    if result["dispersion_full_mean"] > 0:
        result["dispersion_ratio"] = result["dispersion_mask_mean"] / result["dispersion_full_mean"]
    gain = seen.joined("improvement")
    gain = gain[~gain.isnan()]
    if len(gain):
        result["improvement_share"] = (gain > 0).double().mean().item()
    tokens = inputs["inputs_embeds"] if inputs.get("inputs_embeds") is not None else inputs.get("input_ids")
    if seen.input_dependent and tokens is not None and "inputs_embeds" in inspect.signature(model.forward).parameters:
        few = {name: some_rows(value, slice(0, NOISE_ROWS), len(tokens)) for name, value in inputs.items()}
        shares = mask_stability(model, few, NOISE, torch.Generator().manual_seed(0)).kept_share
        result["mask_stability"] = shares.mean().item()
    if "labels" in batch and any(parameter.requires_grad for parameter in model.parameters()):
        result["loss"], result["gradient_norm"] = loss_and_gradient_norm(model, batch)
    return {name: value for name, value in result.items() if value == value}


def probe_dispersion(model: torch.nn.Module, batch: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Dispersion of all valid scores, and of those the model's masks keep, over every query, head, layer and example.

    Args:
        model, batch: see :func:`capture_scores`. Scores are taken in parts, so long inputs do not need all at once.

    Returns:
        {"full": {"mean", "median", "q95", "max"}, "mask": {the same}}, on the same scores; padding is not counted.
    """
    seen = Collected(("dispersion_full", "dispersion_mask"))
    visit_scores(model, batch, seen)
    return {name: aggregate(seen.joined(f"dispersion_{name}")) for name in ("full", "mask")}


def gradient_norm(model: torch.nn.Module, batch: Mapping[str, Any]) -> float:
    """‖∇_θ loss‖₂ over all trained parameters, in evaluation mode; nothing is left in ``.grad``.

    Args:
        model: gives an output with a ``loss``.
        batch: with labels.
    """
    return loss_and_gradient_norm(model, batch)[1]


def loss_and_gradient_norm(model: torch.nn.Module, batch: Mapping[str, Any]) -> tuple[float, float]:
    """The loss, and :func:`gradient_norm`, from one forward pass."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    loss = evaluated_loss(model, batch)
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    squares = [gradient.double().pow(2).sum() for gradient in gradients if gradient is not None]
    return float(loss.detach()), float(torch.stack(squares).sum().sqrt())


def evaluated_loss(model: torch.nn.Module, batch: Mapping[str, Any], graph: bool = True) -> torch.Tensor:
    """The loss in evaluation mode, with its graph: the same bits whether a gradient is taken of it or not; or without.

    Raises:
        ValueError: the model's output has no loss for this batch.
    """
    with evaluating(model), torch.set_grad_enabled(graph):
        loss = getattr(model(**batch), "loss", None)
    if loss is None:
        raise ValueError(f"{type(model).__name__} gives no loss for this batch; it needs labels and a head")
    return loss
