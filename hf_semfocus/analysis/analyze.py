"""All quantities of the theory for one model on a data set, by layer and head (DESIGN §2)."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..data.collators import TaskCollator
from ..integrations.register import apply_attention
from ..integrations.saving import PREFIX, is_ours
from ..model.mask_base import MaskStrategy
from ..model.mask_registry import parse_mask
from .aggregate import aggregate
from .capture import attention_layers, visit_scores
from .conditions import at_percentiles
from .lipschitz import RADII, lipschitz
from .mask_stability import mask_stability
from .norms import norms
from .quantities import QUANTITIES, Collected

CONDITIONS = [name for name, quantity in QUANTITIES.items() if quantity.holds]
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
EPS = (0.01, 0.03, 0.1, 0.3, 1.0)
SEPARATION_BINS = 8
Progress = Callable[[float, str], None]


def analyze(
    model: torch.nn.Module,
    dataset: Sequence[Mapping[str, Any]],
    mask: str | MaskStrategy | None = None,
    *,
    examples: int = 200,
    batch_size: int = 20,
    eps: Sequence[float] = EPS,
    directions: int = 4,
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Dispersion, separation, stability, mask stability and Lipschitz estimates of a model, as plain values for JSON.

    Everything under `mask` is measured on the scores that the model computes with its own masks, so δ of the mask stands
    against δ_s of all keys on the *same* scores. The Lipschitz estimates take the model's weights under full attention
    and under `mask`: the same θ. The model is as it was afterwards.

    Args:
        model: a SemFocus model, or any other with :func:`apply_attention`'s attention.
        dataset: rows with `input_ids` (a list of ids) and, for the Lipschitz estimates, `labels` (an integer or a list of
            them), such as a split of :func:`load_task`.
        mask: the mask to look at; None: the model's own.
        examples: the first so many rows.
        batch_size: rows at a time; one gradient norm each.
        eps: sizes of noise, see :func:`mask_stability`.
        directions: see :func:`lipschitz`.
        seed: of the noise and the directions.
        progress: called with the share that is done and what is being done.

    Returns:
        ``mask``, ``own_mask``, ``examples``, ``layers``, ``heads``; ``quantities``: entries with layer, head, quantity,
        mean, median, q95, max, n and seven quantiles (`QUANTILES`), where head or layer None means all of them;
        ``conditions``: for the same groups the share of queries with log ξ < log ξ_s, of the n_improvement that leave
        out a key and for which ξ is defined, and the shares for which the loose bound is vacuous; ``percentiles``: of all
        layers and heads, see :func:`at_percentiles`; ``norms``: see :func:`norms`; ``maxima``: how many
        (layer, head) have max log ξ < max log ξ_s over their queries, of n for which both are defined;
        ``mask_stability``: eps, kept_share [ε][layer], and by_separation, the kept share of queries with small to large
        Δ; ``lipschitz``: for each mask losses, gradient_norms and ratios (a list for each radius), or None without
        labels or a trained parameter. What is not defined is None; ∞ is "inf" (JSON has no number for it).

    Raises:
        ValueError: without rows, for an unknown mask, or a model without our attention.

    Example:
        >>> found = analyze(model, load_task("even_pairs", length=20)["test"], "topk:5")  # doctest: +SKIP
        >>> found["maxima"]  # doctest: +SKIP
        {'improved': 3, 'n': 3}
    """
    own, chosen = _own_masks(model), None if mask is None else parse_mask(mask)
    if chosen is None and len(set(own)) == 1:
        chosen = parse_mask(own[0])
    batches = batches_of(model, dataset, examples, batch_size)
    inputs = [{name: value for name, value in batch.items() if name != "labels"} for batch in batches]

    def tell(first: float, last: float, words: str) -> Callable[[float], None]:
        return lambda share: None if progress is None else progress(first + share * (last - first), words)

    values = _Values(has_own=chosen is None or [str(chosen)] * len(own) == own)
    _measure(model, inputs, chosen, values, tell(0, 0.2, "scores"))
    result: dict[str, Any] = {
        "mask": _words(own) if chosen is None else str(chosen),
        "own_mask": _words(own),
        "examples": sum(len(batch["input_ids"]) for batch in batches),
        **values.summary(),
        "norms": norms(model),
    }
    generator = torch.Generator().manual_seed(seed)
    result["mask_stability"] = _mask_stability(model, inputs, chosen, eps, generator, tell(0.2, 0.5, "noise"))
    result["lipschitz"] = None
    if "labels" in batches[0] and any(parameter.requires_grad for parameter in model.parameters()):
        # The same directions for each mask, so that only the mask differs.
        kinds = list(dict.fromkeys(["full", result["mask"]]))
        result["lipschitz"] = {}
        for number, kind in enumerate(kinds):
            part = 0.5 / len(kinds)
            report = tell(0.5 + number * part, 0.5 + (number + 1) * part, f"gradients, {kind}")
            other = model if kind == result["own_mask"] else with_mask(model, kind, inputs[0])
            estimate = lipschitz(other, batches, torch.Generator().manual_seed(seed), RADII, directions, report)
            result["lipschitz"][kind] = {
                "losses": estimate.losses.tolist(),
                "gradient_norms": estimate.gradient_norms.tolist(),
                "radii": list(estimate.radii),
                "ratios": estimate.ratios.flatten(1).tolist(),
                "parameter_norm": estimate.parameter_norm,
            }
    return plain(result)


