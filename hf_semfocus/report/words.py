"""What is known of runs and pairs, in words made of a summary's numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..comparison.statistics import Ratio, SpeedUp, median_epochs, median_ratio, median_seconds
from ..schema import Convergence, Quantity
from ..summary_schema import NoPair, PairEntry, RunEntry, SpeedUpEntry, Summary
from ..text import NONE, bounds_text, epochs_text, format_ratio

INTERVALS = ("student_t_95", "bootstrap_95")
SEEDS_SHOWN = 5
"""Up to this many seeds each seed's epochs are shown; from there on their median."""


@dataclass(frozen=True)
class Words:
    """A speed-up: `text`, such as "3.9× [1.3, 12]", and a `note` on its pairs, such as "2 faster, 1 slower of 3"."""

    text: str
    note: str = ""

    def __str__(self) -> str:
        return f"{self.text} ({self.note})" if self.note else self.text


def speed_up_words(found: SpeedUp | SpeedUpEntry) -> Words:
    """All pairs of a mask against the baseline: "3.9× [1.3, 12]", "2.2× (1 pair)", "median > 1.3× (2 faster, 1 slower of 3)"."""
    ratios = found.ratios if isinstance(found, SpeedUp) else tuple(_ratio(pair) for pair in found.pairs)
    count = len(ratios)
    if not ratios:
        return Words("no pairs")
    if found.estimate_kind == "geometric_mean":
        estimate = f"{format_ratio(found.estimate or 0.0)}×"
        if found.low is None or found.high is None:
            return Words(estimate, "1 pair" if count == 1 else f"{count} pairs, no interval")
        return Words(f"{estimate} [{format_ratio(found.low)}, {format_ratio(found.high)}]")
    lower, upper = median_ratio(ratios)
    text = bounds_text(lower, upper)
    if count == 1:
        return Words(text)
    if all(ratio.direction == "undetermined" for ratio in ratios) and (lower[0], upper[0]) == (0, math.inf):
        return Words(text, f"{count} pairs")
    known = (lower[0], upper[0]) != (0, math.inf)
    return Words(f"median {text}" if known else text, f"{direction_counts(ratios)} of {count}")


def direction_counts(ratios: Sequence[Ratio | PairEntry]) -> str:
    """2 faster, 1 slower."""
    directions = [ratio.direction for ratio in ratios]
    counts = {name: directions.count(name) for name in ("faster", "slower", "equal", "undetermined")}
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def pair_text(pair: PairEntry) -> str:
    """A pair's speed-up: `3.9×`, `> 2.3×`, `< 0.5×` or `undetermined`."""
    ratio = _ratio(pair)
    return bounds_text((ratio.lower, not ratio.exact), (ratio.upper, not ratio.exact))


def no_pair_text(entry: NoPair) -> str:
    """Why a seed has no pair: "baseline failed, mask not run"."""
    sides = (("baseline", entry.baseline), ("mask", entry.mask))
    return ", ".join(f"{side} {what.replace('_', ' ')}" for side, what in sides if what)


def epochs_of(runs: Sequence[RunEntry], quantity: Quantity, seeds_shown: int = SEEDS_SHOWN) -> str:
    """Epochs to the threshold of all seeds of a mask: "8, >40, failed"; of many "median 14"."""
    if len(runs) > seeds_shown:
        return f"median {median_epochs_text([run.convergence(quantity) for run in runs if run.counts])}"
    return ", ".join(epochs_text(run.convergence(quantity)) if run.counts else run.status for run in runs)


def median_epochs_text(runs: Sequence[Convergence]) -> str:
    """`14`, `>27`, `≥14`, `>14, ≤20` or `–` (no runs)."""
    bounds = median_epochs(runs)
    if bounds is None:
        return NONE
    (lower, is_open), (upper, _) = bounds
    if lower == upper:
        return f"{lower:g}"
    return f"{'>' if is_open else '≥'}{lower:g}{'' if upper == math.inf else f', ≤{upper:g}'}"


def median_seconds_text(runs: Sequence[RunEntry], quantity: Quantity) -> str:
    """Median seconds of training to the threshold, as far as censoring leaves it known: `33.8`, `>50` or `–` (no runs)."""
    bounds = median_seconds(runs, quantity)
    if bounds is None:
        return NONE
    (low, is_open), (high, _) = bounds
    return f"{low:.3g}" if low == high else f"{'>' if is_open else '≥'}{_rounded_down(low)}"


def paired_seconds(summary: Summary, entry: SpeedUpEntry) -> tuple[str, str]:
    """`median_seconds_text` of the baseline and of the mask, over the runs that have a pair."""
    seeds = {pair.seed for pair in entry.pairs}
    sides = (summary.runs_of(entry.task, mask) for mask in (summary.baseline, entry.mask))
    baseline, mask = (
        median_seconds_text([run for run in runs if run.seed in seeds], entry.quantity) for runs in sides
    )
    return baseline, mask


def _rounded_down(value: float) -> str:
    """Three significant digits at most and whole numbers from 100 on, never above `value`, so that a bound stays true."""
    unit = 10.0 ** min(0, math.floor(math.log10(value)) - 2) if value > 0 else 1.0
    return f"{math.floor(value / unit) * unit:.10g}"


def _ratio(pair: PairEntry) -> Ratio:
    return Ratio(pair.lower, math.inf if pair.upper is None else pair.upper)
