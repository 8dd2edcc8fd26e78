"""The report's pictures, drawn with matplotlib objects only: no pyplot, so no global state and no display.

Each function takes a summary (`summary.json`) and gives a `Figure`, or None where there is nothing to draw.
"""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from ..schema import Quantity
from ..summary_schema import PairEntry, RunEntry, SpeedUpEntry, Summary, TaskEntry
from ..text import length_text, percent
from .axes import legend_style, mask_key, plain_log_ticks, prepare, title_style
from .palette import LIGHT, Style, Theme, mask_styles
from .words import INTERVALS

QUANTILES_FROM = 10
"""Seeds from which the band is the 10–90 % range; with fewer it is lowest to highest."""
MEDIANS_FROM = 5
"""Masks from which a panel has medians alone: bands and single seeds of more would hide each other."""
LINE = 110  # characters of a title that fit into a picture's width
LOG_FROM = 12
"""The epoch axis is logarithmic where the longest run of a task has this many times the epochs of the shortest."""


def curves(summary: Summary, theme: Theme = LIGHT) -> Figure | None:
    """Training and held-out accuracy against epochs: a row of two panels a task.

    A thick line is the median over the seeds, the band lowest to highest (10–90 % from ten seeds on), thin lines are
    the seeds. Where some seeds have stopped, they count with their last value and the line is dashed; it ends with
    the last of them. Dots mark where runs stopped, crosses where they diverged, open dots where they are unfinished.
    With `MEDIANS_FROM` masks or more there are medians alone.
    """
    tasks = [task for task in summary.tasks if any(_drawn(summary, task.name))]
    if not tasks:
        return None
    styles = mask_styles(summary.masks, summary.baseline, theme)
    figure = Figure(figsize=(9.6, 2.9 * len(tasks) + 0.5), layout="constrained", facecolor=theme.paper)
    grid = figure.subplots(len(tasks), 2, squeeze=False, sharex="row", sharey="row")
    for row, task in zip(grid, tasks, strict=True):
        for axes, quantity in zip(row, ("train", "heldout"), strict=True):
            _curve_panel(axes, summary, task, quantity, styles, theme)
    present = [mask for mask in summary.masks if any(run.mask == mask for run in _drawn(summary))]
    handles = [mask_key(styles[mask], mask) for mask in present]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(7, len(handles)), **legend_style(theme))
    return figure


def curve_panel(summary: Summary, task: TaskEntry, quantity: Quantity, theme: Theme = LIGHT) -> Figure | None:
    """One panel of `curves` as a picture of its own."""
    if not _drawn(summary, task.name):
        return None
    figure = Figure(figsize=(4.9, 2.9), layout="constrained", facecolor=theme.paper)
    styles = mask_styles(summary.masks, summary.baseline, theme)
    _curve_panel(figure.subplots(), summary, task, quantity, styles, theme)
    return figure


