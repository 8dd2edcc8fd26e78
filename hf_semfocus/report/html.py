"""`report.html`: one self-contained page (styles inside, pictures as data URIs, no links out), and the pictures as files."""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jinja2
from matplotlib.figure import Figure

from ..files import atomic_write, read_record
from ..summary_schema import RunEntry, Summary
from ..text import accuracy, epochs_text, length_text, number, percent, plural, seconds
from . import pictures
from .files import render_figure
from .findings import findings, headline
from .palette import DARK, LIGHT, Theme, mask_styles
from .spreadsheets import write_spreadsheets
from .tables import table_rows
from .theory import k_sweep, matched_picture, matched_sentences, prediction_picture, sentences, table
from .words import SEEDS_SHOWN, epochs_of, no_pair_text, pair_text, paired_seconds, speed_up_words


@dataclass(frozen=True)
class Picture:
    """A picture as the page shows it: the same drawing for light and for dark, as data URIs."""

    title: str
    light: str
    dark: str
    alt: str
    caption: str
    width: int
    height: int


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
    atomic_write(page, render(summary))
    return page


def render(summary: Summary) -> str:
    """The page as text. Everything that comes from the summary is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("hf_semfocus", "report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    runs = summary.runs
    found = findings(summary)
    rows = table_rows(summary)
    taus = (_shared_tau(summary, name) for name in ("tau", "heldout_tau"))
    return environment.get_template("report.html.jinja").render(
        s=summary,
        title=f"{summary.name or 'A comparison'}: learning under sparse attention",
        headline=headline(summary),
        findings=[(task.name, [f for f in found if f.task == task.name]) for task in summary.tasks],
        rows=rows,
        blind=any(row.sees_all is False for row in rows),
        many=any(entry.n_runs > SEEDS_SHOWN for entry in summary.aggregates),
        predicted=sentences(summary),
        matched=matched_sentences(summary),
        quantities=table(summary),
        k_sweep=k_sweep(summary),
        pictures=_pictures(summary),
        styles=mask_styles(summary.masks, summary.baseline),
        dark_baseline=DARK.baseline,
        tau=next(taus),
        heldout_tau=next(taus),
        budget=_only({run.budget for run in runs} - {None}),
        cut=_only({entry.restricted_at for entry in summary.speedups} - {None}),
        unfinished=sum(run.status == "unfinished" for run in runs),
        troubled=[run for run in runs if run.diverged or run.status in ("failed", "unfinished")],
        censored=[run for run in runs if run.status == "censored" and not run.diverged],
        outcome=outcome,
        accuracy=accuracy,
        seconds=seconds,
        plural=plural,
        length_text=length_text,
        speed_up_words=speed_up_words,
        pair_text=pair_text,
        no_pair_text=no_pair_text,
        epochs_text=epochs_text,
        paired_seconds=paired_seconds,
    )


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
        pictures.dispersion,
        "Dispersion and speed-up",
        "Spread of the attention scores that the mask keeps, over the spread of all scores, in the trained models of that mask "
        "(means over queries, heads, layers and seeds), against the speed-up in epochs to τ training accuracy. A colour a mask, "
        "a shape a task; an arrow: only a bound of the speed-up is known, on the side it points to. Masks whose speed-up is "
        "undetermined are not drawn. A few points on a few tasks show no law.",
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
        "Norm of the loss's gradient on fixed held-out rows against the loss of the whole training split, which falls to the right: "
        "a line a pair and mask, over the losses that both runs of the pair went through. The ratios are in the section on the "
        "theory.",
    ),
}  # fmt: skip


def _pictures(summary: Summary) -> list[Picture]:
    made = []
    for name, (draw, title, caption) in PICTURES.items():
        light, dark = draw(summary, LIGHT), draw(summary, DARK)
        if light is None or dark is None:
            continue
        width, height = (round(96 * inches) for inches in light.get_size_inches())
        made.append(Picture(title, _data_uri(light), _data_uri(dark), _alt(name, summary), caption, width, height))
    return made


def _alt(name: str, summary: Summary) -> str:
    """What a reader who does not see the picture must know: the same numbers in words."""
    if name == "curves":
        parts = [
            f"{entry.task} {entry.mask}: training τ at {epochs_of(summary.runs_of(entry.task, entry.mask), 'train', 10**6)}, "
            f"held-out {accuracy(entry.final_heldout_mean)} at the end"
            for entry in summary.aggregates
        ]
        return "Line charts of accuracy against epochs. " + "; ".join(parts) + "."
    if name == "speedups":
        parts = [
            f"{entry.task} {entry.mask} {'training' if entry.quantity == 'train' else 'held-out'}: {speed_up_words(entry)}"
            for entry in summary.speedups
        ]
        return "Bar chart of speed-ups. " + "; ".join(parts) + "."
    if name == "predictions":
        parts = [
            f"{unit.task} {unit.mask}: speed-up {number(unit.speedup)}, dispersion ratio "
            f"{number(unit.get('dispersion_ratio'))}, separation {number(unit.get('separation'))}"
            for unit in (summary.analysis.units if summary.analysis else [])
        ]
        return "Scatter charts of speed-up against the theory's quantities. " + "; ".join(parts) + "."
    if name == "matched":
        said = [text for _, text in matched_sentences(summary) if text.startswith("At the same training loss, is")]
        return "Line charts of gradient norm against training loss. " + " ".join(said)
    words = {"exact": "", "more": "at least ", "less": "at most "}
    parts = [
        f"{point['task']} {point['mask']}: dispersion ratio {point['ratio']:.2f}, "
        f"speed-up {words[point['kind']]}{point['speedup']:.2g}"
        for point in pictures.dispersion_points(summary)
    ]
    return "Scatter chart of dispersion ratio against speed-up. " + "; ".join(parts) + "."


def _shared_tau(summary: Summary, name: str) -> str:
    values = {task.get(name) for task in summary.tasks}
    return percent(values.pop()) if len(values) == 1 else percent(None)


def _only(values: set[int]) -> int | None:
    """The one value that there is; None where there are none or several."""
    return values.pop() if len(values) == 1 else None


def _data_uri(figure: Figure) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(render_figure(figure, "svg")).decode("ascii")
