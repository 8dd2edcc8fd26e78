"""`report.html`: one self-contained page (styles, script and pictures inside, no links out), and the pictures as files."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..files import atomic_write, read_record
from ..summary_schema import RunEntry, SpeedUpEntry, Summary
from ..text import accuracy, epochs_text, length_text, percent, plural, seconds
from . import pictures
from .files import render_figure
from .findings import Finding, findings, headline
from .inline_svg import inline_svg
from .palette import LIGHT, Theme, mask_styles
from .snapshots import snapshots
from .spreadsheets import write_spreadsheets
from .tables import Row, table_rows
from .theory import k_sweep, matched_sentences, sentences, table
from .theory_pictures import matched, matched_panel, matched_picture, predicted, predicted_panel, prediction_picture
from .words import INTERVALS, no_pair_text, pair_text, paired_seconds

FEW = 6  # comparisons that one sentence can tell


@dataclass(frozen=True)
class Entry:
    """A task and mask on the page.

    Args:
        row: its numbers as text.
        finding: what they mean; None for the baseline, and where there is no speed-up.
        speedups: the summary's speed-ups, "train" and "heldout", as far as there are some.
        verdict: "faster", "slower" (each with `sure` where the interval excludes 1), "undecided" or "none".
        short: the speed-up in a few characters.
        order: what the table is sorted by, of each column.
    """

    row: Row
    finding: Finding | None
    speedups: Mapping[str, SpeedUpEntry]
    verdict: str
    sure: bool
    short: str
    order: Mapping[str, float | None]


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
    entries = _entries(summary)
    taus = (_shared_tau(summary, name) for name in ("tau", "heldout_tau"))
    return environment.get_template("report.html.jinja").render(
        s=summary,
        title=f"{summary.name or 'A comparison'}: learning under sparse attention",
        sentence=_sentence(summary, entries),
        entries=entries,
        cells={(entry.row.task, entry.row.mask): entry for entry in entries},
        forest=_forest([entry for entry in entries if entry.finding]),
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


def _entries(summary: Summary) -> list[Entry]:
    """Every task and mask, with all that the page says of it."""
    found = {(finding.task, finding.mask): finding for finding in findings(summary)}
    speedups: dict[tuple[str, str], dict[str, SpeedUpEntry]] = {}
    for entry in summary.speedups:
        speedups.setdefault((entry.task, entry.mask), {})[entry.quantity] = entry
    aggregates = {(entry.task, entry.mask): entry for entry in summary.aggregates}
    entries = []
    for row in table_rows(summary):
        key = row.task, row.mask
        finding, own = found.get(key), speedups.get(key, {})
        verdict = "none"
        if finding and finding.verdict != "no pair":
            verdict = {"open": "undecided"}.get(finding.verdict, finding.verdict.partition(" ")[0])
        speed = own.get("train")
        order = {
            "epochs": _median_epochs(summary, *key),
            "speed": _middle(speed) if speed else None,
            "heldout": aggregates[key].final_heldout_mean,
        }
        sure = bool(speed and speed.interval_kind in INTERVALS and finding and finding.verdict in ("faster", "slower"))
        entries.append(Entry(row, finding, own, verdict, sure, _short(speed), order))
    return entries


def _median_epochs(summary: Summary, task: str, mask: str) -> float | None:
    """Median epochs to τ, a censored run as if it had never got there."""
    epochs = sorted(
        run.epochs_to_tau or math.inf
        for run in summary.runs
        if (run.task, run.mask) == (task, mask) and run.epochs_trained and run.status != "failed"
    )
    middle = epochs[len(epochs) // 2] if epochs else None
    return 1e9 if middle == math.inf else middle


def _middle(entry: SpeedUpEntry) -> float | None:
    return entry.estimate or entry.low or entry.high


def _short(entry: SpeedUpEntry | None) -> str:
    """`3.0×`, `≥2.1×`, `≤0.5×`, `?`; "–" without a pair. Bounds are rounded outwards."""
    if entry is None or not entry.n_pairs:
        return "–"
    if entry.estimate is not None:
        return f"{_two_digits(entry.estimate)}×"
    low, high = entry.low or None, entry.high
    if low and high:
        return f"{_two_digits(low, math.floor)}–{_two_digits(high, math.ceil)}×"
    return f"≥{_two_digits(low, math.floor)}×" if low else f"≤{_two_digits(high, math.ceil)}×" if high else "?"


def _two_digits(value: float, to_whole: Callable[[float], int] = round) -> str:
    power = math.floor(math.log10(value)) - 1
    return f"{to_whole(round(value / 10.0**power, 6)) * 10.0**power:.{max(0, -power)}f}"


def _sentence(summary: Summary, entries: Sequence[Entry]) -> str:
    """What came out, in one sentence or two."""
    compared = [entry for entry in entries if entry.finding]
    baseline, seeds = summary.baseline, plural(len(summary.seeds), "seed")
    if not compared:
        return headline(summary)
    if len(compared) <= FEW:
        by_verdict: dict[str, list[Entry]] = {}
        for entry in compared:
            assert entry.finding
            by_verdict.setdefault({"open": "undecided"}.get(entry.finding.verdict, entry.finding.verdict), []).append(
                entry
            )
        one_task = len(summary.tasks) == 1
        said = [
            f"{verdict.capitalize()}: " + ", ".join(
                entry.row.mask + ("" if one_task else f" on {entry.row.task}")
                + (f" ({entry.short})" if entry.speedups["train"]["estimate"] is not None else "")
                for entry in own
            )
            for verdict, own in sorted(by_verdict.items())
        ]  # fmt: skip
        where = f"On {summary.tasks[0].name}, " if one_task else f"On {plural(len(summary.tasks), 'task')}, "
        return f"{where}with {seeds}, beside {baseline} attention. {'. '.join(said)}."
    count = Counter(entry.verdict for entry in compared)
    words = [f"{count[word]} {told}" for word, told in (("faster", "faster"), ("slower", "slower"),
             ("undecided", "undecided"), ("none", "without a pair")) if count[word]]  # fmt: skip
    text = (
        f"Of {len(compared)} comparisons with {baseline} attention ({plural(len(summary.masks) - 1, 'mask')}, "
        f"{plural(len(summary.tasks), 'task')}, {seeds}): {', '.join(words)}."
    )
    sure = [entry for entry in compared if entry.verdict == "faster" and entry.sure]
    if sure:
        best = max(sure, key=lambda entry: entry.order["speed"] or 0)
        text += f" Most: {best.row.mask} on {best.row.task}, {best.row.speed_up}."
    return text


def _forest(entries: Sequence[Entry]) -> dict[tuple[str, str], Markup]:
    """For each task and mask its speed-up as a small picture: one logarithmic axis for all, 1 in the middle."""
    known = [entry.speedups["train"] for entry in entries if "train" in entry.speedups]
    ends = [end for e in known for end in (e.estimate, e.low, e.high) if end]
    reach = math.log(max([2.0, *(max(end, 1 / end) for end in ends)])) * 1.15

    def place(value: float) -> float:
        return round(60 + 56 * max(-1.0, min(1.0, math.log(value) / reach)), 1)

    drawn_as = {}
    for entry in entries:
        speed = entry.speedups.get("train")
        marks = '<path class="one" d="M60 0V16"/>'
        if speed and speed.estimate is not None:
            if speed.interval_kind in INTERVALS and speed.low and speed.high:
                marks += f'<path class="range" d="M{place(speed.low)} 8H{place(speed.high)}"/>'
            marks += f'<circle cx="{place(speed.estimate)}" cy="8" r="4"/>'
        elif speed and (speed.low or speed.high):
            low, high = speed.low or None, speed.high
            start, end = place(low) if low else 3, place(high) if high else 117
            marks += f'<path class="range bound" d="M{start} 8H{end}"/>'
            marks += "" if low else '<path class="tip" d="M1 8l5-4v8z"/>'
            marks += "" if high else '<path class="tip" d="M119 8l-5-4v8z"/>'
        drawn_as[entry.row.task, entry.row.mask] = Markup(
            '<svg class="forest" viewBox="0 0 120 16" aria-hidden="true">' + marks + "</svg>"
        )
    return drawn_as


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
    figure = pictures.dispersion(summary)
    if figure is not None:
        words = "; ".join(
            f"{point['task']} {point['mask']}: dispersion ratio {point['ratio']:.2f}, speed-up {point['speedup']:.2g}"
            f"{'' if point['kind'] == 'exact' else ' (a bound)'}"
            for point in pictures.dispersion_points(summary)
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
