"""The theory's quantities beside the speed-up, and gradients at the same training loss: pictures, and panels of them for the page."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..summary_schema import Matched, Summary, Unit
from .axes import legend_style, mask_key, plain_log_ticks, prepare, title_style
from .palette import LIGHT, Theme, mask_styles
from .theory import LABELS

POINTS = 24  # training losses at which a median is taken


def prediction_picture(summary: Summary, theme: Theme = LIGHT) -> Figure | None:
    """Speed-up against each quantity, a point a task and mask. None where nothing was recorded, or only the baseline."""
    units = _units(summary)
    hollow = "; hollow: with censored runs" if any(unit.censored for unit in units) else ""
    label = f"speed-up (restricted means{hollow}), a point a task"
    return _picture(summary, predicted(summary), predicted_panel, {unit.mask for unit in units}, label, theme)


def predicted(summary: Summary) -> list[str]:
    """The quantities that `predicted_panel` can draw."""
    return [name for name in LABELS if any(unit.get(name) is not None for unit in _units(summary))]


def predicted_panel(axes: Axes, summary: Summary, name: str, theme: Theme = LIGHT) -> None:
    """Speed-up against one quantity."""
    styles = mask_styles(summary.masks, summary.baseline, theme)
    prepare(axes, theme)
    axes.set_yscale("log")
    axes.axhline(1, color=theme.faint, linewidth=1)
    for unit in _units(summary):
        if unit.get(name) is None or unit.speedup is None:
            continue
        style = styles[unit.mask]
        axes.plot(unit[name], unit.speedup, style.marker, color=style.colour, markersize=6, gid=f"mask:{unit.mask}",
                  markerfacecolor=theme.paper if unit.censored else style.colour)  # fmt: skip
    plain_log_ticks(axes.yaxis)
    axes.margins(0.12, 0.18)
    axes.set_title(LABELS[name], **title_style(theme))


def matched_picture(summary: Summary, theme: Theme = LIGHT) -> Figure | None:
    """Gradient norms against the training loss, which falls to the right: median and range of the pairs, a panel a task.

    None where no pair of runs could be compared.
    """
    masks = {entry.mask for entry in _matched(summary)} | {summary.baseline}
    return _picture(summary, matched(summary), matched_panel, masks, "‖∇loss‖", theme)


def matched(summary: Summary) -> list[str]:
    """The tasks that `matched_panel` can draw."""
    return list(dict.fromkeys(entry.task for entry in _matched(summary)))


def matched_panel(axes: Axes, summary: Summary, task: str, theme: Theme = LIGHT) -> None:
    """Gradient norms of one task; a band runs from the lowest to the highest pair."""
    baseline = summary.baseline
    styles = mask_styles(summary.masks, baseline, theme)
    prepare(axes, theme)
    axes.set_xscale("log")
    axes.set_yscale("log")
    lines: dict[str, list[tuple[Sequence[float], Sequence[float]]]] = {}
    for entry in (entry for entry in _matched(summary) if entry.task == task):
        for pair in entry.pairs:
            lines.setdefault(baseline, []).append((pair.losses, pair.base))
            lines.setdefault(entry.mask, []).append((pair.losses, pair.own))
    for mask, pairs in lines.items():
        losses, values = _on_one_grid(pairs)
        looks: dict[str, Any] = {"color": styles[mask].colour, "gid": f"mask:{mask}"}
        axes.fill_between(losses, values.min(0), values.max(0), alpha=0.14, linewidth=0, **looks)
        axes.plot(losses, np.ma.median(values, axis=0), linewidth=1.7, marker=styles[mask].marker, markevery=6,
                  markersize=4, **looks)  # fmt: skip
    axes.invert_xaxis()
    for axis in (axes.xaxis, axes.yaxis):
        plain_log_ticks(axis)
    axes.set_xlabel("training loss, falling", color=theme.ink, fontsize=9)
    axes.set_title(task, **title_style(theme))


def _on_one_grid(lines: Sequence[tuple[Sequence[float], Sequence[float]]]) -> tuple[np.ndarray, np.ma.MaskedArray]:
    """Losses, and the value of each line there on the straight line in logs; masked where a line has no loss so large or so small."""
    ends = [loss for losses, _ in lines for loss in (min(losses), max(losses))]
    grid = np.geomspace(min(ends), max(ends), POINTS)
    rows = []
    for losses, values in lines:
        order = np.argsort(losses)
        at = np.interp(np.log(grid), np.log(np.take(losses, order)), np.log(np.take(values, order)), np.nan, np.nan)
        rows.append(np.exp(at))
    return grid, np.ma.masked_invalid(rows)


def _units(summary: Summary) -> list[Unit]:
    units = summary.analysis.units if summary.analysis else []
    return [unit for unit in units if unit.mask != summary.baseline and unit.speedup is not None]


def _matched(summary: Summary) -> list[Matched]:
    entries = summary.analysis.matched if summary.analysis else []
    return [entry for entry in entries if entry.quantity == "gradient" and entry.pairs]


def _picture(
    summary: Summary,
    names: Sequence[str],
    panel: Callable[[Axes, Summary, str, Theme], None],
    masks: set[str],
    label: str,
    theme: Theme,
) -> Figure | None:
    """The panels side by side, with one key."""
    if not names:
        return None
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    figure = Figure(figsize=(9.6, 3 * rows + 0.6), layout="constrained", facecolor=theme.paper)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, name in zip(panels, names, strict=False):
        panel(axes, summary, name, theme)
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    figure.supylabel(label, color=theme.ink, fontsize=9)
    styles = mask_styles(summary.masks, summary.baseline, theme)
    keys = [mask_key(styles[mask], mask) for mask in summary.masks if mask in masks]
    figure.legend(handles=keys, loc="outside lower center", ncols=min(6, len(keys)), **legend_style(theme))
    return figure
