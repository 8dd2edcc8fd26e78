"""Numbers and names as words: what terminals, pages, tables and messages have in common."""

import difflib
import math
from collections.abc import Iterable, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from statistics import median
from typing import Any

from .schema import Convergence, ReachRecord

NONE = "–"
UNDEFINED = "n/a"


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """ "; did you mean 'full'?" for a name that is nearly a known one, nothing for any other.

    >>> did_you_mean("topc", ["full", "topk"])
    "; did you mean 'topk'?"
    """
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {near[0]!r}?" if near else ""


def plural(count: int, noun: str) -> str:
    """1 seed, 2 seeds."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def mask_slug(mask: str) -> str:
    """A mask specification, or the name of a variant, as a folder's name: "topk:5+sink:1" → "topk-5_sink-1".

    >>> mask_slug("random:5;seed=0+sink:1")
    'random-5-seed-0_sink-1'
    """
    return mask.translate(str.maketrans(":;=+", "---_"))


def accuracy(value: float | None) -> str:
    """Three decimals, cut and not rounded where rounding would claim more: 0.9996 is 0.999, as τ = 1 is not reached."""
    if value is None:
        return NONE
    return f"{value:.3f}" if value == 1 or value < 0.9995 else "0.999"


def seconds(value: float | None) -> str:
    """Three significant digits at most, whole numbers from 100 on."""
    if value is None:
        return NONE
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def percent(threshold: float | None) -> str:
    """τ in words: 0.95 → "95 %"."""
    return "τ" if threshold is None else f"{100 * threshold:g} %"


def share(value: float | None) -> str:
    """A share in per cent, with one decimal."""
    return UNDEFINED if value is None else f"{100 * value:.1f} %"


def number(value: Any) -> str:
    """Three significant digits, whole numbers from 1000 on; "n/a" for what is not defined."""
    if value is None:
        return UNDEFINED
    value = float(value)
    return "∞" if value == math.inf else f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def middle(values: Sequence[Any]) -> float | None:
    """The median of the values that are defined; of an even count the mean of the middle two."""
    known = [float(value) for value in values if value is not None]
    return median(known) if known else None


def length_text(length: Any) -> str:
    """A task's length: 40, or 500–600 for a range."""
    if length is None:
        return NONE
    return "–".join(str(part) for part in length) if isinstance(length, list | tuple) else str(length)


def format_ratio(value: float, rounding: str = ROUND_HALF_EVEN) -> str:
    """A ratio with two significant digits, or all whole ones: 0.043, 0.25, 1.0, 3.9, 12, 137.

    `rounding` is a mode of `decimal`; bounds use ROUND_FLOOR and ROUND_CEILING so that they stay true.
    """
    if value == 0:
        return "0"
    exact = Decimal(str(value))
    digits = min(0, exact.adjusted() - 1)
    rounded = exact.quantize(Decimal(1).scaleb(digits), rounding=rounding)
    if rounded.adjusted() > exact.adjusted() and digits < 0:  # 9.96 became 10.0: one digit too many
        rounded = rounded.quantize(Decimal(1).scaleb(digits + 1))
    return f"{rounded:f}"


def bounds_text(lower: tuple[float, bool], upper: tuple[float, bool]) -> str:
    """What is known of a ratio from its bounds, each with whether it is open: `3.9×`, `> 2.3×`, `< 0.5×`, `undetermined`.

    Bounds are rounded outwards, so what is printed is true.
    """
    (low, low_open), (high, high_open) = lower, upper
    if low == high:
        return f"{format_ratio(low)}×"
    if low == 0 and high == math.inf:
        return "undetermined"
    low_text = f"{format_ratio(low, ROUND_FLOOR)}×"
    if high == math.inf:
        return f"{'>' if low_open else '≥'} {low_text}"
    high_text = f"{format_ratio(high, ROUND_CEILING)}×"
    if low == 0:
        return f"{'<' if high_open else '≤'} {high_text}"
    return f"between {low_text} and {high_text}"


def epochs_text(run: Convergence) -> str:
    """`7`, `>40`, `>3 (diverged)` or `>12 (unfinished)`."""
    if run.reached:
        return str(run.epochs)
    note = " (diverged)" if run.diverged else "" if run.finished else " (unfinished)"
    return f">{run.epochs}{note}"


def reach_text(reach: ReachRecord) -> str:
    """How far information travels: "all", "±6 of 20 positions", "own block of 5", "3 to 8 of 20 positions"."""
    if reach.kind == "all":
        return "all"
    if reach.kind == "block":
        return f"own block of {reach.most}"
    if reach.kind == "window":
        left, right = reach.left, reach.right
        return f"{f'±{left}' if left == right else f'−{left} to +{right}'} of {reach.length} positions"
    fewest = "" if reach.fewest == reach.most else f"{reach.fewest} to "
    return f"{fewest}{reach.most} of {reach.length} positions"
