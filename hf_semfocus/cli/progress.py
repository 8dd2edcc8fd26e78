"""What long work looks like in a terminal: bars where one can redraw, a line an event elsewhere (a log, CI, TERM=dumb)."""

from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

MOST_BARS = 16  # of runs at work: a cluster has more of them than a terminal has lines


def _percent(value: float | None) -> str:
    return "    –" if value is None else f"{value:5.3f}"


def accuracies(entry: Any) -> str:
    """The two accuracies of a history entry, which may be None: "train 0.912  held-out 0.887"."""
    entry = entry or {}
    train = entry.get("train_accuracy")
    if train is None:  # not measured: what the epoch's steps saw
        train = entry.get("running_accuracy")
    return f"train {_percent(train)}  held-out {_percent(entry.get('heldout_accuracy'))}"


def share_bar(console: Console) -> Progress:
    """Bars of shares of 1, which go when the work is done."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    return Progress(
        *columns, TimeRemainingColumn(), console=console, disable=not console.is_interactive, transient=True
    )


class _Bars:
    """Bars of epochs or runs, each with two accuracies beside it."""

    def __init__(self, console: Console, width: int = 40) -> None:
        self.console = console
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=width),
            MofNCompleteColumn(),
            TextColumn("{task.fields[accuracies]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_interactive,
        )

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *exception) -> None:
        self.progress.stop()


class EpochBar(_Bars):
    """The bar of one run: its epoch, training and held-out accuracy.

    Args:
        name: what runs.
        epochs: the budget.
        console: where to; without a terminal each epoch is a line.
    """

    def __init__(self, name: str, epochs: int, console: Console):
        super().__init__(console)
        self.name, self.epochs = name, epochs
        self.bar = self.progress.add_task(name, total=epochs, accuracies=accuracies(None))

    def update(self, entry: Any) -> None:
        """Shows an epoch's history entry."""
        self.progress.update(self.bar, completed=entry["epoch"], accuracies=accuracies(entry))
        if not self.console.is_interactive:
            self.console.print(
                f"{self.name}  epoch {entry['epoch']}/{self.epochs}  {accuracies(entry)}", soft_wrap=True
            )


class ComparisonBars(_Bars):
    """The bars of a comparison: one for all runs, one for each that is at work; a line for each that ended.

    Args:
        total: how many runs there are.
        console: where to; without a terminal only the lines.
    """

    def __init__(self, total: int, console: Console):
        super().__init__(console, width=24)
        self.all = self.progress.add_task("[bold]runs", total=total, accuracies="")
        self.bars: dict[str, TaskID] = {}
        self.ended: set[str] | None = None

    def update(self, standing) -> None:
        """Shows the state of every run (`comparison.compare.Progress`)."""
        ended = {row.unit.name for row in standing if row.state not in ("waiting", "running")}
        if self.ended is None:  # at the first look: what an earlier start has done
            self.ended = {row.unit.name for row in standing if row.state in ("reached", "censored", "diverged")}
            if self.ended:
                self.console.print(
                    f"{len(self.ended)} of {len(standing)} runs were finished before and are not repeated"
                )
            longer = sum(
                row.unit.name in self.ended and row.entry["epoch"] > row.unit.training.epochs for row in standing
            )
            if longer:
                self.console.print(
                    f"{longer} of them had more epochs than the budget that is now asked for, and are kept as they are"
                )
            if restarted := sum(row.restarted for row in standing):
                self.console.print(
                    f"{restarted} of {len(standing)} runs have epochs and no checkpoint to go on from: they start again at epoch 1"
                )
        self.progress.update(self.all, completed=len(ended))
        for row in standing:
            name, label = row.unit.name, f"{row.unit.task} {row.unit.label} seed {row.unit.seed}"
            if row.state == "running":
                if name not in self.bars and len(self.bars) < MOST_BARS:
                    self.bars[name] = self.progress.add_task(
                        label, total=row.unit.training.epochs, accuracies="starting"
                    )
                if row.entry and name in self.bars:
                    self.progress.update(
                        self.bars[name], completed=row.entry["epoch"], accuracies=accuracies(row.entry)
                    )
            elif name in ended and name not in self.ended:
                self.ended.add(name)
                if name in self.bars:
                    self.progress.remove_task(self.bars.pop(name))
                self.console.print(_line(label, row), soft_wrap=True, highlight=False)


def _line(label: str, row) -> Text:
    colours = {"reached": "green", "censored": "yellow", "diverged": "red", "failed": "red"}
    state = Text(f"{row.state:9}", colours[row.state])
    if row.state == "failed":
        return state + f" {label}: {row.error}"
    when = f"at epoch {row.reached_at}, " if row.reached_at else ""
    return (
        state
        + f" {label}: {when}{row.entry['epoch']} epochs trained, {accuracies(row.entry)}, {row.entry['seconds']:.0f} s"
    )
