"""The theory's quantities on one fixed batch as plain numbers: what a callback records while a model trains."""

from collections.abc import Mapping
from typing import Any

import torch

from .aggregate import aggregate
from .capture import LayerScores, visit_scores
from .dispersion import dispersion
from .separation import separation
from .stability import improvement

QUANTITIES = ("dispersion_full", "dispersion_mask", "separation", "improvement_share", "gradient_norm")


def probe_quantities(model: torch.nn.Module, batch: Mapping[str, Any]) -> dict[str, float]:
    """Dispersion, separation, stability and the loss's gradient on one batch, over all layers, heads and queries.

    One forward pass without gradients and, where the batch has labels, one with; no generator is touched, no gradient is
    left behind, and modes are as they were afterwards.

    Args:
        model: a model with our attention; see :func:`capture_scores`.
        batch: what its forward takes, on the model's device. Padding is not counted.

    Returns:
        ``dispersion_full_mean`` (also ``_median``, ``_q95``, ``_max``: δ_s, all valid keys) and ``dispersion_mask_…`` (δ
        of the kept keys, on the same scores), ``dispersion_ratio`` (of the two means), ``separation_…`` (Δ),
        ``improvement_share`` (share of queries with log ξ < log ξ_s, of those for which it is defined),
        ``gradient_norm`` (‖∇_θ loss‖₂, an estimate of the loss's Lipschitz constant). A quantity that is not defined (the
        separation of a mask that keeps everything) is left out.

    Example:
        >>> probe_quantities(model, {"input_ids": ids, "labels": labels})["dispersion_ratio"]  # doctest: +SKIP
        0.41
    """
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    values: dict[str, list[torch.Tensor]] = {name: [] for name in ("full", "mask", "gap", "gain")}

    def measure(index: int, layer: LayerScores) -> None:
        values["full"].append(dispersion(layer.scores, layer.valid).flatten())
        values["mask"].append(dispersion(layer.scores, layer.keep).flatten())
        values["gap"].append(separation(layer.scores, layer.keep, layer.valid).flatten())
        values["gain"].append(improvement(layer.scores, layer.keep, layer.valid, layer.input_dependent).flatten())

    visit_scores(model, inputs, measure)
    found: dict[str, float] = {}
    for name, part in (("dispersion_full", "full"), ("dispersion_mask", "mask"), ("separation", "gap")):
        found.update({f"{name}_{kind}": value for kind, value in aggregate(torch.cat(values[part])).items()})
    if found["dispersion_full_mean"] > 0:
        found["dispersion_ratio"] = found["dispersion_mask_mean"] / found["dispersion_full_mean"]
    gain = torch.cat(values["gain"])
    gain = gain[~gain.isnan()]
    if len(gain):
        found["improvement_share"] = (gain > 0).double().mean().item()
    if "labels" in batch:
        found["gradient_norm"] = gradient_norm(model, batch)
    return {name: value for name, value in found.items() if value == value}


def gradient_norm(model: torch.nn.Module, batch: Mapping[str, Any]) -> float:
    """‖∇_θ loss‖₂ over all trained parameters, in evaluation mode; nothing is left in ``.grad``.

    Args:
        model: gives an output with a ``loss``.
        batch: with labels.
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        with torch.enable_grad():
            gradients = torch.autograd.grad(model(**batch).loss, parameters, allow_unused=True)
    finally:
        for module, training in modes:
            module.training = training
    squares = [gradient.double().pow(2).sum() for gradient in gradients if gradient is not None]
    return float(torch.stack(squares).sum().sqrt())
