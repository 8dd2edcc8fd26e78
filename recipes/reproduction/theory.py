"""What the paper's theory is about, measured on tier 1's trained models as its authors measured theirs, and stored small.

semfocus analyze runs/paper_even_pairs/runs/even_pairs/*/seed-* --paper --output measured
semfocus analyze runs/paper_even_pairs/runs/even_pairs/{full,topk-5}/seed-{0,1,2} --paper --slices --slice-directions 2 --output slices
python -m recipes.reproduction.theory measured slices    # → recipes/results/paper/theory_even_pairs.json and its pictures

How much training on to the whole budget changes δ, with one pair of models of one seed:
semfocus compare --config recipes/paper/tier1.yaml --tasks missing_duplicate_string --masks full topk:5 --seeds 0 \\
    --set training.stop_early=false --output runs/whole
semfocus analyze runs/{whole,paper_missing_duplicate_string}/runs/missing_duplicate_string/topk-5/seed-0 --paper --output longer
python -m recipes.reproduction.theory measured --longer longer
"""

import argparse
import math
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_semfocus.analysis.paper_table import rounded_from
from hf_semfocus.files import read_json, write_json
from hf_semfocus.report.analysis_tables import AT_PERCENTILES, slopes_by_mask
from hf_semfocus.text import number

from .blocks import RESULTS
from .records import BASELINE, MASK

PREFIX = "theory_"
OF_A_POINT = ("name", "own_mask", "epochs", "percentiles", "norms")
OF_A_SLICE = ("name", "mask", "direction", "size", "examples", "levels", "half_widths", "slopes")
PICTURES = {"": "paper.png", "_slopes": "slopes.png"}


def store(folders: Sequence[Path], results: Path, longer: Path | None = None) -> Path:
    """Stores what `semfocus analyze --paper` wrote for one task: its table from the first folder, slices of the loss from all.

    `longer`: what it wrote of one run trained to the whole budget and as tier 1 stopped it.
    """
    first, *_ = every = [read_json(folder / "analysis.json") for folder in folders]
    if not first.get("paper"):
        raise ValueError(
            f"{folders[0]} has no table beside the paper's: semfocus analyze --paper, of a task in that table"
        )
    if tasks := {one["task"] for one in every} - {first["task"]}:
        raise ValueError(f"tasks {first['task']} and {', '.join(tasks)}; allowed: folders of one task")
    kept = {name: first[name] for name in ("task", "length", "split", "examples", "machine", "versions", "paper")}
    kept["points"] = [{name: point[name] for name in OF_A_POINT} for point in first["points"]]
    kept["slices"] = [{name: one[name] for name in OF_A_SLICE} for found in every for one in found["slices"]]
    if longer is not None:
        points = read_json(longer / "analysis.json")["points"]
        kept["longer"] = [{name: point[name] for name in OF_A_POINT} for point in points]
    path = results / "paper" / f"{PREFIX}{first['task']}.json"
    write_json(path, kept)
    for suffix, name in PICTURES.items():
        if there := [folder / name for folder in folders if (folder / name).exists()]:
            shutil.copyfile(there[0], path.with_name(f"{path.stem}{suffix}.png"))
    return path


def read(results: Path) -> list[dict[str, Any]]:
    """What is stored, a task an entry."""
    return [read_json(path) for path in sorted((results / "paper").glob(f"{PREFIX}*.json"))]


def section(stored: Sequence[Mapping[str, Any]]) -> list[str]:
    """The page's part on it: lines of Markdown, none where nothing is stored."""
    if not stored:
        return []
    lines = [
        "## The theory, as the paper measured it",
        "",
        "At the end of training, over ten batches of 100 training rows, all queries and layers; Δ at 100 − the percentile. "
        "δ_s is of models trained with full attention, all else of those with `topk:5`. Ours is the median of the models, the "
        "paper's one seed. **Bold**: they differ by more than 20 %. *Outside*: the paper's number lies outside the range of our "
        "models. Both also hold for every number that the paper's may have been rounded from (its Δ has one or two digits). "
        "λ_W = δ_h/δ_s + ln(2(1 + 1/Δ))/δ_s, and λ_X likewise in the inputs (`hf_semfocus/analysis/conditions.py`): below 1, the "
        "theory bounds the loss's Lipschitz constant lower for top-k than for full attention. Our "
        "runs end soon after 95 %, the paper's at the task's full budget, and its dropout of attention weights was on.",
    ]
    for found in stored:
        lines += ["", f"### {found['task']}", "", *_table(found["paper"]), "", _summary(found)]
        lines += ["", _longer(found)] if "longer" in found else []
        lines += ["", f"![Dots: our models; crosses: the paper](paper/{PREFIX}{found['task']}.png)"]
        if found["slices"]:
            lines += ["", *_slices(found)]
    return lines


