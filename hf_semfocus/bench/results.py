"""A run of the benchmark as data: a row for each case and implementation, and what became of the goals."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from .cases import GOALS, GOALS_HOLD_FOR, Goal, Setting
from .measure import Cost, memory_ratio, quartiles, time_ratio

COLUMNS = (
    "mask", "batch", "length", "heads", "dim", "dtype", "device", "threads", "implementation", "note", "path", "rounds",
    "median_ms", "first_quartile_ms", "third_quartile_ms",
    "ours_over_this_time", "ours_over_this_time_first_quartile", "ours_over_this_time_third_quartile",
    "peak_extra_bytes", "ours_over_this_memory", "others_cores",
)  # fmt: skip


def rows(measured: Sequence[dict[str, Cost]], setting: Setting) -> list[dict[str, Any]]:
    """A row for each case and implementation.

    Returns:
        Dicts with the keys `COLUMNS`, and ``seconds``, the list of all rounds. What was not measured is None, with the reason
        in ``note``.
    """
    found = []
    for costs in measured:
        for cost in costs.values():
            low, middle, high = (None,) * 3
            if cost.seconds:
                low, middle, high = (1000 * value for value in quartiles(cost.seconds))
            ratio = time_ratio(costs["ours"], cost) or (None,) * 3
            found.append(
                {
                    "mask": cost.case.mask,
                    "batch": cost.case.batch,
                    "length": cost.case.length,
                    **asdict(setting),
                    "implementation": cost.implementation,
                    "note": cost.note,
                    "path": cost.path,
                    "rounds": len(cost.seconds),
                    "median_ms": middle,
                    "first_quartile_ms": low,
                    "third_quartile_ms": high,
                    "ours_over_this_time": ratio[1],
                    "ours_over_this_time_first_quartile": ratio[0],
                    "ours_over_this_time_third_quartile": ratio[2],
                    "peak_extra_bytes": cost.peak_bytes,
                    "ours_over_this_memory": memory_ratio(costs["ours"], cost),
                    "others_cores": cost.others_cores,
                    "seconds": list(cost.seconds),
                }
            )
    return found


def table_of(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as CSV with the columns `COLUMNS`."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def verdicts(measured: Sequence[dict[str, Cost]], setting: Setting) -> list[dict[str, Any]]:
    """What became of each goal whose case was measured; none under another setting than the goals'.

    Returns:
        Dicts with ``mask``, ``shape``, ``quantity``, ``against``, ``goal``, ``measured`` (None if it was not, then ``verdict``
        says why), ``low`` and ``high`` (paired quartiles; None for memory), and ``verdict``.
    """
    if setting != GOALS_HOLD_FOR:
        return []
    by_case = {costs["ours"].case: costs for costs in measured}
    return [_verdict(goal, by_case[goal.case]) for goal in GOALS if goal.case in by_case]


def _verdict(goal: Goal, costs: dict[str, Cost]) -> dict[str, Any]:
    low, ratio, high = None, None, None
    if goal.quantity == "memory":
        ratio = memory_ratio(costs["ours"], costs[goal.against])
    else:
        low, ratio, high = time_ratio(costs["ours"], costs[goal.against]) or (None,) * 3
    if ratio is None:
        verdict = f"not judged: {goal.against} {costs[goal.against].note}"
    elif ratio <= goal.most:
        verdict = "met"
    else:
        verdict = f"missed by {ratio - goal.most:.3f}"
    return {
        "mask": goal.case.mask,
        "shape": goal.case.shape,
        "quantity": goal.quantity,
        "against": goal.against,
        "goal": goal.most,
        "measured": ratio,
        "low": low,
        "high": high,
        "verdict": verdict,
    }
