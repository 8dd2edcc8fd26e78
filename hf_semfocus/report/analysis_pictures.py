"""The pictures of `semfocus analyze`, from `analysis.json`: a `Figure` each, or None where there is nothing to draw."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator

from ..text import middle
from .analysis_tables import AT_PERCENTILES, point_name
from .axes import legend_style, plain_log_ticks, prepare, title_style
from .loss_pictures import slices, slopes
from .palette import LIGHT, Style, Theme, mask_styles

_DASHES: dict[str, Any] = {"initial": (0, (4, 2))}  # dashed; every later moment is a full line


def pictures(found: Mapping[str, Any], theme: Theme = LIGHT) -> dict[str, Figure]:
    """All pictures by the name of their file, without those that have nothing to show."""
    drawn = {
        "dispersion": dispersion(found, theme),
        "ratio": ratio(found, theme),
        "separation": separation(found, theme),
        "improvement": improvement(found, theme),
        "noise": noise(found, theme),
        "lipschitz": lipschitz(found, theme),
        "paper": paper(found, theme),
        "slices": slices(found, theme),
        "slopes": slopes(found, theme),
    }
    return {name: figure for name, figure in drawn.items() if figure is not None}


def dispersion(found: Mapping[str, Any], theme: Theme = LIGHT) -> Figure:
    """Dispersion by layer, a panel a model: of all keys (grey) and of those the mask keeps, on the same scores.

    Boxes hold the middle half of the queries with their median, lines 5 to 95 %, points the maximum.
    """
    points = found["points"]
    columns = min(2, len(points))
    rows = -(-len(points) // columns)
    figure = Figure(figsize=(9.6, 2.7 * rows + 0.6), layout="constrained", facecolor=theme.paper)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    colour = mask_styles(["", found["mask"]], "", theme)[found["mask"]].colour
    for axes, point in zip(grid.flat, points, strict=False):
        prepare(axes, theme)
        _boxes(axes, point, "dispersion_full", theme.baseline, -0.18, theme)
        _boxes(axes, point, "dispersion_mask", colour, 0.18, theme)
        axes.set_title(point_name(point), **title_style(theme))
        _layer_axis(axes, point["layers"], theme)
    for axes in grid.flat[len(points) :]:
        axes.set_visible(False)
    for row in grid:
        row[0].set_ylabel("dispersion δ of a query", color=theme.ink)
    handles = [
        Patch(facecolor=theme.baseline, alpha=0.75, label="all keys (δ_s)"),
        Patch(facecolor=colour, alpha=0.75, label=f"keys that {found['mask']} keeps (δ_h)"),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=2, **legend_style(theme))
    _note(figure, "boxes: middle half of the queries, with the median; lines: 5–95 %; dots: maximum", theme)
    return figure


def ratio(found: Mapping[str, Any], theme: Theme = LIGHT) -> Figure | None:
    """δ_h/δ_s by layer: the median of the queries, the band 5 to 95 %; dashed at initialisation."""
    return _by_layer(found, "dispersion_ratio", f"δ_h / δ_s on the same scores, {found['mask']}", 1.0, theme)


def separation(found: Mapping[str, Any], theme: Theme = LIGHT) -> Figure | None:
    """Δ by layer, as :func:`ratio`; None for a mask that keeps everything."""
    return _by_layer(found, "separation", f"separation Δ, {found['mask']}", 0.0, theme)


def improvement(found: Mapping[str, Any], theme: Theme = LIGHT) -> Figure | None:
    """The share of queries with ξ_h < ξ_s by layer, bars of each model side by side; pale at initialisation."""
    points = [point for point in found["points"] if point["conditions"][-1]["improvement_share"] is not None]
    if not points:
        return None
    figure = Figure(figsize=(9.6, 3.4), layout="constrained", facecolor=theme.paper)
    axes = figure.subplots()
    prepare(axes, theme)
    styles, width = _styles(found, theme), 0.8 / len(points)
    highest = 0.0
    for number, point in enumerate(points):
        layers = [entry for entry in point["conditions"] if entry["layer"] is not None and entry["head"] is None]
        colour, pale = styles[point["name"]].colour, point["moment"] == "initial"
        for entry in layers:
            place = entry["layer"] + (number - (len(points) - 1) / 2) * width
            share = entry["improvement_share"]
            height = 100 * (share or 0.0)
            highest = max(highest, height)
            if share is not None:
                axes.bar(place, height, width * 0.92, color=colour, alpha=0.4 if pale else 0.9, linewidth=0)
            words = "n/a" if share is None else f"{height:.1f}"
            axes.annotate(words, (place, height), xytext=(0, 2), textcoords="offset points", ha="center",
                          fontsize=7, color=theme.ink)  # fmt: skip
    axes.set_ylim(0, min(100.0, max(1.0, 1.2 * highest)))
    axes.set_ylabel("queries with ξ_h < ξ_s, %", color=theme.ink)
    axes.set_title(f"share of queries that meet the improvement condition, {found['mask']}", **title_style(theme))
    _layer_axis(axes, points[0]["layers"], theme)
    handles = [
        Patch(facecolor=styles[point["name"]].colour, alpha=0.4 if point["moment"] == "initial" else 0.9,
              label=point_name(point))
        for point in points
    ]  # fmt: skip
    figure.legend(handles=handles, loc="outside upper center", ncols=min(4, len(handles)), **legend_style(theme))
    return figure


def noise(found: Mapping[str, Any], theme: Theme = LIGHT) -> Figure | None:
    """Left: the share of kept keys that stay kept, against ε (thin lines: layers). Right: the same against Δ, at one ε."""
    points = [point for point in found["points"] if None not in point["mask_stability"]["kept_share"][0]]
    if not points:
        return None
    figure = Figure(figsize=(9.6, 3.9), layout="constrained", facecolor=theme.paper)
    left, right = figure.subplots(1, 2, sharey=True)
    styles = _styles(found, theme)
    eps = points[0]["mask_stability"]["eps"]
    chosen = len(eps) // 2
    for point in points:
        style, dashes = styles[point["name"]], _DASHES.get(point["moment"], "-")
        shares = point["mask_stability"]["kept_share"]
        for layer in range(len(shares[0])):
            left.plot(
                eps, [row[layer] for row in shares], color=style.colour, linewidth=0.6, alpha=0.5, linestyle=dashes
            )
        means = [sum(row) / len(row) for row in shares]
        looks = _looks(point, styles, theme)
        left.plot(eps, means, **looks)
        bins = [
            entry for entry in point["mask_stability"]["by_separation"] if 0 < float(entry["median"]) < float("inf")
        ]
        right.plot([entry["median"] for entry in bins], [entry["kept_share"][chosen] for entry in bins], **looks)
    any_gap = any(len(line.get_xdata()) for line in right.lines)
    for axes, name in (
        (left, "noise ε, in units of the RMS of the embedded tokens"),
        (right, "separation Δ, log scale"),
    ):
        prepare(axes, theme)
        axes.set_xlabel(name, color=theme.ink)
        if axes is left or any_gap:  # nothing to scale otherwise
            axes.set_xscale("log")
            plain_log_ticks(axes.xaxis)
    if any_gap:
        right.xaxis.set_major_locator(LogLocator(numticks=8))
    left.set_xticks(eps, [f"{size:g}" for size in eps])
    left.set_ylabel("share of kept keys that stay kept", color=theme.ink)
    left.set_ylim(top=1.02)
    left.set_title(f"{found['mask']}, against the noise", **title_style(theme))
    right.set_title(
        f"{found['mask']} at ε = {eps[chosen]:g}, against Δ (eighths of the queries)", **title_style(theme)
    )
    if not any_gap:
        right.set_xticks([])
        right.annotate(
            "no separation above 0, or too few queries",
            (0.5, 0.5),
            xycoords="axes fraction",
            ha="center",
            color=theme.faint,
        )
    figure.legend(
        handles=_keys(points, styles, theme),
        loc="outside upper center",
        ncols=4,
        handlelength=3.4,
        **legend_style(theme),
    )
    _note(figure, "thick lines: means over the layers; thin lines: single layers", theme)
    return figure


def lipschitz(found: Mapping[str, Any], theme: Theme = LIGHT) -> Figure | None:
    """Lipschitz estimates under full attention and under the mask, at the same weights, a column a model.

    Dots: batches (and directions); bars: medians. Logarithmic.
    """
    points = [point for point in found["points"] if point["lipschitz"]]
    if not points:
        return None
    figure = Figure(figsize=(9.6, 4.2), layout="constrained", facecolor=theme.paper)
    masks = list(dict.fromkeys(mask for point in points for mask in point["lipschitz"]))
    styles = mask_styles(masks, "full", theme)
    radii = points[0]["lipschitz"][masks[0]]["radii"]
    panels = figure.subplots(1, 1 + len(radii), sharey=True)
    names = ["‖∇loss‖", *(f"|Δloss| / ‖Δθ‖ at {radius:g} ‖θ‖" for radius in radii)]
    for panel, (axes, name) in enumerate(zip(panels, names, strict=True)):
        prepare(axes, theme)
        axes.grid(visible=False, axis="x")
        axes.set_yscale("log")
        axes.set_title(name, **title_style(theme))
        for number, point in enumerate(points):
            for place, (mask, values) in enumerate(point["lipschitz"].items()):
                drawn = values["gradient_norms"] if panel == 0 else values["ratios"][panel - 1]
                known = [float(value) for value in drawn if value is not None and 0 < float(value) < float("inf")]
                x = number + 0.36 * (place - (len(point["lipschitz"]) - 1) / 2)
                spread = [x + 0.11 * ((7 * index % 11) / 5 - 1) for index in range(len(known))]
                axes.plot(spread, known, ".", color=styles[mask].colour, markersize=4, alpha=0.45, markeredgewidth=0)
                if known:
                    axes.plot([x - 0.15, x + 0.15], [middle(known)] * 2, color=styles[mask].colour, linewidth=2.4)
        axes.set_xticks(range(len(points)), [point_name(point).replace(", ", "\n") for point in points], fontsize=7,
                        rotation=0 if len(points) <= 2 else 45)  # fmt: skip
        axes.set_xlim(-0.6, len(points) - 0.4)
    panels[0].set_ylabel("log scale", color=theme.ink)
    handles = [Patch(facecolor=styles[mask].colour, label=f"attention: {mask}") for mask in masks]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), **legend_style(theme))
    _note(figure, "bars: medians; dots: batches, in the ratios each with every direction", theme)
    return figure


def paper(found: Mapping[str, Any], theme: Theme = LIGHT) -> Figure | None:
    """δ_s, δ_h, Δ and β at the paper's percentiles: its numbers (crosses) and each of our models (dots), a panel each."""
    rows = [row for row in found.get("paper") or () if row["ours"]]
    names = list(dict.fromkeys(row["quantity"] for row in rows))
    if not names:
        return None
    figure = Figure(figsize=(9.6, 3.2), layout="constrained", facecolor=theme.paper)
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False).flat, names, strict=True):
        prepare(axes, theme)
        of_name = [row for row in rows if row["quantity"] == name]
        places = range(len(of_name))
        dots = [(place, value) for place, row in enumerate(of_name) for value in row["ours"]]
        colour = mask_styles(["full", "topk:5"], "full", theme)[
            "full" if name == "dispersion_full" else "topk:5"
        ].colour
        axes.plot(*zip(*dots, strict=True), "o", color=colour, markersize=4, alpha=0.6, markeredgewidth=0)
        axes.plot(places, [row["paper"] for row in of_name], "x", color=theme.ink, markersize=7)
        axes.set_yscale("log")
        if name != "separation":  # over many decades powers of ten say more
            plain_log_ticks(axes.yaxis)
        axes.set_xticks(places, [f"{row['level']} %" for row in of_name])
        axes.set_xlim(-0.5, len(of_name) - 0.5)
        axes.set_title(AT_PERCENTILES[name], **title_style(theme))
    _note(figure, f"{found['task']}: crosses: the paper, one seed; dots: our models", theme)
    return figure


