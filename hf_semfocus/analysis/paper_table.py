"""δ, Δ and β as the paper's authors measured them, and ours beside them (arXiv 2506.14095; one seed each)."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from statistics import median
from typing import Any

from .conditions import LEVELS, conditions

#: By task: δ_s of a model trained with full attention; δ_h, Δ and β of one trained with topk:5. Percentiles 75, 90, 95 and
#: 100 of all queries (keys) and layers; of Δ 25, 10, 5 and 0, no smaller than 1e-9.
PAPER_TABLE: dict[str, dict[str, tuple[float, ...]]] = {
    "listops": {
        "dispersion_full": (8.61, 18.5, 29.4, 87.8),
        "dispersion_mask": (3.51, 6.74, 9.67, 28.2),
        "separation": (0.016, 0.005, 0.002, 1e-9),
        "queries_per_key": (1, 3, 15, 598),
    },
    "parity_check": {
        "dispersion_full": (8.30, 10.1, 11.2, 19.4),
        "dispersion_mask": (2.31, 3.13, 3.78, 9.16),
        "separation": (0.062, 0.022, 0.011, 1e-6),
        "queries_per_key": (8, 13, 16, 33),
    },
    "even_pairs": {
        "dispersion_full": (2.03, 4.73, 9.44, 14.6),
        "dispersion_mask": (1.03, 2.84, 5.50, 8.25),
        "separation": (0.009, 0.003, 0.002, 3e-8),
        "queries_per_key": (6, 17, 26, 40),
    },
    "missing_duplicate_string": {
        "dispersion_full": (4.63, 9.25, 17.1, 23.9),
        "dispersion_mask": (2.36, 4.25, 4.88, 10.5),
        "separation": (0.018, 0.006, 0.003, 1e-7),
        "queries_per_key": (7, 15, 21, 40),
    },
}
PAPER_KEPT = 5
PAPER_EXAMPLES, PAPER_BATCH = 1000, 100
"""Ten batches of 100 training rows."""
TOLERANCE = 0.2
"""Relative difference from which on ours is said to differ."""


def beside_paper(task: str | None, points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each number of the paper's table for a task beside ours, and both conditions made from either.

    Args:
        task: its name; none, or one that the table has not, gives no rows.
        points: measured models, each with ``own_mask`` and the ``percentiles`` of :func:`at_percentiles`; δ_s is taken from
            those whose mask is full, all else from those with topk:5.

    Returns:
        For each quantity and level ``quantity``, ``level`` (of Δ 100 minus that of δ), ``ours`` (a value a model),
        ``median`` (None without one), ``paper``, ``ratio`` (median/paper) and ``differs`` (by more than `TOLERANCE` from
        every number that the paper's may have been rounded from). The
        conditions, ``lambda_w`` and ``lambda_x``, are those of the medians, and of the paper's numbers.
    """
    if task not in PAPER_TABLE:
        return []
    theirs: dict[str, Any] = {**PAPER_TABLE[task], "kept_keys": PAPER_KEPT}
    measured = {name: _measured(name, points) for name in PAPER_TABLE[task]}
    ours: dict[str, Any] = {name: list(map(median, values)) for name, values in measured.items() if all(values)}
    theirs |= conditions(theirs["dispersion_full"], theirs)
    if len(ours) == len(measured):
        ours |= conditions(ours["dispersion_full"], {**ours, "kept_keys": PAPER_KEPT})
    rows = []
    for name in [*measured, "lambda_w", "lambda_x"]:
        for place, level in enumerate(LEVELS):
            middle, paper = ours[name][place] if name in ours else None, theirs[name][place]
            ratio = None if middle is None else middle / paper
            least, most = rounded_from(paper)
            rows.append(
                {
                    "quantity": name,
                    "level": 100 - level if name == "separation" else level,
                    "ours": measured[name][place] if name in measured else [],
                    "median": middle,
                    "paper": paper,
                    "ratio": ratio,
                    "differs": middle is not None and not (1 - TOLERANCE) * least <= middle <= (1 + TOLERANCE) * most,
                }
            )
    return rows


def rounded_from(value: float) -> tuple[float, float]:
    """The least and the largest number that a printed one may stand for; counts are exact.

    >>> rounded_from(0.25)
    (0.245, 0.255)
    """
    if isinstance(value, int):
        return value, value
    exact = Decimal(str(value))
    half = Decimal((0, (5,), int(exact.as_tuple().exponent) - 1))
    return float(exact - half), float(exact + half)


def _measured(name: str, points: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    """For each level the values of the models that the paper's number is of."""
    mask = "full" if name == "dispersion_full" else f"topk:{PAPER_KEPT}"
    of_mask = [point["percentiles"][name] for point in points if point["own_mask"] == mask]
    columns: list[list[float]] = [[] for _ in LEVELS]
    for values in of_mask:
        for column, value in zip(columns, values, strict=True):
            if value is not None:
                column.append(float(value))
    return columns
