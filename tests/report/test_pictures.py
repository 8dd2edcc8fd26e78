"""The pictures: that they show the numbers, all of them, and invent none."""

import sys

import numpy as np
import pytest
from matplotlib.colors import to_rgba

from hf_semfocus.report import pictures
from hf_semfocus.report.dispersion_pictures import dispersion, dispersion_points
from hf_semfocus.report.palette import LIGHT, mask_styles
from tests.report.synthetic import update


def test_band_by_hand():
    found = pictures.band([[0.5, 0.6, 0.9], [0.5, 0.8], [0.4, 0.5, 0.6]])
    np.testing.assert_allclose(found["middle"], [0.5, 0.6, 0.8])
    np.testing.assert_allclose(found["low"], [0.4, 0.5, 0.6])
    np.testing.assert_allclose(found["high"], [0.5, 0.8, 0.9])
    assert found["training"].tolist() == [3, 3, 2]


def test_band_of_many_seeds_is_the_middle_four_fifths():
    found = pictures.band([[float(seed)] for seed in range(11)])
    assert (found["low"][0], found["middle"][0], found["high"][0]) == (1.0, 5.0, 9.0)


def test_no_line_goes_on_after_the_last_seed_has_stopped(summary_of):
    summary = summary_of("quickstart")
    figure = pictures.curves(summary)
    left = figure.axes[0]
    colour = to_rgba(mask_styles(summary["masks"], "full")["topk:5"].colour)
    drawn = [line for line in left.lines if to_rgba(line.get_color()) == colour and len(line.get_xdata()) > 1]
    assert max(max(line.get_xdata()) for line in drawn) == 10  # seed 0 stopped in epoch 10, seed 1 in 8
    solid = [line for line in drawn if line.get_linestyle() == "-" and line.get_linewidth() > 1]
    assert max(max(line.get_xdata()) for line in solid) == 8


def test_two_panels_a_task_with_chance_and_tau(summary_of):
    figure = pictures.curves(summary_of("everything"))
    assert len(figure.axes) == 4
    for axes in figure.axes:
        levels = [line.get_ydata()[0] for line in axes.lines if list(line.get_xdata()) == [0, 1]]
        assert levels == [0.5, 0.95]
        assert {text.get_text() for text in axes.texts} == {"chance", "τ"}
    assert [axes.get_title(loc="left") for axes in figure.axes[:2]] == [
        "even_pairs (length 20) · training",
        "even_pairs (length 20) · held-out",
    ]


def test_bars_end_where_the_numbers_are(summary_of):
    summary = summary_of("everything")
    figure = pictures.speedups(summary)
    for axes, quantity in zip(figure.axes, ("train", "heldout"), strict=True):
        entries = [entry for entry in summary["speedups"] if entry["quantity"] == quantity and entry["n_pairs"]]
        expected = {
            round(entry["estimate"] or entry["low"] or entry["high"], 6)
            for entry in entries
            if entry["estimate"] or entry["low"] or entry["high"]
        }
        assert {round(bar.get_x() + bar.get_width(), 6) for bar in axes.patches if hasattr(bar, "get_x")} == expected
        assert {round(bar.get_x(), 6) for bar in axes.patches if hasattr(bar, "get_x")} == {1}
        telling = {(e["task"], e["mask"]) for e in summary["speedups"] if e["undetermined"] < e["n_pairs"]}
        silent = [e for e in entries if e["undetermined"] == e["n_pairs"] and (e["task"], e["mask"]) in telling]
        assert [text.get_text() for text in axes.texts].count("undetermined") == len(silent)
        low, high = axes.get_xlim()
        assert low * high == pytest.approx(1)
        assert all(
            low < end < high
            for entry in entries
            for pair in entry["pairs"]
            for end in (pair["lower"], pair["upper"])
            if end
        )


def test_masks_of_which_no_pair_tells_anything_share_one_line(summary_of):
    summary = summary_of("everything")
    rows = len(pictures.speedups(summary).axes[0].get_yticklabels())
    for entry in summary["speedups"]:
        if entry["task"] == "even_pairs":
            pairs = [pair.model_copy(update={"lower": 0.0, "upper": None}) for pair in entry.pairs]
            update(entry, estimate=None, low=0.0, high=None, undetermined=3, n_pairs=3, pairs=pairs)
    axes = pictures.speedups(summary).axes[0]
    assert len(axes.get_yticklabels()) == rows - 3
    assert "even_pairs; undetermined: banded:5, block:5, topk:5" in [text.get_text() for text in axes.texts]


