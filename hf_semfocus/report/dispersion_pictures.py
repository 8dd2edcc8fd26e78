"""Speed-up against the dispersion of the scores that a mask keeps, as a picture."""

import textwrap
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ..summary_schema import Summary
from .axes import legend_style, plain_log_ticks, prepare, title_style
from .palette import LIGHT, Theme, mask_styles
from .pictures import LINE

SHAPES = ("o", "s", "^", "D", "v", "P", "X", "p")


def dispersion(summary: Summary, theme: Theme = LIGHT) -> Figure | None:
    """Dispersion under the mask over that of full attention on the same scores, against the speed-up to τ.

    Both dispersions are those of the trained model of the mask, mean over queries, heads, layers and seeds. None
    where no run has a dispersion, or no speed-up is known.
    """
    points = dispersion_points(summary)
    if not points:
        return None
    styles = mask_styles(summary.masks, summary.baseline, theme)
    figure = Figure(figsize=(9.6, 4.4), layout="constrained", facecolor=theme.paper)
    axes = figure.subplots()
    prepare(axes, theme)
    axes.axhline(1, color=theme.faint, linewidth=1)
    axes.set_yscale("log")
    tasks = list(dict.fromkeys(point["task"] for point in points))
    shapes = {task: SHAPES[index % len(SHAPES)] for index, task in enumerate(tasks)}
    for point in points:
        place = point["ratio"], point["speedup"]
        colour = styles[point["mask"]].colour
        axes.plot(
            *place,
            shapes[point["task"]],
            color=colour,
            markersize=8,
            alpha=0.85,
            markeredgecolor=theme.paper,
            clip_on=False,
        )
        if point["kind"] != "exact":
            axes.annotate("", place, xytext=(0, 18 if point["kind"] == "more" else -18), textcoords="offset points",
                          arrowprops={"arrowstyle": "<-", "color": colour, "linewidth": 1.4})  # fmt: skip
    axes.margins(0.12, 0.18)
    plain_log_ticks(axes.yaxis)
    axes.set_xlabel(
        "dispersion of kept scores / dispersion of all scores   (δ under the mask / δ of full)", color=theme.ink
    )
    bounds = "; arrow: a bound" if any(point["kind"] != "exact" for point in points) else ""
    axes.set_ylabel(f"speed-up to τ (log scale{bounds})", color=theme.ink)
    shown = [mask for mask in summary.masks if any(point["mask"] == mask for point in points)]
    handles = [Line2D([], [], color=styles[m].colour, marker="s", linestyle="", label=m) for m in shown]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(6, len(handles)), **legend_style(theme))
    keys = [Line2D([], [], color=theme.ink, marker=shapes[task], linestyle="", label=task) for task in tasks]
    if undecided := [task.name for task in summary.tasks if task.name not in tasks]:
        note = f"not there, as no speed-up or no dispersion is known: {', '.join(undecided)}"
        axes.set_title(textwrap.fill(note, LINE), **title_style(theme))
    figure.legend(handles=keys, loc="outside lower center", ncols=min(4, len(keys)), **legend_style(theme))
    return figure


def dispersion_points(summary: Summary) -> list[dict[str, Any]]:
    """The points of `dispersion`: task, mask, ratio δ/δ_s, speedup, and kind "exact", "more" or "less" (a bound)."""
    points = []
    for entry in summary.speedups:
        if entry.quantity != "train":
            continue
        known: list[float] = []
        for run in summary.runs:
            spread = run.dispersion
            if (run.task, run.mask) == (entry.task, entry.mask) and spread and spread.full.mean:
                known += [spread.mask.mean / spread.full.mean] if spread.mask.mean is not None else []
        kind = "exact" if entry.estimate is not None else "more" if entry.low else "less"
        speedup = entry.estimate if entry.estimate is not None else entry.low or entry.high
        if known and speedup:
            points.append({"task": entry.task, "mask": entry.mask, "ratio": float(np.mean(known)),
                           "speedup": speedup, "kind": kind})  # fmt: skip
    return points