def with_mask(
    model: torch.nn.Module, mask: str | MaskStrategy, probe: Mapping[str, Any] | None = None
) -> torch.nn.Module:
    """A copy of a model with the same weights whose attention layers all use `mask`.

    Args:
        model: see :func:`analyze`; unchanged.
        mask: a specification or strategy.
        probe: inputs, where :func:`apply_attention` needs some.
    """
    mask = parse_mask(mask)
    if not attention_layers(model):
        other: Any = copy.deepcopy(model)
        return apply_attention(other, mask, probe)
    config: Any = copy.deepcopy(model.config)
    config.layer_masks = None
    config.mask = str(mask)
    with torch.random.fork_rng(devices=[]):
        copied: torch.nn.Module = type(model)(config)
    # Only what a mask learns for itself (the centroids of `cluster`) may be missing or left over.
    copied.load_state_dict(model.state_dict(), strict=False)
    first = next(model.parameters())
    for ours, theirs in zip(copied.parameters(), model.parameters(), strict=True):
        ours.requires_grad_(theirs.requires_grad)
    return copied.to(device=first.device, dtype=first.dtype)


def _own_masks(model: torch.nn.Module) -> list[str]:
    """The mask of each attention layer."""
    layers = attention_layers(model)
    if layers:
        return [str(layer.mask_strategy) for layer in layers]
    names = {getattr(getattr(part, "config", None), "_attn_implementation", None) for part in model.modules()}
    return sorted(str(name).removeprefix(PREFIX) for name in names if is_ours(name))


def _words(masks: list[str]) -> str:
    return masks[0] if len(set(masks)) == 1 else " / ".join(masks)


def batches_of(
    model: torch.nn.Module, dataset: Sequence[Mapping[str, Any]], examples: int, size: int
) -> list[dict[str, torch.Tensor]]:
    """The first `examples` rows as batches of `size`, padded on the right, on the model's device."""
    if examples < 1 or size < 1:
        raise ValueError(f"examples is {examples} and batch_size {size}; allowed: at least 1 each")
    count = min(examples, len(dataset))
    if not count:
        raise ValueError("the data set has no rows to analyze")
    collate = TaskCollator(getattr(getattr(model, "config", None), "pad_token_id", None) or 0)
    device = next(model.parameters()).device
    parts = [range(first, min(first + size, count)) for first in range(0, count, size)]
    batches = [collate([dataset[index] for index in part]) for part in parts]
    return [{name: value.to(device) for name, value in batch.items()} for batch in batches]


class _Values:
    """The quantities of every query and key: under the mask that is looked at and, of δ alone, under the model's own."""

    def __init__(self, has_own: bool) -> None:
        self.seen = Collected(QUANTITIES)
        self.own = self.seen if has_own else Collected(["dispersion_mask"])

    def _layers(self) -> list[dict[str, torch.Tensor]]:
        """For each layer the values of each quantity, (H, queries or keys), fp32 on the CPU."""
        layers = []
        for layer, own in zip(self.seen.layers, self.own.layers, strict=True):
            parts = {**layer, "dispersion_own": own["dispersion_mask"]}
            layers.append(
                {
                    name: torch.cat([part.float().cpu().transpose(0, 1).flatten(1) for part in values], dim=1)
                    for name, values in parts.items()
                }
            )
        return layers

    def summary(self) -> dict[str, Any]:
        layers = self._layers()
        heads = max(len(layer["dispersion_full"]) for layer in layers)
        quantities, conditions = [], []
        improved = defined = 0
        for index, layer in enumerate(layers):
            for head in range(len(layer["dispersion_full"])):
                values = {name: value[head] for name, value in layer.items()}
                quantities += _entries(values, index, head)
                conditions.append(_condition(values, index, head))
                meets = _maxima_improve(values)
                conditions[-1]["maxima_improve"] = meets
                improved, defined = improved + bool(meets), defined + (meets is not None)
            pooled = {name: value.flatten() for name, value in layer.items()}
            quantities += _entries(pooled, index, None)
            conditions.append(_condition(pooled, index, None))
        everything = {name: torch.cat([layer[name].flatten() for layer in layers]) for name in layers[0]}
        return {
            "layers": len(layers),
            "heads": heads,
            "quantities": [*quantities, *_entries(everything, None, None)],
            "conditions": [*conditions, _condition(everything, None, None)],
            "percentiles": at_percentiles(everything),
            "maxima": {"improved": improved if defined else None, "n": defined},
        }