def _by_layer(found: Mapping[str, Any], quantity: str, title: str, level: float, theme: Theme) -> Figure | None:
    points = [point for point in found["points"] if _layers(point, quantity)]
    if not points:
        return None
    figure = Figure(figsize=(9.6, 3.9), layout="constrained", facecolor=theme.paper)
    axes = figure.subplots()
    prepare(axes, theme)
    axes.axhline(level, color=theme.faint, linewidth=1)
    styles = _styles(found, theme)
    for number, point in enumerate(points):
        style, dashes = styles[point["name"]], _DASHES.get(point["moment"], "-")
        entries = _layers(point, quantity)
        places = [entry["layer"] + 0.08 * (number - (len(points) - 1) / 2) for entry in entries]
        quantiles = [[float(value) for value in entry["quantiles"]] for entry in entries]
        axes.plot(places, [values[3] for values in quantiles], **_looks(point, styles, theme))
        for place, values in zip(places, quantiles, strict=True):
            axes.plot(
                [place, place], [values[1], values[5]], color=style.colour, linewidth=1.2, alpha=0.7, linestyle=dashes
            )
    axes.set_title(f"{title}: median and 5–95 % of the queries", **title_style(theme))
    _layer_axis(axes, points[0]["layers"], theme)
    figure.legend(
        handles=_keys(points, styles, theme),
        loc="outside upper center",
        ncols=4,
        handlelength=3.4,
        **legend_style(theme),
    )
    return figure


