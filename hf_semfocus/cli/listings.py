"""What `semfocus tasks` and `semfocus masks` show."""

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Column, Table
from rich.text import Text

from ..data import list_tasks, task_info
from ..model.mask_strategies import list_mask_strategies, mask_strategy_class, parse_mask

# Size of the random queries and keys that a mask is drawn for.
DRAWN_HEAD_DIM = 16


def task_table(name: str | None = None) -> Table:
    """All tasks, a row each; or one task in full."""
    paper = set(list_tasks("paper"))
    if name is not None:
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
            "in the paper's suite": "yes" if info.name in paper else "no",
        }
        for key, value in rows.items():
            table.add_row(key, Text(value))
        return table
    # Narrow enough for 80 columns: the level is a heading, and the edges are not drawn.
    columns = (Column("task", no_wrap=True), "labels", "chance", "length", "example → target")
    table = Table(*columns, title="* the paper's suite of 8", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    level = None
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


def _length(length) -> str:
    return f"{length[0]}–{length[1]}" if isinstance(length, tuple) else str(length)


def mask_table() -> Table:
    """All registered mask strategies."""
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


def drawn_mask(spec: str, length: int) -> Text:
    """The kept keys (■) of each query, a row each; a mask that depends on the input is drawn for random queries
    and keys."""
    if length < 1:
        raise ValueError(f"length is {length}; allowed: at least 1")
    mask = parse_mask(spec)
    query, key = torch.randn(2, 1, 1, length, DRAWN_HEAD_DIM, generator=torch.Generator().manual_seed(0))
    scores = query @ key.transpose(-1, -2) * DRAWN_HEAD_DIM**-0.5
    learnt = mask.make_state(DRAWN_HEAD_DIM, 1)
    state = None if learnt is None else learnt.read()
    keep = mask(scores, torch.ones(1, 1, 1, length, dtype=torch.bool), query, key, state=state)[0, 0]
    drawn = "\n".join(" ".join("■" if kept else "·" for kept in row) for row in keep.tolist())
    about = " (for random queries and keys: it depends on the input)" if mask.input_dependent else ""
    about = about or (" (one draw: each call makes another)" if mask.redrawn else "")
    return Text(f"{mask}{about}: rows are queries, columns keys\n{drawn}")
