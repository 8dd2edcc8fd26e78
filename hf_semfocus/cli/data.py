"""The commands about data alone: `semfocus tasks`, `generate` and `bench data`."""

import argparse
import os
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from ..data import generate, list_tasks
from ..data.bench import DataSpeed, bench_data
from ..data.options import check_options
from ..data.pictures import draw_example
from ..data.tasks import get_task
from ..experiments.options import parse_length
from .listings import task_table


def run_tasks(options: argparse.Namespace, console: Console) -> int:
    """Lists the tasks, or shows one; with `--pictures`, draws their examples."""
    table = task_table(options.task)
    if options.pictures is not None:
        folder = Path(options.pictures)
        os.makedirs(os.path.realpath(folder), exist_ok=True)
        for name in [options.task] if options.task else list_tasks():
            draw_example(name).savefig(folder / f"{name}.png", dpi=110, metadata={"Software": None})
    console.print(table)
    if options.pictures is not None:
        console.print(f"pictures: {folder}", soft_wrap=True, highlight=False)
    return 0


def run_generate(options: argparse.Namespace, console: Console) -> int:
    """Writes a task's splits to a folder, with a bar a split."""
    asked = {
        name: getattr(options, name)
        for name in ("train_size", "validation_size", "test_size", "seed", "pooling", "answer")
        if getattr(options, name) is not None
    }
    if options.length is not None:
        asked["length"] = parse_length(options.length)
    if options.length_splits:
        asked["length_splits"] = options.length_splits
    if options.allow_duplicates:
        asked["allow_duplicates"] = True
    checked = check_options(options.task, asked)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_interactive) as bars:
        shown: dict[str, TaskID] = {}

        def progress(split: str, done: int, total: int) -> None:
            if split not in shown:
                shown[split] = bars.add_task(split, total=total)
            bars.update(shown[split], completed=done)

        folder = generate(
            options.task,
            options.output,
            file_format=options.format,
            overwrite=options.overwrite,
            progress=progress,
            command=options.command_line,
            **asked,
        )
    rows = ", ".join(f"{split} {size:,}" for split, size in checked.sizes)
    console.print(f"{options.task}: {rows} rows", highlight=False, soft_wrap=True)
    console.print(f"data: {folder}", highlight=False, soft_wrap=True)
    return 0


def run_bench_data(options: argparse.Namespace, console: Console) -> int:
    """Times every task's generator and prints the table."""
    for name in options.tasks or []:
        get_task(name)
    speeds = []
    with console.status("") as status:
        names = options.tasks or None
        for speed in bench_data(
            names, rows=options.rows, repeats=options.repeats, progress=lambda name: status.update(f"timing {name}")
        ):
            speeds.append(speed)
    console.print(speed_table(speeds))
    return 0


def speed_table(speeds: list[DataSpeed]) -> Table:
    """A row a task: length, rows, examples a second, milliseconds an example, the goal and whether it is met."""
    names = ("length", "rows", "examples/s", "ms/example")
    right = [Column(name, justify="right", no_wrap=True) for name in names]
    table = Table(
        Column("task", no_wrap=True),
        *right,
        Column("goal", justify="right"),
        title="one core, from random words to the written Arrow file",
        box=SIMPLE_HEAD,
        padding=0,  # all of it fits into 80 columns
        show_edge=False,
    )
    for speed in speeds:
        low, high = speed.length
        goal = "–"
        if speed.goal is not None:
            met = speed.examples_per_second >= speed.goal
            goal = f"{speed.goal:,} {'met' if met else 'missed'}"
        table.add_row(
            speed.task,
            str(low) if low == high else f"{low}–{high}",
            f"{speed.rows:,}",
            f"{speed.examples_per_second:,.0f}",
            f"{speed.milliseconds_per_example:.4f}",
            goal,
        )
    return table
