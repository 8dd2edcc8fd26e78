"""A run of the benchmark as data: a row for each case and implementation, and what became of the goals."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from .cases import GOALS, GOALS_HOLD_FOR, Goal, Setting
from .measure import Cost, memory_ratio, quartiles, time_ratio


def rows(measured: Sequence[dict[str, Cost]], setting: Setting) -> list[dict[str, Any]]:
    """A row for each case and implementation.

    Returns:
        Dicts, with ``seconds``, the list of all rounds, last. What was not measured is None, with the reason in ``note``.
    """
    lines = []
    for costs in measured:
        for cost in costs.values():
            low, middle, high = (None,) * 3
            if cost.seconds:
                low, middle, high = (1000 * value for value in quartiles(cost.seconds))
            ratio = time_ratio(costs["ours"], cost) or (None,) * 3
            lines.append(
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
    return lines


def table_of(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as CSV, without the single rounds."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0])[:-1], extrasaction="ignore", lineterminator="\n")
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
    ours, other = costs["ours"], costs[goal.against]
    low, ratio, high = (None, memory_ratio(ours, other), None)
    if goal.quantity == "time":
        low, ratio, high = time_ratio(ours, other) or (None,) * 3
    if ratio is None:
        verdict = f"not judged: {goal.against} {other.note}"
    else:
        verdict = "met" if ratio <= goal.most else f"missed by {ratio - goal.most:.3f}"
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
