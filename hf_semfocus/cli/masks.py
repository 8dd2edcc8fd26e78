"""`semfocus masks`: list the mask strategies, or draw one."""

import argparse
from typing import TYPE_CHECKING, Any

from .parsing import add_command, add_import, described
from .terminal import console

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

LONGEST = 500  # positions that are drawn
HEAD_DIM = 16  # of the random queries and keys that a mask is drawn for


def add_parser(commands: Any) -> None:
    """Adds `masks`."""
    parser = add_command(commands, *described(__doc__), "semfocus masks banded:5+global:1 --length 12", run)
    parser.add_argument("mask", nargs="?", help="a mask to draw: rows are queries, columns are keys")
    add_import(parser)
    parser.add_argument("--length", type=int, default=16, help="positions to draw")


def run(options: argparse.Namespace) -> int:
    """Prints the table, or the mask."""
    from ..experiments.imports import import_strategies

    import_strategies(options.imports)
    if not 1 <= options.length <= LONGEST:
        raise ValueError(f"length is {options.length}; allowed: 1 … {LONGEST}, to draw a mask")
    if options.mask is None:
        console().print(_mask_table(), highlight=False)
    else:  # a row that goes on in the next line is no picture
        console().print(_picture(options.mask, options.length), highlight=False, soft_wrap=True)
    return 0


def _mask_table() -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Column, Table
    from rich.text import Text

    from ..model.mask_strategies import list_mask_strategies, mask_strategy_class

    title = "join masks by + : topk:5+sink:1 keeps what either keeps"
    columns = (Column("mask", no_wrap=True), Column("depends on", no_wrap=True), "what it keeps, and its values")
    table = Table(*columns, title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for name in list_mask_strategies():
        cls = mask_strategy_class(name)
        names = list(cls.parameter_types)
        written = name + "".join(f":{key}" if not place else f";{key}=…" for place, key in enumerate(names))
        about = Text((cls.__doc__ or "").strip().splitlines()[0].replace("``", ""))
        for key in names:
            about.append(f"\n{key}: {cls.describe_parameter(key)}", style="dim")
        table.add_row(written, "scores" if cls.input_dependent else "a draw" if cls.redrawn else "positions", about)
    return table


def _picture(spec: str, length: int) -> "Text":
    """The kept keys (■) of each query, a row each; of random queries and keys where the mask depends on them."""
    import torch
    from rich.text import Text

    from ..model.mask_strategies import parse_mask

    mask = parse_mask(spec)
    query, key = torch.randn(2, 1, 1, length, HEAD_DIM, generator=torch.Generator().manual_seed(0))
    scores = query @ key.transpose(-1, -2) * HEAD_DIM**-0.5
    learnt = mask.make_state(HEAD_DIM, 1)
    state = None if learnt is None else learnt.read()
    keep = mask(scores, torch.ones(1, 1, 1, length, dtype=torch.bool), query, key, state=state)[0, 0]
    rows = "\n".join(" ".join("■" if kept else "·" for kept in row) for row in keep.tolist())
    about = " (for random queries and keys: it depends on the input)" if mask.input_dependent else ""
    about = about or (" (one draw: each call makes another)" if mask.redrawn else "")
    return Text(f"{mask}{about}: rows are queries, columns keys\n{rows}")