def speedups(summary: Summary, theme: Theme = LIGHT) -> Figure | None:
    """Speed-ups as bars from 1 on a logarithmic axis, training on the left, held-out on the right.

    Full bars with a line: geometric mean and 95 % interval. Pale bars that end in an arrow: only a bound of the median is known (some
    runs were censored). Small marks below: the single pairs, triangles pointing to where a bound leaves room. Masks of which no pair
    tells anything share one line a task.
    """
    entries = [entry for entry in summary.speedups if entry.n_pairs]
    if not entries:
        return None
    styles = mask_styles(summary.masks, summary.baseline, theme)
    tasks = list(dict.fromkeys(entry.task for entry in entries))
    telling = {(entry.task, entry.mask) for entry in entries if _pair_ends(entry)}
    all_pairs = {(entry.task, entry.mask) for entry in entries}
    places: dict[tuple[str, str], int] = {}
    heads: dict[str, int] = {}
    height = 0
    for task in tasks:
        heads[task] = height
        height += 1
        for mask in (mask for mask in summary.masks if (task, mask) in telling):
            places[task, mask] = height
            height += 1
    figure = Figure(figsize=(9.6, 0.36 * height + 1.1), layout="constrained", facecolor=theme.paper)
    left, right = figure.subplots(1, 2, sharey=True, sharex=True)
    for axes, quantity in ((left, "train"), (right, "heldout")):
        shown = [e for e in entries if e.quantity == quantity and (e.task, e.mask) in telling]
        _speedup_panel(axes, shown, places, styles, theme)
        taus = {task.tau if quantity == "train" else task.heldout_tau for task in summary.tasks}
        tau = percent(taus.pop() if len(taus) == 1 else None)
        axes.set_title(f"to {tau} {'training' if quantity == 'train' else 'held-out'} accuracy", **title_style(theme))
        axes.set_xlabel(f"slower than {summary.baseline}  ←  speed-up (epochs)  →  faster", color=theme.ink)
    left.set_yticks(list(places.values()), [mask for _, mask in places])
    for task, place in heads.items():
        silent = [mask for mask in summary.masks if (task, mask) in all_pairs - telling]
        words = f"{task}; undetermined: {', '.join(silent)}" if silent else task
        left.annotate(textwrap.shorten(words, LINE, placeholder=" …"), (0, place), xycoords=("axes fraction", "data"),
                      xytext=(4, 0), textcoords="offset points", va="center", color=theme.ink, weight="bold",
                      fontsize=9)  # fmt: skip
    left.set_ylim(height - 0.3, -0.7)
    figure.legend(handles=_speedup_key(entries, theme), loc="outside lower center", ncols=3, **legend_style(theme))
    return figure


def _speedup_key(entries: Sequence[SpeedUpEntry], theme: Theme) -> list[Line2D | Patch]:
    """What stands for what in `speedups`, as far as it is there."""
    mark: dict[str, Any] = {"color": theme.ink, "linestyle": "", "markersize": 4}
    handles: list[Line2D | Patch] = []
    if any(entry.interval_kind in INTERVALS for entry in entries):
        handles.append(Line2D([], [], color=theme.ink, marker="|", label="95 % interval of the mean"))
    if any(entry.estimate is None and (entry.low or entry.high) for entry in entries):
        handles.append(Patch(color=theme.faint, alpha=0.4, label="pale, arrow: a bound of the median"))
    if any(pair.lower and pair.lower == pair.upper for entry in entries for pair in entry.pairs):
        handles.append(Line2D([], [], marker="o", label="a pair of runs", **mark))
    bounds = [pair for entry in entries for pair in entry.pairs if pair.lower != pair.upper]
    if any(pair.lower for pair in bounds):
        handles.append(Line2D([], [], marker=">", label="a pair, at least (censored)", **mark))
    if any(not pair.lower and pair.upper for pair in bounds):
        handles.append(Line2D([], [], marker="<", label="a pair, at most (censored)", **mark))
    return handles


def band(runs: Sequence[Sequence[float]], tail: float | None = None) -> dict[str, np.ndarray]:
    """Median and band over the seeds at each epoch, and how many seeds were still training.

    Args:
        runs: one sequence of values an epoch for each seed, of any lengths ≥ 1; a stopped run counts with its last
            value.
        tail: share of the seeds below the band and above it; None: 0.1 from ten seeds on, and none with fewer.

    Returns:
        "middle", "low", "high" float and "training" int arrays, each as long as the longest run.
    """
    longest = max(len(values) for values in runs)
    carried = np.array([[*values, *[values[-1]] * (longest - len(values))] for values in runs], dtype=float)
    if tail is None:
        tail = 0.1 if len(runs) >= QUANTILES_FROM else 0.0
    low, middle, high = np.quantile(carried, [tail, 0.5, 1 - tail], axis=0)
    training = np.array([sum(len(values) > epoch for values in runs) for epoch in range(longest)])
    return {"middle": middle, "low": low, "high": high, "training": training}


