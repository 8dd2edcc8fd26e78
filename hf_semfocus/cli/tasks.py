"""`semfocus tasks`: list the tasks: level, vocabulary, labels, chance, an example."""

import argparse
from typing import TYPE_CHECKING, Any

from .parsing import add_command, add_import, described, path
from .terminal import console, made

if TYPE_CHECKING:
    from rich.table import Table


def add_parser(commands: Any) -> None:
    """Adds `tasks`."""
    parser = add_command(commands, *described(__doc__), "semfocus tasks", run)
    parser.add_argument("task", nargs="?", help="show one task in full")
    add_import(parser)
    parser.add_argument(
        "--pictures", type=path, metavar="DIR", help="also draw the example of each task into this folder"
    )


def run(options: argparse.Namespace) -> int:
    """Draws the pictures that are asked for, then prints."""
    from ..data import list_tasks
    from ..data.pictures import draw_example
    from ..experiments.imports import import_strategies

    import_strategies(options.imports)
    table = _task_table() if options.task is None else _one_task(options.task)
    out = console()
    folder = made(options.pictures)
    if folder is not None:
        for name in [options.task] if options.task else list_tasks():
            draw_example(name).savefig(folder / f"{name}.png", dpi=110, metadata={"Software": None})
    out.print(table)
    if folder is not None:
        out.print(f"pictures: {folder}", soft_wrap=True, highlight=False)
    return 0


def _one_task(name: str) -> "Table":
    from rich.table import Table
    from rich.text import Text

    from ..data import list_tasks, task_info

    info = task_info(name)
    table = Table("task", info.name, title=info.description)
    rows = {
        "level": info.level,
        "kind": info.kind.replace("_", " "),
        "vocabulary": " ".join(info.vocabulary),
        "labels": " ".join(info.labels),
        "chance": f"{info.chance:.3g}",
        "shortest length": str(info.min_length),
        "default length": _length(info.default_length),
        **({"kinds of answer": ", ".join(info.answers)} if info.answers else {}),
        "example": info.example_text,
        "its target": info.example_target,
        "in the paper's suite": "yes" if info.name in list_tasks("paper") else "no",
    }
    for key, value in rows.items():
        table.add_row(key, Text(value))
    return table


def _task_table() -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Column, Table
    from rich.text import Text

    from ..data import list_tasks, task_info

    # Narrow enough for 80 columns: the level is a heading, and the edges are not drawn.
    columns = (Column("task", no_wrap=True), "labels", "chance", "length", "example → target")
    table = Table(*columns, title="* the paper's suite of 8", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    paper, level = set(list_tasks("paper")), None
    for task in list_tasks():
        info = task_info(task)
        if info.level != level:
            level = info.level
            table.add_row(Text(level, style="bold"))
        table.add_row(
            f"  {task}*" if task in paper else f"  {task}",
            str(len(info.labels)),
            f"{info.chance:.3g}",
            _length(info.default_length),
            Text(f"{info.example_text} → {info.example_target}"),
        )
    return table


def _length(length: int | tuple[int, int]) -> str:
    return f"{length[0]}–{length[1]}" if isinstance(length, tuple) else str(length)
