"""The tables of `semfocus analyze`, from `analysis.json`."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from ..text import UNDEFINED, middle, number, share

MOST_HEADS = 12
"""(Layer, head) pairs up to which the terminal shows each; from there on layers."""
NAMES = {
    "kept_keys": "kept keys",
    "dispersion_full": "δ_s, all keys",
    "dispersion_mask": "δ_h, kept keys",
    "dispersion_ratio": "δ_h / δ_s",
    "separation": "Δ",
    "queries_per_key": "β, queries a key",
    "log_stability_full": "log ξ_s",
    "log_stability_mask": "log ξ_h",
    "improvement": "log ξ_s − log ξ_h",
}
NOT_SHOWN = ("dispersion_own",)
"""Quantities with a table of their own."""
AT_PERCENTILES = {
    "dispersion_full": "δ_s",
    "dispersion_mask": "δ_h",
    "separation": "Δ",
    "queries_per_key": "β",
    "lambda_w": "λ_W",
    "lambda_x": "λ_X",
}
NORM_NAMES = {"value": "‖V‖", "query_key": "‖QᵀK‖/√d", "expand": "‖P‖", "contract": "‖R‖"}
STATISTICS = ("mean", "median", "q95", "max")


def point_name(point: Mapping[str, Any]) -> str:
    """A measured model in words: "topk:5, trained"."""
    return f"{point['name']}, {point['moment']}"


def terminal_tables(found: Mapping[str, Any]) -> RenderableType:
    """All tables, for 80 columns: the quantities of each measured model, then what compares them."""
    parts: list[RenderableType] = []
    for point in found["points"]:
        parts += [_quantity_table(point), Text()]
    parts += [_condition_table(found["points"]), Text()]
    # Written since β and the norms are measured.
    parts += [_percentile_table(found["points"]), Text()] if "percentiles" in found["points"][0] else []
    parts += [_norm_table(found["points"]), Text()] if any(point.get("norms") for point in found["points"]) else []
    parts += [_paper_table(found["paper"]), Text()] if found.get("paper") else []
    if found["between"]:
        parts += [_between_table(found["between"]), Text()]
    parts += [_noise_table(found["points"]), Text(), _lipschitz_table(found["points"])]
    if found.get("paths"):
        parts += [Text(), _path_table(found["paths"])]
    if found.get("slices"):
        parts += [Text(), _slice_table(found["slices"])]
    return Group(*parts)


def quantities_csv(found: Mapping[str, Any]) -> str:
    """Every quantity by model, layer and head; empty layer or head: all of them; empty value: not defined."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["model", "moment", "mask", "layer", "head", "quantity", *STATISTICS, "n"])
    for point in found["points"]:
        for entry in point["quantities"]:
            place = ["" if entry[name] is None else entry[name] for name in ("layer", "head")]
            values = ["" if entry[name] is None else entry[name] for name in (*STATISTICS, "n")]
            writer.writerow([point["name"], point["moment"], point["mask"], *place, entry["quantity"], *values])
    return text.getvalue()


def _table(title: str, *headings: str | Column) -> Table:
    columns = [name if isinstance(name, Column) else Column(name, justify="right", no_wrap=True) for name in headings]
    return Table(*columns, title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)


def _left(name: str) -> Column:
    return Column(name, no_wrap=True)


def _quantity_table(point: Mapping[str, Any]) -> Table:
    by_head = point["layers"] * point["heads"] <= MOST_HEADS
    title = f"{point_name(point)} · scores under {point['mask']}"
    table = _table(title, _left("quantity"), "layer", "head", "mean", "median", "95 %", "max", "n")
    names = dict.fromkeys(entry["quantity"] for entry in point["quantities"])
    for name in [name for name in names if name not in NOT_SHOWN]:
        words = NAMES.get(name, name)
        entries = [entry for entry in point["quantities"] if entry["quantity"] == name]
        # A single head's values are those of its layer.
        shown = [
            e for e in entries if (e["head"] is not None if by_head else e["layer"] is not None and e["head"] is None)
        ]
        shown += [entry for entry in entries if entry["layer"] is None]
        for row, entry in enumerate(shown):
            place = ["all" if entry[part] is None else str(entry[part]) for part in ("layer", "head")]
            values = [number(entry[statistic]) for statistic in STATISTICS]
            table.add_row(words if row == 0 else "", *place, *values, str(entry["n"]), end_section=entry is shown[-1])
    return table