def _drawn(summary: Summary, task: str | None = None) -> list[RunEntry]:
    """Runs that have a curve. A failed run has none: what it did before it failed says nothing about its mask."""
    return [run for run in summary.runs if run.history and run.status != "failed" and task in (None, run.task)]


def _curve_panel(
    axes: Axes,
    summary: Summary,
    task: TaskEntry,
    quantity: str,
    styles: Mapping[str, Style],
    theme: Theme,
) -> None:
    prepare(axes, theme)
    runs = _drawn(summary, task.name)
    lengths = [len(run.history) for run in runs if run.status in ("reached", "censored")] or [1]
    is_log = max(lengths) >= LOG_FROM * min(lengths)
    if is_log:
        axes.set_xscale("log")
        plain_log_ticks(axes.xaxis)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    tau = task.tau if quantity == "train" else task.heldout_tau
    for value, label in ((task.chance, "chance"), (tau, "τ")):
        if value is not None:
            axes.axhline(value, color=theme.faint, linewidth=0.9, linestyle=(0, (1, 2)))
            axes.annotate(label, (1, value), xycoords=("axes fraction", "data"), xytext=(4, 0),
                          textcoords="offset points", va="center", annotation_clip=False, fontsize=7.5, color=theme.faint)  # fmt: skip
    alone = len({run.mask for run in runs}) >= MEDIANS_FROM
    # The baseline last, so that it lies above the others.
    for mask in sorted(summary.masks, key=lambda mask: mask == summary.baseline):
        before = set(axes.get_children())
        _mask_curve(axes, [run for run in runs if run.mask == mask], quantity, styles.get(mask), theme, alone)
        for artist in set(axes.get_children()) - before:
            artist.set_gid(f"mask:{mask}")  # the page hides masks by it
    name = "training" if quantity == "train" else "held-out"
    axes.set_title(f"{task.name} (length {length_text(task.length)}) · {name}", **title_style(theme))
    seen = [row[f"{part}_accuracy"] for run in runs for row in run.history for part in ("train", "heldout")]
    lowest = min([task.chance, *(value for value in seen if value is not None)])
    axes.set_ylim(lowest - 0.04, 1.03)
    axes.set_xlabel("epoch (log scale)" if is_log else "epoch", color=theme.ink)
    if quantity == "train":
        axes.set_ylabel("accuracy", color=theme.ink)


def _accuracies(run: RunEntry, quantity: str) -> list[float]:
    """A value an epoch; where training accuracy was not measured at each, that over the epoch's steps; none where there is neither."""
    name = f"{quantity}_accuracy"
    if quantity == "train" and any(row[name] is None for row in run.history):
        name = "running_accuracy"
    return [row[name] for row in run.history if row.get(name) is not None]


