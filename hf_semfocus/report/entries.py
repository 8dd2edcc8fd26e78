"""What the report's page shows of each task and mask: the row, its verdict, its speed-up as a small picture; and the sentence on top."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ..summary_schema import SpeedUpEntry, Summary
from ..text import plural
from .findings import DECIDES_NOTHING, ONE_PAIR, Finding, findings, headline
from .tables import Row, table_rows
from .words import INTERVALS

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


def entries_of(summary: Summary) -> list[Entry]:
    """Every task and mask, with all that the page says of it."""
    found = {(finding.task, finding.mask): finding for finding in findings(summary)}
    speedups: dict[tuple[str, str], dict[str, SpeedUpEntry]] = {}
    for entry in summary.speedups:
        speedups.setdefault((entry.task, entry.mask), {})[entry.quantity] = entry
    aggregates = {(entry.task, entry.mask): entry for entry in summary.aggregates}
    entries = []
    for row in table_rows(summary):
        key = row.task, row.mask
        finding, by_quantity = found.get(key), speedups.get(key, {})
        verdict = "none"
        if finding and finding.verdict != "no pair":
            verdict = {"open": "undecided"}.get(finding.verdict, finding.verdict.partition(" ")[0])
        speed = by_quantity.get("train")
        order = {
            "epochs": _median_epochs(summary, *key),
            "speed": _middle(speed) if speed else None,
            "heldout": aggregates[key].final_heldout_mean,
        }
        sure = bool(speed and speed.interval_kind in INTERVALS and finding and finding.verdict in ("faster", "slower"))
        entries.append(Entry(row, finding, by_quantity, verdict, sure, short(speed), order))
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


def short(entry: SpeedUpEntry | None) -> str:
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


def sentence_of(summary: Summary, entries: Sequence[Entry]) -> str:
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
                for entry in group
            )
            for verdict, group in sorted(by_verdict.items())
        ]  # fmt: skip
        said[-1] += f". {DECIDES_NOTHING}" if any(verdict in ONE_PAIR for verdict in by_verdict) else ""
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
    return text + (
        f" {DECIDES_NOTHING}." if any(e.finding and e.finding.verdict in ONE_PAIR for e in compared) else ""
    )


def forest_of(entries: Sequence[Entry]) -> dict[tuple[str, str], Markup]:
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
