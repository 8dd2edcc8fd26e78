"""The comparison's table: the same rows on the terminal (rich), in Markdown (README, cards) and in `report.html`."""

import re
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..summary_schema import Aggregate, Summary, TaskEntry
from ..text import NONE, accuracy, length_text, percent, plural, reach_text, seconds
from .words import INTERVALS, Words, epochs_of, median_seconds_text, speed_up_words


@dataclass(frozen=True)
class Row:
    """What one mask did on one task, as text. Times are medians, accuracies means over the seeds.

    Args:
        task, mask: names, the mask as it was written.
        is_baseline: whether speed-ups are measured against this row.
        reach: how far information travels ("all", "±6 of 20 positions"); None where no run has ended.
        sees_all: False where some position cannot reach another; None where that is not known.
        epochs, heldout_epochs: epochs to τ and to held-out τ, a seed each in the order of the seeds, or their median.
        speed_up, heldout_speed_up: with interval or bounds.
        has_interval: whether it is an interval that stands beside the speed-up.
        heldout_end, heldout_best, heldout_range: held-out accuracy at the end, at its best, and lowest–highest at
            the end.
        common: training and held-out accuracy at the common epoch.
        chance, majority: of the task: what held-out accuracy is to be compared with.
        seconds_per_epoch, seconds_to_tau: seconds of training, without evaluation.
        troubles: diverged, failed or unfinished runs, in words; empty without.
    """

    task: str
    mask: str
    is_baseline: bool
    reach: str | None
    sees_all: bool | None
    epochs: str
    speed_up: Words
    has_interval: bool
    heldout_epochs: str
    heldout_speed_up: Words
    heldout_end: str
    heldout_best: str
    heldout_range: str
    common: str
    chance: str
    majority: str
    seconds_per_epoch: str
    seconds_to_tau: str
    troubles: str


def table_rows(summary: Summary) -> list[Row]:
    """The rows of a summary: tasks in their order, within a task the masks in theirs."""
    tasks = {task.name: task for task in summary.tasks}
    reaches = {(entry.task, entry.mask): entry for entry in summary.reach}
    speedups = {(entry.task, entry.mask, entry.quantity): entry for entry in summary.speedups}
    rows = []
    for entry in summary.aggregates:
        key = entry.task, entry.mask
        task, reach, is_baseline = tasks[entry.task], reaches.get(key), entry.mask == summary.baseline
        runs = summary.runs_of(*key)
        train, heldout = speedups.get((*key, "train")), speedups.get((*key, "heldout"))
        none = Words("baseline" if is_baseline else NONE)
        low, high = entry.final_heldout_min, entry.final_heldout_max
        rows.append(
            Row(
                task=entry.task,
                mask=entry.mask,
                is_baseline=is_baseline,
                reach=reach_text(reach) if reach else None,
                sees_all=reach.sees_all if reach else None,
                epochs=epochs_of(runs, "train"),
                speed_up=speed_up_words(train) if train else none,
                has_interval=train is not None and train.interval_kind in INTERVALS,
                heldout_epochs=epochs_of(runs, "heldout"),
                heldout_speed_up=speed_up_words(heldout) if heldout else none,
                heldout_end=accuracy(entry.final_heldout_mean),
                heldout_best=accuracy(entry.best_heldout_mean),
                heldout_range=f"{accuracy(low)}–{accuracy(high)}" if low != high else "",
                common=f"{accuracy(entry.train_accuracy_common)} / {accuracy(entry.heldout_accuracy_common)}",
                chance=accuracy(task.chance),
                majority=accuracy(task.majority_accuracy),
                seconds_per_epoch=seconds(entry.seconds_per_epoch),
                seconds_to_tau=median_seconds_text(runs, "train"),
                troubles=_troubles(entry),
            )
        )
    return rows