def test_many_masks_are_medians_alone(summary_of):
    summary = summary_of("quickstart")
    few = pictures.curves(summary).axes[0]
    for number in range(pictures.MEDIANS_FROM):
        own = [run for run in summary.runs if run.mask == "full"]
        summary.runs += [run.model_copy(update={"mask": f"topk:{number + 10}"}) for run in own]
        summary.masks.append(f"topk:{number + 10}")
    many = pictures.curves(summary).axes[0]
    assert few.collections
    assert not many.collections
    assert len(many.lines) <= 2 + 2 * len(summary.masks)


def test_keys_name_what_is_there(summary_of):
    summary = summary_of("everything")
    told = [text.get_text() for text in pictures.speedups(summary).legends[0].get_texts()]
    assert {"pale, arrow: a bound of the median", "a pair of runs"} <= set(told)
    figure = dispersion(summary)
    masks, tasks = ([text.get_text() for text in legend.get_texts()] for legend in figure.legends)
    points = dispersion_points(summary)
    assert set(masks) == {point["mask"] for point in points}
    assert set(tasks) == {point["task"] for point in points}
    arrows = [text for text in figure.axes[0].texts if text.arrow_patch is not None]
    assert len(arrows) == sum(point["kind"] != "exact" for point in points)


def test_tasks_that_are_not_drawn_are_named_and_fit(summary_of):
    summary = summary_of("everything")
    names = [f"task_number_{index}_of_many" for index in range(9)]
    summary.tasks += [summary.tasks[0].model_copy(update={"name": name}) for name in names]
    title = dispersion(summary).axes[0].get_title(loc="left")
    assert all(name in title for name in names)
    assert max(map(len, title.splitlines())) <= pictures.LINE


def test_dispersion_points_by_hand(summary_of):
    points = {(point["task"], point["mask"]): point for point in dispersion_points(summary_of("everything"))}
    assert points["even_pairs", "topk:5"]["ratio"] == pytest.approx(0.5)
    assert (points["even_pairs", "topk:5"]["kind"], points["even_pairs", "banded:5"]["kind"]) == ("exact", "less")
    assert points["missing_duplicate_string", "topk:5"]["kind"] == "more"
    assert ("missing_duplicate_string", "banded:5") not in points  # undetermined


def test_nothing_to_draw_is_none_and_not_an_empty_picture(summary_of):
    summary = summary_of("quickstart")
    for run in summary.runs:
        update(run, dispersion=None, history=[])
    summary.speedups = []
    assert [draw(summary) for draw in (pictures.curves, pictures.speedups, dispersion)] == [None] * 3


def test_a_mask_has_one_colour_everywhere_and_the_baseline_is_neutral():
    masks = ["full", "banded:5", "topk:5", "a", "b", "c", "d", "e", "f"]
    styles = mask_styles(masks, "full")
    assert list(styles) == masks
    assert len({(style.colour, style.marker) for style in styles.values()}) == len(masks)
    assert styles["full"].colour == LIGHT.baseline
    assert mask_styles(["topk:5", "full"], "full")["topk:5"] == mask_styles(["full", "topk:5"], "full")["topk:5"]


def test_no_pyplot(summary_of):
    before = "matplotlib.pyplot" in sys.modules
    for draw in (pictures.curves, pictures.speedups, dispersion):
        assert draw(summary_of("quickstart")) is not None
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_fifteen_masks_beside_the_baseline_have_colours_of_their_own():
    masks = ["full", *(f"topk:{k}" for k in range(1, 40))]
    styles = mask_styles(masks, "full")
    assert len({styles[mask].colour for mask in masks[:16]}) == 16
    assert len({(style.colour, style.marker) for style in styles.values()}) == len(masks)
    assert {mask: styles[mask] for mask in masks[:7]} == mask_styles(masks[:7], "full")
