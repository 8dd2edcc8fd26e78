"""Many values of a quantity as four numbers: never the maximum alone (DESIGN §2)."""

import math

import torch


def aggregate(values: torch.Tensor) -> dict[str, float]:
    """Mean, median, 95 % quantile and maximum of all values that are not NaN.

    Args:
        values: any shape, any float type.

    Returns:
        {"mean", "median", "q95", "max"}; all NaN without a value. Quantiles interpolate linearly; the median of an
        even count is the mean of the middle two.

    Example:
        >>> aggregate(torch.tensor([1.0, 2.0, float("nan"), 6.0]))["median"]
        2.0
    """
    known = values[~values.isnan()].double()
    if known.numel() == 0:
        return dict.fromkeys(("mean", "median", "q95", "max"), math.nan)
    ordered = known.sort().values  # torch.quantile refuses more than 16 million values
    return {
        "mean": known.mean().item(),
        "median": quantile(ordered, 0.5),
        "q95": quantile(ordered, 0.95),
        "max": ordered[-1].item(),
    }


def quantile(ordered: torch.Tensor, level: float) -> float:
    """The quantile of sorted values, 0 ≤ level ≤ 1, interpolated linearly; NaN without a value."""
    if not len(ordered):
        return math.nan
    place = level * (len(ordered) - 1)
    low, high = ordered[math.floor(place)].item(), ordered[math.ceil(place)].item()
    # Equal ends first: between two infinities there is nothing to interpolate.
    return low if low == high else low + (place - math.floor(place)) * (high - low)