def _measure(
    model: torch.nn.Module,
    inputs: Sequence[Mapping[str, Any]],
    mask: MaskStrategy | None,
    values: _Values,
    report: Callable[[float], None],
) -> None:
    for number, batch in enumerate(inputs):
        visit_scores(model, batch, values.seen, mask)
        if values.own is not values.seen:
            visit_scores(model, batch, values.own)
        report((number + 1) / len(inputs))


def _entries(values: Mapping[str, torch.Tensor], layer: int | None, head: int | None) -> list[dict[str, Any]]:
    entries = []
    for name in [name for name in values if name not in CONDITIONS]:
        known = values[name][~values[name].isnan()].sort().values
        # The nearest of the values, so that an infinite one does not spread.
        nearest = [known[round(level * (len(known) - 1))].item() if len(known) else math.nan for level in QUANTILES]
        summary = {**aggregate(known), "n": len(known), "quantiles": nearest}
        entries.append({"layer": layer, "head": head, "quantity": name, **summary})
    return entries


def _condition(values: Mapping[str, torch.Tensor], layer: int | None, head: int | None) -> dict[str, Any]:
    gain = values["improvement"][~values["improvement"].isnan()]
    return {
        "layer": layer,
        "head": head,
        "n": int((~values["dispersion_full"].isnan()).sum()),
        "n_improvement": len(gain),
        "improvement_share": (gain > 0).double().mean().item() if len(gain) else math.nan,
        **{f"{name}_share": values[name].double().nanmean().item() for name in CONDITIONS},
    }


def _maxima_improve(values: Mapping[str, torch.Tensor]) -> bool | None:
    """Whether the constant that holds for every query is smaller under the mask; None where one is not defined."""
    masked, full = values["log_stability_mask"], values["log_stability_full"]
    undefined = masked.isnan() & ~values["dispersion_mask"].isnan()
    if bool(undefined.any()) or bool(values["separation"].isnan().all()):
        return None
    return bool(masked[~masked.isnan()].max() < full[~full.isnan()].max())


def _mask_stability(
    model: torch.nn.Module,
    inputs: Sequence[Mapping[str, Any]],
    mask: MaskStrategy | None,
    eps: Sequence[float],
    generator: torch.Generator,
    report: Callable[[float], None],
) -> dict[str, Any]:
    parts = []
    for number, batch in enumerate(inputs):
        parts.append(mask_stability(model, batch, eps, generator, mask))
        report((number + 1) / len(inputs))
    layers = len(parts[0].by_query)
    shares = [torch.cat([part.by_query[layer] for part in parts], dim=1) for layer in range(layers)]
    gap = torch.cat([part.separation[layer] for layer in range(layers) for part in parts])
    pooled = torch.cat(shares, dim=1)
    known = ~gap.isnan()
    gap, pooled = gap[known], pooled[:, known]
    order = gap.argsort()
    bins = []
    for some in order.tensor_split(SEPARATION_BINS) if len(order) >= 10 * SEPARATION_BINS else []:
        bins.append(
            {
                "low": gap[some[0]].item(),
                "median": gap[some[len(some) // 2]].item(),
                "high": gap[some[-1]].item(),
                "n": len(some),
                "kept_share": pooled[:, some].double().mean(1).tolist(),
            }
        )
    return {
        "eps": list(map(float, eps)),
        "kept_share": torch.stack([share.double().mean(1) for share in shares], dim=1).tolist(),
        "by_separation": bins,
    }


def plain(value: Any) -> Any:
    """NaN as None and infinities as "inf" and "-inf": JSON has no numbers for them."""
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value
