"""The picture of `semfocus bench attention`: time and memory against length."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from .axes import legend_style, mask_key, plain_log_ticks, prepare, title_style
from .palette import LIGHT, Theme, mask_styles

# Other implementations are no masks: neutral, told apart by their dashes.
_DASHES: dict[str, Any] = {"dense": "-", "mask-then-softmax": (0, (5, 2)), "x-transformers": (0, (1, 1.5))}


def attention_cost(rows: Sequence[Mapping[str, Any]], theme: Theme = LIGHT) -> Figure | None:
    """Time (left) and peak extra memory (right) a token against length, both axes logarithmic.

    Coloured: ours, a line for a mask measured at several lengths, a mark alone for one measured at a single length. Neutral:
    the other implementations, with the mask that was measured at most lengths. Divided by the tokens of the call (batch ×
    length), cases of any batch share the axes: a cost linear in length is a level line, one quadratic in length rises.

    Args:
        rows: those of `attention.json`.

    Returns:
        The figure; None if nothing was measured.
    """
    rows = [row for row in rows if row["median_ms"] is not None]
    if not rows:
        return None
    masks = list(dict.fromkeys(row["mask"] for row in rows))
    lengths = {mask: {row["length"] for row in rows if row["mask"] == mask} for mask in masks}
    compared = max(masks, key=lambda mask: len(lengths[mask]))
    styles = mask_styles(["", *masks], "", theme)
    figure = Figure(figsize=(9.6, 4.6), layout="constrained", facecolor=theme.paper)
    left, right = figure.subplots(1, 2, sharex=True)
    panels = (
        (left, "time: forward + backward", "µs a token", lambda row: 1000 * row["median_ms"]),
        (right, "peak extra memory", "KiB a token", lambda row: row["peak_extra_bytes"] / 1024),
    )
    for axes, name, unit, cost in panels:
        prepare(axes, theme)
        axes.set_xscale("log")
        axes.set_yscale("log")
        for implementation, dashes in _DASHES.items():
            x, y = _points(rows, compared, implementation, cost)
            axes.plot(x, y, color=theme.baseline, linestyle=dashes, linewidth=1.5, marker=".", markersize=5)
        for mask in masks:
            x, y = _points(rows, mask, "ours", cost)
            line = "-" if len(lengths[mask]) > 1 else ""
            axes.plot(x, y, color=styles[mask].colour, marker=styles[mask].marker, linestyle=line,
                      linewidth=1.8, markersize=6, markeredgecolor=theme.paper)  # fmt: skip
        axes.set_title(name, **title_style(theme))
        axes.set_xlabel("length (log scale)", color=theme.ink)
        axes.set_ylabel(f"{unit} (log scale)", color=theme.ink)
        plain_log_ticks(axes.yaxis)
        _length_ticks(axes, sorted({row["length"] for row in rows}))
    handles = [mask_key(styles[mask], f"ours, {mask}") for mask in masks]
    present = {row["implementation"] for row in rows if row["mask"] == compared}
    for implementation, dashes in _DASHES.items():
        if implementation in present:
            label = implementation if implementation == "dense" else f"{implementation}, {compared}"
            handles.append(Line2D([], [], color=theme.baseline, linestyle=dashes, linewidth=1.5, label=label))
    figure.legend(handles=handles, loc="outside upper center", ncols=4, **legend_style(theme))
    return figure


def _points(
    rows: Sequence[Mapping[str, Any]], mask: str, implementation: str, cost: Any
) -> tuple[list[int], list[float]]:
    """Lengths, ascending, and the cost a token at each."""
    points = [row for row in rows if (row["mask"], row["implementation"]) == (mask, implementation)]
    points.sort(key=lambda row: row["length"])
    return [row["length"] for row in points], [cost(row) / (row["batch"] * row["length"]) for row in points]


def _length_ticks(axes: Axes, lengths: Sequence[int]) -> None:
    """The measured lengths, without those that would stand on their neighbour."""
    shown: list[int] = []
    for length in lengths:
        if not shown or length >= 1.5 * shown[-1]:
            shown.append(length)
    axes.set_xticks(shown, [f"{length:,}" for length in shown])
    axes.xaxis.set_minor_locator(NullLocator())
