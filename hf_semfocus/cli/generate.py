"""`semfocus generate`: write a task's data to a folder: parquet or JSON lines, with a data set card."""

import argparse
from typing import Any

from .parsing import add_command, add_import, add_sizes, described, integer, path
from .terminal import console


def add_parser(commands: Any) -> None:
    """Adds `generate`."""
    example = "semfocus generate listops --length 100-200 --train-size 1000 --output data/listops"
    parser = add_command(commands, *described(__doc__), example, run)
    add = parser.add_argument
    add("task", help="see `semfocus tasks`")
    add("--output", type=path, required=True, help="the folder to make; it appears only when it is complete")
    add("--format", default="parquet", help="parquet or jsonl")
    add("--overwrite", action="store_true", help="replace an earlier result of this command")
    add_sizes(parser)
    add_import(parser)
    add("--length-splits", nargs="+", type=integer, metavar="N", help="further test splits of these lengths")
    add("--seed", type=int, help="another seed gives other rows (default: 0)")
    add("--pooling", help="mean, cls ([CLS] in front) or last (default: mean)")
    add("--answer", help="of stack_manipulation: stack, or top for one label (default: stack)")
    add("--allow-duplicates", action="store_true", default=None, help="a split may hold an input twice")


def run(options: argparse.Namespace) -> int:
    """Writes the splits, with a bar each."""
    from rich.progress import TaskID

    from ..data import generate
    from ..data.options import OPTION_NAMES, check_options, parse_length
    from ..experiments.imports import import_strategies
    from .progress import share_bar

    import_strategies(options.imports)
    asked = {name: value for name, value in vars(options).items() if name in OPTION_NAMES and value is not None}
    if options.length is not None:
        asked["length"] = parse_length(options.length)
    checked = check_options(options.task, asked)
    out = console()
    with share_bar(out) as bars:
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