def terminal_table(summary: Summary) -> RenderableType:
    """A rich table for each task, and what a reader must know beside it (size, seeds, troubles, masks that cannot
    see).

    Example:
        >>> from rich.console import Console
        >>> Console().print(terminal_table(summary))  # doctest: +SKIP
    """
    parts: list[RenderableType] = []
    if summary.note:
        parts.append(Text(summary.note, style="italic"))
    rows = table_rows(summary)
    for task in summary.tasks:
        of_task = [row for row in rows if row.task == task.name]
        parts += [Text(), _task_table(task, of_task, summary)]
        parts += [Text(f"  ! {row.mask}: {row.troubles}", style="yellow") for row in of_task if row.troubles]
        blind = [row for row in of_task if row.sees_all is False]
        if blind:
            names = ", ".join(f"{row.mask} ({row.reach})" for row in blind)
            parts.append(Text(f"  ! cannot see the whole input: {names}; no benefit there may mean that", "yellow"))
    return Group(*parts)


def _task_table(task: TaskEntry, rows: list[Row], summary: Summary) -> Table:
    title = (
        f"{task.name} · length {length_text(task.length)} · {plural(len(summary.seeds), 'seed')} · "
        f"chance {accuracy(task.chance)} · majority {accuracy(task.majority_accuracy)}"
    )
    # Narrow enough for 80 columns: held-out speed-ups are left to the report, and only the epochs, of which there may be
    # many, take more where the terminal is wider.
    table = Table(
        title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False
    )
    tau = percent(task.tau)
    table.add_column("mask", no_wrap=True)
    table.add_column(f"epochs to\n{tau} training")
    table.add_column("speed-up", no_wrap=True)
    table.add_column("held-out\nend/best", no_wrap=True)
    table.add_column("s an\nepoch", justify="right", no_wrap=True)
    table.add_column(f"s to\n{tau}", justify="right", no_wrap=True)
    for row in rows:
        cells = (
            _folded(re.split("(?=[+;])", row.mask)),
            row.epochs,
            _speed_up(row),
            f"{row.heldout_end}/{row.heldout_best}",
            row.seconds_per_epoch,
            row.seconds_to_tau,
        )
        table.add_row(*map(Text, cells), style="dim" if row.is_baseline else None)
    return table


def _speed_up(row: Row) -> str:
    text, note = row.speed_up.text, row.speed_up.note
    # An interval stays in one piece.
    lines = [text if row.has_interval else _folded(re.split("(?<= )", text))]
    return "\n".join(lines + ([_folded(re.split("(?<= )", f"({note})"))] if note else []))


def _folded(pieces: list[str], width: int = 18) -> str:
    """The pieces joined, over as many lines as it takes for each line to have at most `width` characters."""
    lines = [""]
    for piece in pieces:
        if lines[-1] and len((lines[-1] + piece).rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines)


def markdown_table(summary: Summary) -> str:
    """The table in Markdown (GitHub's pipe tables), for the README and model cards."""
    common = {task.tau for task in summary.tasks}, {task.heldout_tau for task in summary.tasks}
    tau, heldout_tau = (percent(values.pop()) if len(values) == 1 else "τ" for values in common)
    header = (
        "task",
        "mask",
        "reach",
        f"epochs to {tau} training",
        "speed-up",
        f"epochs to {heldout_tau} held-out",
        "speed-up",
        "held-out end",
        "best",
        "chance",
        "majority",
        "s/epoch",
        f"s to {tau}",
    )
    lines = [header, ["---"] * len(header)]
    for row in table_rows(summary):
        lines.append(
            [
                row.task,
                f"`{row.mask}`",
                row.reach or NONE,
                row.epochs,
                str(row.speed_up),
                row.heldout_epochs,
                str(row.heldout_speed_up),
                row.heldout_end,
                row.heldout_best,
                row.chance,
                row.majority,
                row.seconds_per_epoch,
                row.seconds_to_tau,
            ]
        )
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def _troubles(entry: Aggregate) -> str:
    words = [f"{entry[f'n_{what}']} {what}" for what in ("diverged", "failed", "unfinished") if entry[f"n_{what}"]]
    return f"{', '.join(words)} of {entry.n_runs} runs" if words else ""
