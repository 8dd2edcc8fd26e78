"""What attention looks like before any training: its entropy and δ, and the initial gain that gives a stated entropy.

Shapes: B batch, H heads, Q queries, K keys.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch

from ..model.configuration_semfocus import SemFocusConfig
from ..model.modeling_semfocus import SemFocusModel
from ..model.sparse_normalizers import NORMALIZERS
from .capture import LayerScores, visit_scores
from .quantities import Seen

TARGET_ENTROPY = 0.4
"""What is aimed at where nothing is said: topk:5 at the paper's length of 40 has at most ln 5 / ln 40 = 0.436."""


@dataclass(frozen=True)
class InitialAttention:
    """Means over all layers, heads, queries and rows; padding is not counted.

    Args:
        entropy: of the weights that the model uses (after mask and normalizer), over the logarithm of the query's number of
            valid keys: 1 for uniform attention over all of them. Queries with one valid key are left out.
        entropy_nats: the same, in nats.
        entropy_all: of the softmax over all valid keys of the same scores, over the same logarithm.
        entropy_all_nats: the same, in nats.
        dispersion_all: δ of all valid scores.
        dispersion_kept: δ of the scores that the mask keeps.
        entropy_by_layer: `entropy` of each layer, first layer first.
    """

    entropy: float
    entropy_nats: float
    entropy_all: float
    entropy_all_nats: float
    dispersion_all: float
    dispersion_kept: float
    entropy_by_layer: tuple[float, ...]


def initial_attention(model: torch.nn.Module, batch: Mapping[str, Any]) -> InitialAttention:
    """Entropy and δ of a model's attention on one batch: of any model with our attention, untrained or not.

    One forward in evaluation mode without gradients; the batch is taken in parts where its scores are many.

    Args:
        model: see :func:`capture_scores`. The field ``normalizer`` of its configuration, where it has one, says how scores
            become weights.
        batch: what its forward takes; labels are not looked at.

    Raises:
        ValueError: the model has no attention layer of ours, or the batch no query with two valid keys.
    """
    normalizer = NORMALIZERS[getattr(getattr(model, "config", None), "normalizer", "softmax")]
    used: dict[int, list[torch.Tensor]] = {}
    values: dict[str, list[torch.Tensor]] = {}

    def measure(index: int, layer: LayerScores) -> None:
        seen = Seen(layer)
        logs = layer.valid.sum(-1).to(layer.scores.dtype).log()
        parts = {
            "nats": entropy(normalizer(layer.scores, layer.keep)),
            "all_nats": entropy(NORMALIZERS["softmax"](layer.scores, layer.valid)),
            "dispersion_all": seen["dispersion_full"],
            "dispersion_kept": seen["dispersion_mask"],
        }
        tells = layer.valid.sum(-1) > 1
        parts["share"], parts["all_share"] = parts["nats"] / logs, parts["all_nats"] / logs
        used.setdefault(index, []).append(parts["share"][tells])
        for name, value in parts.items():
            values.setdefault(name, []).append(value[tells].double())

    visit_scores(model, {name: value for name, value in batch.items() if name != "labels"}, measure)
    means = {name: torch.cat(of_parts).nanmean().item() for name, of_parts in values.items()}
    if math.isnan(means["share"]):
        raise ValueError("no query of the batch has two valid keys; entropy needs at least two")
    by_layer = tuple(torch.cat(of_parts).double().mean().item() for of_parts in used.values())
    return InitialAttention(
        means["share"],
        means["nats"],
        means["all_share"],
        means["all_nats"],
        means["dispersion_all"],
        means["dispersion_kept"],
        by_layer,
    )


def entropy(weights: torch.Tensor) -> torch.Tensor:
    """−Σ A ln A in nats of weights ``(..., K)``, with 0 ln 0 = 0; 0 for a row of zeros.

    Example:
        >>> round(entropy(torch.tensor([0.5, 0.5, 0.0])).item(), 4)   # ln 2
        0.6931
    """
    return torch.special.entr(weights).sum(-1)


def choose_attention_gain(
    model: SemFocusConfig | Callable[[float], torch.nn.Module],
    batch: Mapping[str, Any],
    target_entropy: float = TARGET_ENTROPY,
    *,
    keys: Literal["kept", "all"] = "kept",
    seed: int = 0,
    lowest: float = 2**-6,
    highest: float = 2**6,
) -> float:
    """The `attention_gain` at which an untrained model's attention has a stated entropy on given inputs.

    All models are drawn from one seed, so their weights differ in the gain alone. Entropy falls with the gain in one
    layer; through several it may not everywhere, and then one of the gains that give the target is found (by Brent's method).

    Args:
        model: a configuration, whose own `attention_gain` is not looked at, or a function from a gain to an untrained
            model.
        batch: what the model's forward takes.
        target_entropy: normalised, 0 to 1: see `InitialAttention.entropy`.
        keys: "kept": the entropy of the weights that the model uses; "all": of the softmax over all valid keys, which
            hardly depends on the mask.
        seed: of torch's generators while a model is drawn; their state is as it was afterwards.
        lowest, highest: gains between which the target is looked for.

    Returns:
        The gain, with four significant digits.

    Raises:
        ValueError: the target is no entropy between those at `lowest` and `highest`. A mask that keeps k of n keys has at
            most ln k / ln n.

    Example:
        >>> config = SemFocusConfig(vocab_size=5)
        >>> gain = choose_attention_gain(config, {"input_ids": torch.tensor([[1, 2, 3, 4, 1, 2]])}, 0.8)
        >>> 1 < gain < 8
        True
        >>> config.attention_gain, config.target_entropy = gain, 0.8   # a new model of this configuration starts so
    """
    if not 0 < lowest < highest:
        raise ValueError(f"gains from {lowest} to {highest}; allowed: 0 < lowest < highest")
    if keys not in ("kept", "all"):
        raise ValueError(f"keys is {keys!r}; allowed: 'kept', 'all'")

    def build(gain: float) -> torch.nn.Module:
        if not isinstance(model, SemFocusConfig):
            return model(gain)
        return SemFocusModel(SemFocusConfig.from_dict({**model.to_dict(), "attention_gain": gain}))

    @cache
    def at(gain: float) -> float:
        with torch.random.fork_rng():  # a mask that draws does so in the forward too
            torch.manual_seed(seed)
            attention = initial_attention(build(gain), batch)
        return attention.entropy if keys == "kept" else attention.entropy_all

    most, least = at(lowest), at(highest)
    if not least <= target_entropy <= most:
        raise ValueError(
            f"target_entropy is {target_entropy}; allowed: {least:.3f} to {most:.3f}, what gains from {highest:g} to {lowest:g} "
            "give here"
        )
    from scipy.optimize import brentq  # half a second to import

    # Between the binary logarithms, which give back `lowest` and `highest` exactly where these are powers of 2.
    log_gain = brentq(lambda log: at(2.0**log) - target_entropy, math.log2(lowest), math.log2(highest), xtol=1e-5)
    return float(f"{2.0**log_gain:.4g}")
