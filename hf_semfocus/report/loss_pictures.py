"""The pictures of `semfocus analyze --slices`: the training loss around trained weights, and how steep it is."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from .analysis_tables import slopes_by_mask
from .axes import legend_style, mask_key, plain_log_ticks, prepare, title_style
from .palette import LIGHT, Theme, mask_styles


def slices(found: Mapping[str, Any], theme: Theme = LIGHT) -> Figure | None:
    """The training loss around each model in its first plane, on one scale of colours; a cross at the weights."""
    grids = [entry for entry in found.get("slices") or () if entry["direction"] == 0 and "losses" in entry]
    if not grids:
        return None
    columns = min(4, len(grids))
    rows = -(-len(grids) // columns)
    figure = Figure(figsize=(2.4 * columns + 1, 2.4 * rows + 0.4), layout="constrained", facecolor=theme.paper)
    panels = figure.subplots(rows, columns, squeeze=False)
    losses = [np.array([[np.nan if v is None else float(v) for v in row] for row in grid["losses"]]) for grid in grids]
    known = np.concatenate([values[np.isfinite(values) & (values > 0)] for values in losses])
    if not len(known):
        return None
    # A few losses far out would take all the colours.
    norm = LogNorm(max(known.min(), 1e-6), max(np.quantile(known, 0.98), 2e-6))
    for axes, grid, values in zip(panels.flat, grids, losses, strict=False):
        image = axes.pcolormesh(grid["offsets"], grid["offsets"], values.clip(1e-6), norm=norm, cmap="viridis")
        axes.plot(0, 0, "+", color="white", markersize=8)
        axes.set_aspect("equal")
        axes.tick_params(colors=theme.ink, labelsize=7)
        axes.set_title(grid["name"], **title_style(theme))
    for axes in panels.flat[len(grids) :]:
        axes.set_visible(False)
    bar = figure.colorbar(image, ax=panels, label="training loss, log scale", shrink=0.8)
    bar.ax.tick_params(labelsize=7)
    return figure


def slopes(found: Mapping[str, Any], theme: Theme = LIGHT) -> Figure | None:
    """|difference of neighbouring points| / step against the half-width, a panel a percentile, as the paper's figure 5.

    Thick: the median of a mask's models and directions; thin: each of them.
    """
    entries = [entry for entry in found.get("slices") or () if entry["half_widths"]]
    if not entries:
        return None
    by_mask, levels = slopes_by_mask(entries), entries[0]["levels"]
    styles = mask_styles(list(by_mask), "full", theme)
    figure = Figure(figsize=(9.6, 3.2), layout="constrained", facecolor=theme.paper)
    for place, axes in enumerate(figure.subplots(1, len(levels), sharey=True)):
        prepare(axes, theme)
        for entry in entries:
            values = [row[place] for row in entry["slopes"]]
            axes.plot(entry["half_widths"], values, color=styles[entry["mask"]].colour, linewidth=0.6, alpha=0.5)
        for mask, rows in by_mask.items():
            style = styles[mask]
            axes.plot(
                entries[0]["half_widths"], [row[place] for row in rows], color=style.colour, marker=style.marker,
                markersize=4, linewidth=2,
            )  # fmt: skip
        axes.set_yscale("log")
        plain_log_ticks(axes.yaxis)
        axes.set_xlabel("half-width", color=theme.ink)
        axes.set_title(f"{levels[place]} %", **title_style(theme))
    figure.axes[0].set_ylabel("|Δ loss| / step", color=theme.ink)
    handles = [mask_key(styles[mask], mask) for mask in by_mask]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(6, len(handles)), **legend_style(theme))
    return figure