def _boxes(axes: Axes, point: Mapping[str, Any], quantity: str, colour: str, shift: float, theme: Theme) -> None:
    for entry in _layers(point, quantity):
        _, low, first, median, third, high, largest = (float(value) for value in entry["quantiles"])
        place = entry["layer"] + shift
        axes.plot([place, place], [low, high], color=colour, linewidth=1.2)
        axes.bar(place, third - first, 0.3, bottom=first, color=colour, alpha=0.75, linewidth=0)
        axes.plot([place - 0.15, place + 0.15], [median, median], color=theme.ink, linewidth=1.2)
        axes.plot(place, largest, ".", color=colour, markersize=4)


def _layers(point: Mapping[str, Any], quantity: str) -> list[Mapping[str, Any]]:
    """The entries of each layer, all heads together, where the quantity is defined."""
    return [
        entry
        for entry in point["quantities"]
        if entry["quantity"] == quantity and entry["layer"] is not None and entry["head"] is None and entry["n"]
    ]


def _looks(point: Mapping[str, Any], styles: Mapping[str, Style], theme: Theme) -> dict[str, Any]:
    """Open marks at initialisation, full ones later."""
    style = styles[point["name"]]
    face = theme.paper if point["moment"] == "initial" else style.colour
    return {"color": style.colour, "marker": style.marker, "markerfacecolor": face, "markersize": 5.5,
            "linestyle": _DASHES.get(point["moment"], "-"), "linewidth": 1.8}  # fmt: skip


def _styles(found: Mapping[str, Any], theme: Theme) -> dict[str, Style]:
    names = list(dict.fromkeys(point["name"] for point in found["points"]))
    return mask_styles(names, "full", theme) if "full" in names else mask_styles(["full", *names], "full", theme)


def _keys(points: Sequence[Mapping[str, Any]], styles: Mapping[str, Style], theme: Theme) -> list[Line2D]:
    return [Line2D([], [], **_looks(point, styles, theme), label=point_name(point)) for point in points]


def _note(figure: Figure, words: str, theme: Theme) -> None:
    """What the marks are, below the axes: a picture is also looked at without its docstring."""
    figure.supxlabel(words, fontsize=8, color=theme.faint)


def _layer_axis(axes: Axes, layers: int, theme: Theme) -> None:
    axes.set_xlim(-0.6, layers - 0.4)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
    axes.set_xlabel("layer", color=theme.ink)
