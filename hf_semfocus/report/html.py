"""`report.html`: one self-contained page (styles, script and pictures inside, no links out), and the pictures as files."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..data.tasks import get_task
from ..files import atomic_write, read_record
from ..summary_schema import RunEntry, Summary, TaskEntry
from ..text import accuracy, epochs_text, length_text, percent, plural, seconds
from . import pictures
from .dispersion_pictures import dispersion, dispersion_points
from .entries import entries_of, forest_of, sentence_of
from .files import render_figure
from .inline_svg import inline_svg
from .palette import LIGHT, Theme, mask_styles
from .snapshots import snapshots
from .spreadsheets import write_spreadsheets
from .theory import k_sweep, matched_sentences, sentences, table
from .theory_pictures import matched, matched_panel, matched_picture, predicted, predicted_panel, prediction_picture
from .words import no_pair_text, pair_text, paired_seconds


def write_report(run_dir: Path | str, summary: Summary | None = None) -> Path:
    """Writes `report.html`, `figures/*.png` and the tables as CSV, from the `summary.json` of a run directory; returns the page's path.

    Each file appears whole or not at all. Make the summary first (`hf_semfocus.comparison.summary.write_summary`).

    Args:
        run_dir: the run directory.
        summary: what its `summary.json` holds, where that has been read.

    Raises:
        ValueError: there is no summary, or it is damaged or of another format.
    """
    run_dir = Path(run_dir)
    path = run_dir / "summary.json"
    remedy = f"`semfocus report {run_dir}` makes it again from the runs"
    if summary is None and not path.is_file():
        raise ValueError(f"{path} is missing; {remedy}")
    summary = summary or read_record(path, Summary, remedy)
    write_spreadsheets(summary, run_dir)
    for name, (draw, *_) in PICTURES.items():
        figure = draw(summary, LIGHT)
        path = run_dir / "figures" / f"{name}.png"
        if figure is not None:
            atomic_write(path, render_figure(figure, "png"))
        else:  # a picture of an earlier state would contradict the page
            path.unlink(missing_ok=True)
    page = run_dir / "report.html"
    atomic_write(page, render(summary, snapshots(summary, run_dir)))
    return page


def render(summary: Summary, shown: Sequence[Mapping[str, Any]] = ()) -> str:
    """The page as text, with the snapshots `shown`. Everything that comes from the summary is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("hf_semfocus", "report/templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    runs = summary.runs
    entries = entries_of(summary)
    taus = (_shared_tau(summary, name) for name in ("tau", "heldout_tau"))
    return environment.get_template("report.html.jinja").render(
        s=summary,
        title=f"{summary.name or 'A comparison'}: learning under sparse attention",
        sentence=sentence_of(summary, entries),
        entries=entries,
        asks={task.name: _asks(task) for task in summary.tasks},
        cells={(entry.row.task, entry.row.mask): entry for entry in entries},
        forest=forest_of([entry for entry in entries if entry.finding]),
        predicted=sentences(summary),
        matched=matched_sentences(summary),
        quantities=table(summary),
        k_sweep=k_sweep(summary),
        curves=_curves(summary),
        theory=_theory(summary),
        snapshots=shown,
        styles=mask_styles(summary.masks, summary.baseline),
        tau=next(taus),
        heldout_tau=next(taus),
        budget=_only(run.budget for run in runs),
        cut=_only(entry.restricted_at for entry in summary.speedups),
        unfinished=sum(run.status == "unfinished" for run in runs),
        troubled=[run for run in runs if run.diverged or run.status in ("failed", "unfinished")],
        censored=[run for run in runs if run.status == "censored" and not run.diverged],
        outcome=outcome,
        pair_text=pair_text,
        no_pair_text=no_pair_text,
        epochs_text=epochs_text,
        paired_seconds=paired_seconds,
        accuracy=accuracy,
        seconds=seconds,
        plural=plural,
        length_text=length_text,
    )


def _asks(task: TaskEntry) -> str:
    """What a task asks, in words; empty for a task of the user's own that is not imported."""
    try:
        return get_task(task.name, (task.hyperparameters.get("task_options") or {}).get("answer")).description
    except ValueError:
        return ""


def outcome(run: RunEntry) -> str:
    """What became of a run, in words."""
    if run.status == "failed":
        return f"failed: {run.error or 'no reason was kept'}"
    if run.status == "unfinished":
        return "unfinished" if run.epochs_trained else "not started, or no epoch yet"
    if run.diverged:
        before = f" after it had reached τ in epoch {run.epochs_to_tau}" if run.epochs_to_tau else ""
        return f"diverged in epoch {run.epochs_trained}{before}"
    if run.stopped == "settled":
        return "reached τ; ended when held-out accuracy had settled"
    return {"reached": "reached τ", "censored": "censored: budget used up"}[run.status]


Draw = Callable[[Summary, Theme], Figure | None]

PICTURES: dict[str, tuple[Draw, str, str]] = {
    "curves": (
        pictures.curves,
        "Accuracy against epochs",
        "Accuracy on the whole training split (left; over the steps of the epoch where a run did not measure it after each) and on "
        "held-out data (right) at the end of each epoch. Thick lines are "
        f"medians over the seeds, bands run from the lowest to the highest seed (10–90 % from {pictures.QUANTILES_FROM} seeds "
        "on), thin lines are single seeds. Filled marks: the run stopped there; crosses: it diverged; open marks: it is not "
        "finished. A line is dashed where some seeds had stopped: those count with their last value. Dotted lines: chance and "
        "the threshold τ.",
    ),
    "speedups": (
        pictures.speedups,
        "Speed-ups",
        "Epochs of the baseline over epochs of the mask; right of 1 the mask needed fewer. Full bars: geometric mean, with the "
        "95 % interval as a line where there are three pairs or more. Pale bars with an arrow: runs were censored, so the median "
        "is known only to lie beyond the bar's end. Small marks below a bar: single pairs, triangles where a pair gives only "
        "a bound. A task with no bound in any pair has one line.",
    ),
    "dispersion": (
        dispersion,
        "Dispersion and speed-up",
        "Spread of the attention scores that the mask keeps, over the spread of all scores, in the trained models of that mask "
        "(means over queries, heads, layers and seeds), against the speed-up in epochs to τ training accuracy. A colour a mask, "
        "a shape a task; an arrow: only a bound of the speed-up is known, on the side it points to. Masks whose speed-up is "
        "undetermined are not drawn. A few points on a few tasks show no rule.",
    ),
    "predictions": (
        prediction_picture,
        "Speed-up against the quantities of the theory",
        "Speed-up against the quantities that the paper explains it by, a point a task and mask (means over seeds). Open marks: a "
        "run was censored, so the ratio of restricted means is a bound in one direction.",
    ),
    "matched": (
        matched_picture,
        "Gradient norms at the same training loss",
        "Norm of the loss's gradient on fixed held-out rows against the loss of the whole training split, which falls to the right. Lines "
        "are medians over the pairs, bands run from the lowest to the highest, over the losses that both runs of a pair went through.",
    ),
}  # fmt: skip


def _curves(summary: Summary) -> list[tuple[str, list[Markup]]]:
    """Per task the panels of its curves."""
    made = []
    for index, task in enumerate(summary.tasks):
        figures = [pictures.curve_panel(summary, task, quantity) for quantity in ("train", "heldout")]
        aggregates = [entry for entry in summary.aggregates if entry.task == task.name]
        words = "; ".join(
            f"{entry.mask}: held-out {accuracy(entry.final_heldout_mean)} at the end" for entry in aggregates
        )
        panels = [
            inline_svg(figure, f"c{index}{part}", f"Accuracy against epochs on {task.name}. {words}.")
            for part, figure in zip("th", figures, strict=True)
            if figure is not None
        ]
        if panels:
            made.append((task.name, panels))
    return made


def _theory(summary: Summary) -> list[tuple[str, str, list[tuple[str, Markup]]]]:
    """Title, caption and panels (with their task, where they have one) of the pictures about the theory."""
    made = []
    figure = dispersion(summary)
    if figure is not None:
        words = "; ".join(
            f"{point['task']} {point['mask']}: dispersion ratio {point['ratio']:.2f}, speed-up {point['speedup']:.2g}"
            f"{'' if point['kind'] == 'exact' else ' (a bound)'}"
            for point in dispersion_points(summary)
        )
        made.append(("Dispersion and speed-up", PICTURES["dispersion"][2], [("", inline_svg(figure, "d", words))]))
    for letter, name, panels, panel in (
        ("p", "predictions", predicted(summary), predicted_panel),
        ("m", "matched", matched(summary), matched_panel),
    ):
        _, title, caption = PICTURES[name]
        one = [
            (
                key if name == "matched" else "",
                inline_svg(_alone(panel, summary, key), f"{letter}{index}", f"{title}: {key}"),
            )
            for index, key in enumerate(panels)
        ]
        if one:
            made.append((title, caption, one))
    return made


def _alone(panel: Callable[[Axes, Summary, str], None], summary: Summary, key: str) -> Figure:
    figure = Figure(figsize=(4.2, 2.9), layout="constrained", facecolor=LIGHT.paper)
    panel(figure.subplots(), summary, key)
    return figure


def _shared_tau(summary: Summary, name: str) -> str:
    values = {task.get(name) for task in summary.tasks}
    return percent(values.pop()) if len(values) == 1 else percent(None)


def _only(values: Iterable[int | None]) -> int | None:
    """The one value that there is; None where there are none or several."""
    known = {value for value in values if value is not None}
    return known.pop() if len(known) == 1 else None
