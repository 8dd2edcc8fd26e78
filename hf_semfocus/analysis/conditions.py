"""The paper's two conditions for a smaller Lipschitz constant, at percentiles of δ, Δ and β (arXiv 2506.14095)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .aggregate import quantile

LEVELS = (75, 90, 95, 100)
"""Percentiles of δ and β; those of Δ are 100 minus them, so that both go to the worst."""
FLOOR = 1e-9
"""Smallest Δ that is distinguished from 0."""


def at_percentiles(values: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """δ, β and Δ at the paper's percentiles, and both conditions there, all on the same scores.

    Args:
        values: of the quantities "dispersion_full", "dispersion_mask", "separation", "queries_per_key" and "kept_keys"
            (see `QUANTITIES`) any number of values in any shape; NaN: not defined.

    Returns:
        ``levels`` (`LEVELS`); for each of the first four a value a level, where Δ is at 100 − level and one between 0 and
        `FLOOR` is `FLOOR`; ``kept_keys``, a query's mean; ``lambda_w`` and ``lambda_x`` of :func:`conditions`.

    Example:
        >>> some = {name: torch.tensor([1.0, 2.0]) for name in
        ...         ("dispersion_full", "dispersion_mask", "separation", "queries_per_key", "kept_keys")}
        >>> at_percentiles(some)["separation"]
        [1.25, 1.1, 1.05, 1.0]
    """
    ordered = {name: value[~value.isnan()].double().sort().values for name, value in values.items()}
    result: dict[str, Any] = {"levels": list(LEVELS)}
    for name in ("dispersion_full", "dispersion_mask", "queries_per_key"):
        result[name] = [quantile(ordered[name], level / 100) for level in LEVELS]
    gaps = [quantile(ordered["separation"], 1 - level / 100) for level in LEVELS]
    result["separation"] = [max(gap, FLOOR) if gap >= 0 else gap for gap in gaps]
    result["kept_keys"] = ordered["kept_keys"].mean().item()
    return {**result, **conditions(result["dispersion_full"], result)}


def conditions(full: Sequence[float], mask: Mapping[str, Any]) -> dict[str, list[float]]:
    """The left sides of both conditions: below 1 the mask's constant is smaller than full attention's.

    Args:
        full: δ_s a level: of the same scores, or of a model that was trained with full attention.
        mask: ``dispersion_mask``, ``separation`` and ``queries_per_key`` a level, and ``kept_keys``.

    Returns:
        ``lambda_w``, :func:`lambda_w` a level, and ``lambda_x``, :func:`lambda_x` a level.
    """
    columns = list(zip(full, mask["dispersion_mask"], mask["separation"], mask["queries_per_key"], strict=True))
    return {
        "lambda_w": [lambda_w(full_, kept, gap) for full_, kept, gap, _ in columns],
        "lambda_x": [lambda_x(full_, kept, gap, keys, mask["kept_keys"]) for full_, kept, gap, keys in columns],
    }


def lambda_w(dispersion_full: float, dispersion_mask: float, separation: float) -> float:
    """δ_h/δ_s + ln(2(1 + 1/Δ))/δ_s: below 1, the loss is Lipschitz in the weights with a smaller constant.

    Returns:
        NaN where something is not defined, δ_s is 0, or Δ is not above 0 (a mask that does not choose by the scores).

    Example:
        >>> round(lambda_w(8.0, 2.0, 1.0), 4)   # 2/8 + ln(4)/8
        0.4233
    """
    if not (dispersion_full > 0 and separation > 0 and not math.isnan(dispersion_mask)):
        return math.nan
    return (dispersion_mask + math.log(2) + math.log1p(1 / separation)) / dispersion_full


def lambda_x(
    dispersion_full: float, dispersion_mask: float, separation: float, queries_per_key: float, kept: float
) -> float:
    """δ_h/δ_s + [ln(δ_s (1 + β/k)(1 + 1/Δ) + β/k) − ln(δ_s + 1)]/δ_s: as :func:`lambda_w`, in the inputs of a layer.

    Args:
        dispersion_full, dispersion_mask, separation: δ_s, δ_h and Δ.
        queries_per_key: β.
        kept: k, the keys that a query keeps.

    Example:
        >>> round(lambda_x(8.0, 2.0, 1.0, 5.0, 5.0), 4)   # 2/8 + (ln(8·2·2 + 1) − ln 9)/8
        0.4124
    """
    if not (dispersion_full > 0 and separation > 0 and kept > 0):
        return math.nan
    share = queries_per_key / kept
    inside = dispersion_full * (1 + share) * (1 + 1 / separation) + share
    return (dispersion_mask + math.log(inside) - math.log1p(dispersion_full)) / dispersion_full
