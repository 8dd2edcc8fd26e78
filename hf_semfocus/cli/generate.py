"""`semfocus generate`: a task's data in a folder."""

import argparse
from typing import Any

from .parsing import add_command, add_import, add_sizes, integer, path
from .terminal import console


def add_parser(commands: Any) -> None:
    """Adds `generate`."""
    parser = add_command(
        commands,
        "generate",
        "write a task's data to a folder: parquet or JSON lines, with a data set card",
        "semfocus generate listops --length 100-200 --train-size 1000 --output data/listops",
        run,
    )
    parser.add_argument("task", help="see `semfocus tasks`")
    parser.add_argument(
        "--output", type=path, required=True, help="the folder to make; it appears only when it is complete"
    )
    parser.add_argument("--format", default="parquet", help="parquet or jsonl")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier result of this command")
    add_sizes(parser)
    add_import(parser)
    parser.add_argument(
        "--length-splits", nargs="+", type=integer, metavar="N", help="further test splits of these lengths"
    )
    parser.add_argument("--seed", type=int, help="another seed gives other rows (default: 0)")
    parser.add_argument("--pooling", help="mean, cls ([CLS] in front) or last (default: mean)")
    parser.add_argument("--answer", help="of stack_manipulation: stack, or top for one label (default: stack)")
    parser.add_argument(
        "--allow-duplicates", action="store_true", default=None, help="a split may hold an input twice"
    )


def run(options: argparse.Namespace) -> int:
    """Writes the splits, with a bar each."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    from ..data import generate
    from ..data.options import OPTION_NAMES, check_options, parse_length
    from ..experiments.imports import import_strategies

    import_strategies(options.imports)
    asked = {name: value for name, value in vars(options).items() if name in OPTION_NAMES and value is not None}
    if options.length is not None:
        asked["length"] = parse_length(options.length)
    checked = check_options(options.task, asked)
    out = console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out, disable=not out.is_interactive) as bars:
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
    out.print(f"{options.task}: {rows} rows", highlight=False, soft_wrap=True)
    out.print(f"data: {folder}", highlight=False, soft_wrap=True)
    return 0