def _mask_curve(
    axes: Axes, runs: Sequence[RunEntry], quantity: str, style: Style | None, theme: Theme, alone: bool
) -> None:
    known = [(run, _accuracies(run, quantity)) for run in runs]
    known = [(run, values) for run, values in known if values]
    if not known or style is None:
        return
    found = band([values for _, values in known])
    epochs = np.arange(1, len(found["middle"]) + 1)
    whole = int((found["training"] == len(known)).sum())  # epochs at which every seed was still training
    if not alone:
        axes.fill_between(epochs, found["low"], found["high"], color=style.colour, alpha=0.16, linewidth=0)
    marks: dict[str, Any] = {}
    if alone:  # without bands and seeds there are marks on the line, so that colour is not all that tells masks apart
        marks = {"marker": style.marker, "markersize": 3.5, "markevery": max(1, len(epochs) // 6)}
    axes.plot(epochs[:whole], found["middle"][:whole], color=style.colour, linewidth=1.7, **marks)
    axes.plot(epochs[whole - 1 :], found["middle"][whole - 1 :], color=style.colour, linewidth=1.4,
              linestyle=(0, (3, 1.5)), **marks)  # fmt: skip
    for run, values in [] if alone else known:
        if len(known) < QUANTILES_FROM:
            axes.plot(epochs[: len(values)], values, color=style.colour, linewidth=0.6, alpha=0.55)
        unfinished = run.status == "unfinished"
        axes.plot(len(values), values[-1], "x" if run.diverged else style.marker, color=style.colour,
        markersize=5.5,
                  markeredgewidth=1.6 if run.diverged or unfinished else 0.6, clip_on=False, zorder=3,
                  markerfacecolor=theme.paper if unfinished else style.colour,
                  markeredgecolor=style.colour if run.diverged or unfinished else theme.paper)  # fmt: skip


def _speedup_panel(
    axes: Axes,
    entries: Sequence[SpeedUpEntry],
    places: Mapping[tuple[str, str], int],
    styles: Mapping[str, Style],
    theme: Theme,
) -> None:
    prepare(axes, theme)
    axes.grid(visible=False, axis="y")
    axes.set_xscale("log")
    axes.axvline(1, color=theme.faint, linewidth=1)
    ends = [end for e in entries for end in (e.estimate, e.low, e.high, *_pair_ends(e)) if end]
    reach = max([2.0, *(max(end, 1 / end) for end in ends)]) ** 1.25
    axes.set_xlim(1 / reach, reach)
    for entry in entries:
        place, style = places[entry.task, entry.mask], styles[entry.mask]
        if entry.estimate is not None:
            axes.barh(place, entry.estimate - 1, left=1, height=0.5, color=style.colour, alpha=0.85)
            if entry.interval_kind in INTERVALS and entry.low is not None and entry.high is not None:
                axes.plot([entry.low, entry.high], [place] * 2, color=theme.ink, linewidth=1.4, marker="|")
        elif entry.low or entry.high:
            _bounded_bar(axes, entry, place, style)
        else:
            _undetermined(axes, "undetermined", place, theme)
        for pair in entry.pairs:
            _pair_mark(axes, pair, place + 0.36, theme)
    plain_log_ticks(axes.xaxis)


def _undetermined(axes: Axes, text: str, place: int, theme: Theme) -> None:
    axes.annotate(
        text, (1, place), xytext=(6, 0), textcoords="offset points", va="center", fontsize=8, color=theme.faint
    )


def _bounded_bar(axes: Axes, entry: SpeedUpEntry, place: int, style: Style) -> None:
    """A pale bar from 1 to the bound, and an arrow for the side on which nothing is known."""
    low, high = entry.low or None, entry.high
    looks: dict[str, Any] = {"height": 0.5, "color": style.colour, "alpha": 0.32, "linewidth": 0}
    if low and high:
        axes.barh(place, high - low, left=low, **looks)
        return
    bound = low or high
    assert bound
    axes.barh(place, bound - 1, left=1, **looks)
    direction = 1 if low else -1
    axes.annotate("", (bound, place), xytext=(22 * direction, 0), textcoords="offset points",
                  arrowprops={"arrowstyle": "<-", "color": style.colour, "linewidth": 2})  # fmt: skip


def _pair_ends(entry: SpeedUpEntry) -> list[float]:
    return [end for pair in entry.pairs for end in (pair.lower, pair.upper) if end]


def _pair_mark(axes: Axes, pair: PairEntry, place: float, theme: Theme) -> None:
    lower, upper = pair.lower, pair.upper
    looks: dict[str, Any] = {"color": theme.ink, "markersize": 3.6, "alpha": 0.75, "linestyle": "", "zorder": 3}
    if lower and lower == upper:
        axes.plot(lower, place, marker="o", **looks)
    elif lower:
        axes.plot(lower, place, marker=">", **looks)
    elif upper:
        axes.plot(upper, place, marker="<", **looks)


__all__ = ["band", "curve_panel", "curves", "speedups"]