def _table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    quantities = list(dict.fromkeys(row["quantity"] for row in rows))
    levels = list(dict.fromkeys(row["level"] for row in rows if row["quantity"] == quantities[0]))
    lines = [
        f"| ours / paper | {' | '.join(f'{level} %' for level in levels)} |",
        f"| --- |{' --- |' * len(levels)}",
    ]
    for quantity in quantities:
        cells = [_cell(row) for row in rows if row["quantity"] == quantity]
        lines.append(f"| {AT_PERCENTILES[quantity]} | {' | '.join(cells)} |")
    return lines


def _cell(row: Mapping[str, Any]) -> str:
    text = f"{number(row['median'])} / {number(row['paper'])}"
    return (f"**{text}**" if row["differs"] else text) + (" *outside*" if _outside(row) else "")


def _outside(row: Mapping[str, Any]) -> bool:
    least, most = rounded_from(row["paper"])
    return bool(row["ours"]) and not (min(row["ours"]) <= most and least <= max(row["ours"]))


def _summary(found: Mapping[str, Any]) -> str:
    measured = [row for row in found["paper"] if row["ours"]]
    conditions = [row for row in found["paper"] if row["quantity"].startswith("lambda")]
    differ = [row for row in measured if row["differs"]]
    within = sum(not _outside(row) for row in differ)
    ours, theirs = (sum((row[name] or math.inf) < 1 for row in conditions) for name in ("median", "paper"))
    epochs: dict[str, list[int]] = {}
    for point in found["points"]:
        epochs.setdefault(point["own_mask"], []).append(point["epochs"])
    trained = " and ".join(
        f"{len(some)} of `{mask}` ({min(some)}–{max(some)} epochs)" for mask, some in epochs.items()
    )
    return (
        f"Models: {trained}. {len(differ)} of {len(measured)} measured numbers differ by more than 20 %; in {within} of these the paper's "
        f"lies within the range of our seeds. λ is below 1 at {ours} of {len(conditions)} places with our medians, at {theirs} "
        "with the paper's."
    )


def _longer(found: Mapping[str, Any]) -> str:
    """δ_h of one run, stopped and trained on, beside the paper's."""
    stopped, whole = sorted(found["longer"], key=lambda point: point["epochs"])
    paper = [row["paper"] for row in found["paper"] if row["quantity"] == "dispersion_mask"]
    told = [
        f"{', '.join(number(value) for value in point['percentiles']['dispersion_mask'])} after {point['epochs']} epochs"
        for point in (stopped, whole)
    ]
    return (
        f"The length of training may be a part of it. In one run of `{whole['own_mask']}`, stopped as in tier 1 and trained to its whole "
        f"budget, δ_h was {told[0]}, and {told[1]} (the paper: {', '.join(map(number, paper))})."
    )


def _slices(found: Mapping[str, Any]) -> list[str]:
    """The slopes of the loss around the trained weights, a mask beside full."""
    entries, by_mask = found["slices"], slopes_by_mask(found["slices"])
    first = entries[0]
    lines = [
        f"Slices of the training loss around the trained weights, after the paper's figure 5 on a coarser grid (there 200 × 200 points), "
        f"so sizes do not compare with the paper's, only the masks with each other: |difference of neighbouring points| / step within "
        f"± a half-width; {first['size']} × {first['size']} points, {first['examples']} rows, "
        f"{len({entry['name'] for entry in entries})} models, {len({entry['direction'] for entry in entries})} planes each; medians.",
        "",
        f"| half-width | {' | '.join(f'{mask}, {level} %' for level in first['levels'] for mask in by_mask)} |",
        f"| --- |{' --- |' * (len(first['levels']) * len(by_mask))}",
    ]
    full, sparse = ([value for slopes in by_mask[mask] for value in slopes] for mask in (BASELINE, MASK))
    smaller = sum(ours < theirs for ours, theirs in zip(sparse, full, strict=True))
    for place, width in enumerate(first["half_widths"]):
        cells = [number(slopes[place][level]) for level in range(len(first["levels"])) for slopes in by_mask.values()]
        lines.append(f"| {width:g} | {' | '.join(cells)} |")
    return [
        *lines,
        "",
        f"The paper explains faster learning by a smaller Lipschitz constant of the loss, so by smaller slopes: those of `{MASK}` are the "
        f"smaller ones at {smaller} of these {len(full)} places.",
        "",
        f"![Slopes of the loss, by half-width](paper/{PREFIX}{found['task']}_slopes.png)",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m recipes.reproduction.theory",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="DIR", help="what `semfocus analyze --output DIR` wrote"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="default: recipes/results")
    parser.add_argument(
        "--longer",
        type=Path,
        metavar="DIR",
        help="the same of one run trained to its whole budget, and as it was stopped",
    )
    options = parser.parse_args(arguments)
    try:
        print(store(options.folders, options.results, options.longer))
    except (ValueError, OSError) as error:
        print(f"theory: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