def _condition_table(points: Sequence[Mapping[str, Any]]) -> Table:
    table = _table(
        "ξ_h < ξ_s (the paper's improvement condition), and where the bound 2 min(e^δ/n, ¼) says nothing",
        _left("model"), "of queries", "of (layer,\nhead) maxima", "vacuous,\nall keys", "vacuous,\nkept keys",
    )  # fmt: skip
    for point in points:
        overall, maxima = point["conditions"][-1], point["maxima"]
        of = UNDEFINED if maxima["improved"] is None else f"{maxima['improved']} of {maxima['n']}"
        vacuous = [share(overall[f"vacuous_{which}_share"]) for which in ("full", "mask")]
        table.add_row(point_name(point), share(overall["improvement_share"]), of, *vacuous)
    return table


def _percentile_table(points: Sequence[Mapping[str, Any]]) -> RenderableType:
    levels = points[0]["percentiles"]["levels"]
    table = _table(
        "percentiles over all layers, and the paper's conditions there",
        _left("model"), _left("quantity"), *(f"{level} %" for level in levels),
    )  # fmt: skip
    for point in points:
        for row, (name, words) in enumerate(AT_PERCENTILES.items()):
            cells = map(number, point["percentiles"][name])
            last = row == len(AT_PERCENTILES) - 1
            table.add_row("" if row else point_name(point), words, *cells, end_section=last)
    note = Text(
        "Δ at 100 − the percentile. λ below 1: by the paper's theory the mask makes the loss's Lipschitz constant in the "
        "weights (W), or the layer's in its inputs (X), smaller than full attention does on the same scores.",
        style="dim",
    )
    return Group(table, note)


def _norm_table(points: Sequence[Mapping[str, Any]]) -> Table:
    title = "spectral norms of the weights, biases as a further column (the largest head's)"
    table = _table(title, _left("model"), "layer", *NORM_NAMES.values())
    for point in points:
        layers = dict.fromkeys(entry["layer"] for entry in point.get("norms", ()))
        for layer in layers:
            largest = [
                max(entry["value"] for entry in point["norms"] if (entry["layer"], entry["norm"]) == (layer, name))
                for name in NORM_NAMES
            ]
            words = "" if layer else point_name(point)
            table.add_row(words, str(layer), *map(number, largest), end_section=layer == len(layers) - 1)
    return table


