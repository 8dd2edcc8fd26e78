"""How the axes, keys and titles of every picture look."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from .palette import Style, Theme


def prepare(axes: Axes, theme: Theme) -> None:
    """A grid behind the data, and a spine on the left and below only."""
    axes.set_facecolor(theme.paper)
    axes.grid(visible=True, color=theme.grid, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=theme.ink, labelsize=8.5, which="both", length=3)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(theme.faint)


def plain_log_ticks(axis: Any) -> None:
    """1, 2, 5, 10, 20 … instead of powers of ten."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def mask_key(style: Style, label: str) -> Line2D:
    """A mask's line in a legend."""
    return Line2D([], [], color=style.colour, marker=style.marker, markersize=5.5, linewidth=1.8, label=label)


def title_style(theme: Theme) -> dict[str, Any]:
    """Arguments of `Axes.set_title`."""
    return {"fontsize": 9.5, "color": theme.ink, "loc": "left", "pad": 6}


def legend_style(theme: Theme) -> dict[str, Any]:
    """Arguments of `Figure.legend`."""
    return {"frameon": False, "labelcolor": theme.ink, "fontsize": 9}