def _paper_table(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    table = _table(
        "beside the paper's table (one seed): δ_s of models trained with full, all else of models trained with topk:5",
        _left("quantity"), "percentile", "ours", "lowest", "highest", "models", "paper", "ratio", _left(""),
    )  # fmt: skip
    for place, row in enumerate(rows):
        first = place == 0 or rows[place - 1]["quantity"] != row["quantity"]
        last = place == len(rows) - 1 or rows[place + 1]["quantity"] != row["quantity"]
        ends = [number(end(row["ours"])) if len(row["ours"]) > 1 else "" for end in (min, max)]
        cells = [f"{row['level']} %", number(row["median"]), *ends, str(len(row["ours"]) or ""), number(row["paper"])]
        words = AT_PERCENTILES[row["quantity"]] if first else ""
        table.add_row(words, *cells, number(row["ratio"]), "differs" if row["differs"] else "", end_section=last)
    note = Text(
        "ours: the median of the models; differs: by more than 20 %. λ is made from the numbers above it, of ours and of the "
        "paper's. In the authors' code attention weights are dropped in evaluation too; here they are not.",
        style="dim",
    )
    return Group(table, note)


def slopes_by_mask(slices: Sequence[Mapping[str, Any]]) -> dict[str, list[list[float]]]:
    """For each mask and half-width the medians over models and directions of the percentiles."""
    found = {}
    for mask in dict.fromkeys(entry["mask"] for entry in slices):
        of_mask = [entry["slopes"] for entry in slices if entry["mask"] == mask]
        found[mask] = [
            [middle(values) or 0.0 for values in zip(*rows, strict=True)] for rows in zip(*of_mask, strict=False)
        ]
    return found


def _slice_table(slices: Sequence[Mapping[str, Any]]) -> RenderableType:
    first, by_mask = slices[0], slopes_by_mask(slices)
    table = _table(
        "slices of the training loss: |difference of neighbouring points| / step within ± half-width",
        "half-width", _left("attention"), *(f"{level} %" for level in first["levels"]), "slices",
    )  # fmt: skip
    others = [mask for mask in by_mask if mask != "full"] if "full" in by_mask else []
    for place, width in enumerate(first["half_widths"]):
        rows = [
            [mask, *map(number, values[place]), str(sum(entry["mask"] == mask for entry in slices))]
            for mask, values in by_mask.items()
        ]
        for mask in others:
            pairs = zip(by_mask[mask][place], by_mask["full"][place], strict=True)
            rows.append([f"{mask} / full", *(number(slope / full if full else None) for slope, full in pairs), ""])
        for row, cells in enumerate(rows):
            table.add_row("" if row else f"{width:g}", *cells, end_section=row == len(rows) - 1)
    note = Text(
        f"{first['size']} × {first['size']} points of [−1, 1]² (the paper: 200 × 200), {first['examples']} examples; medians "
        "over models and directions. Each direction is as long as the weights, tensor by tensor.",
        style="dim",
    )
    return Group(table, note)


def _between_table(between: Sequence[Mapping[str, Any]]) -> Table:
    table = _table(
        "between the models: dispersion of the keys that each keeps itself (means)",
        _left("models"), _left("moment"), "layer", "first", "second", "second / first",
    )  # fmt: skip
    for pair in between:
        for row, layer in enumerate(pair["layers"]):
            words = (f"{pair['first']} → {pair['second']}", pair["moment"]) if row == 0 else ("", "")
            place = "all" if layer["layer"] is None else str(layer["layer"])
            cells = [number(layer[name]) for name in ("first", "second", "ratio")]
            table.add_row(*words, place, *cells, end_section=layer is pair["layers"][-1])
    return table


def _noise_table(points: Sequence[Mapping[str, Any]]) -> Table:
    eps = points[0]["mask_stability"]["eps"]
    table = _table(
        "kept keys that stay kept under noise of ε × RMS of the embedded tokens (mean over layers)",
        _left("model"), *(f"ε = {size:g}" for size in eps),
    )  # fmt: skip
    for point in points:
        rows = point["mask_stability"]["kept_share"]
        means = [None if None in row else sum(row) / len(row) for row in rows]
        table.add_row(point_name(point), *map(share, means))
    return table


def _lipschitz_table(points: Sequence[Mapping[str, Any]]) -> RenderableType:
    measured = [point for point in points if point["lipschitz"]]
    if not measured:
        return Text("no labels: no Lipschitz estimates")
    radii = next(iter(measured[0]["lipschitz"].values()))["radii"]
    table = _table(
        "Lipschitz estimates of the loss at each model's own weights (medians)",
        _left("weights of"), _left("attention"), "loss", "‖∇loss‖", *(f"ratio\nat {radius:g}" for radius in radii),
    )  # fmt: skip
    for point in measured:
        for row, (mask, values) in enumerate(point["lipschitz"].items()):
            ratios = [number(middle(ratio)) for ratio in values["ratios"]]
            cells = [number(middle(values["losses"])), number(middle(values["gradient_norms"])), *ratios]
            last = row == len(point["lipschitz"]) - 1
            table.add_row("" if row else point_name(point), mask, *cells, end_section=last)
    note = Text(
        "ratio: |loss(θ) − loss(θ')| / ‖θ − θ'‖ at ‖θ − θ'‖ = radius × ‖θ‖. Compare masks at the same weights, or at equal "
        "loss: a model with a small loss has small gradients whatever its mask.",
        style="dim",
    )
    return Group(table, note)


def _path_table(paths: Sequence[Mapping[str, Any]]) -> RenderableType:
    table = _table(
        "|loss(θ) − loss(θ')| / ‖θ − θ'‖ along the path of training, under each model's own mask",
        _left("model"), _left("from → to epoch"), "‖θ − θ'‖", "median", "max", "of",
    )  # fmt: skip
    for path in paths:
        rows = []
        for step in path["steps"]:
            ratios = [float(value) for value in step["ratios"] if value is not None]
            epochs = f"{step['from']} → {'end' if step['to'] is None else step['to']}"
            largest = number(max(ratios)) if ratios else UNDEFINED
            rows.append([epochs, number(step["step_norm"]), number(middle(ratios)), largest, f"{len(ratios)} batches"])
        if path["recorded"] is not None:
            found = path["recorded"]
            rows.append(
                ["recorded each", "", number(found["median"]), number(found["max"]), f"{found['epochs']} epochs"]
            )
        for row, cells in enumerate(rows):
            table.add_row("" if row else path["name"], *cells, end_section=row == len(rows) - 1)
    note = Text(
        "A step over many epochs is a chord: it says less than steps of one epoch, which --analysis records.",
        style="dim",
    )
    return Group(table, note)
