"""The tables of `semfocus bench`."""

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Column, Table

from ..bench.cases import GOALS_HOLD_FOR
from ..bench.implementations import IMPLEMENTATIONS
from ..data.bench import DataSpeed

DISTURBED_FROM = 0.15
"""Cores that other processes may keep busy during a case before it is called disturbed."""
OTHERS = tuple(name for name in IMPLEMENTATIONS if name != "ours")
FASTEST = "fastest dense"  # in the same memory as dense attention, or in that of its scores: shown by its time alone


def print_result(result: dict[str, Any], console: Console) -> None:
    """All tables of a run of `bench attention`."""
    first, machine = result["rows"][0], result["machine"]
    heads = "1 head" if first["heads"] == 1 else f"{first['heads']} heads"
    where = machine.get("gpu", machine["processor"]) if first["device"] == "cuda" else machine["processor"]
    with_ = ", ".join(f"{name} {number}" for name, number in result["versions"].items() if name != "hf-semfocus")
    threads = "1 thread" if first["threads"] == 1 else f"{first['threads']} threads"
    counts = sorted({row["rounds"] for row in result["rows"] if row["rounds"]})
    rounds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    console.print(
        f"forward + backward, {first['dtype']}, head dim {first['dim']}, {heads}, {first['device']} ({where}), {threads}, "
        f"{with_}; medians of {rounds} interleaved rounds, in brackets the quartiles of the rounds' ratios",
        highlight=False,
    )
    for line in _beside_other_work(result["rows"]):
        console.print(line, highlight=False)
    console.print()
    if result["goals"]:
        console.print(goal_table(result["goals"]))
    else:
        where = f"{GOALS_HOLD_FOR.threads} threads, {GOALS_HOLD_FOR.dtype}, head dim {GOALS_HOLD_FOR.dim}, {GOALS_HOLD_FOR.heads} head"
        console.print(
            f"no goals for these cases (there are some for {where} on {GOALS_HOLD_FOR.device})", highlight=False
        )
    console.print()
    console.print(time_table(result["rows"]))
    console.print()
    console.print(memory_table(result["rows"]))


def _beside_other_work(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A line on what other processes took of the machine, where that is known."""
    ours = [row for row in rows if row["implementation"] == "ours" and row["others_cores"] is not None]
    disturbed = [row for row in ours if row["others_cores"] > DISTURBED_FROM]
    if disturbed:
        named = ", ".join(
            f"{row['mask']} {row['batch']}x{row['length']} ({row['others_cores']:.1f} cores)" for row in disturbed
        )
        return [f"disturbed by other processes, so not to be relied on: {named}"]
    return [f"other processes kept at most {max(row['others_cores'] for row in ours):.2f} cores busy"] if ours else []


def goal_table(goals: Sequence[dict[str, Any]]) -> Table:
    """A row a goal: what was asked for, what was measured, and whether it is met."""
    table = _table("goals", "ours over", "asked for", "measured", "", left=2)
    for goal in goals:
        asked = f"≤ {goal['goal']:g}"
        measured = "–" if goal["measured"] is None else _ratio(goal["measured"], 3)
        if goal["low"] is not None:
            measured += f" ({_ratio(goal['low'], 3)}–{_ratio(goal['high'], 3)})"
        over = f"{goal['against']}, {goal['quantity']}"
        table.add_row(goal["mask"], goal["shape"], over, asked, measured, goal["verdict"])
    return table


def time_table(rows: Sequence[dict[str, Any]]) -> Table:
    """A row a case: milliseconds of each implementation, and ours over each; of the fastest dense one the ratio alone."""
    headings = [
        part
        for name in OTHERS
        for part in (["ours /\nfastest"] if name == FASTEST else [_heading(name, rows), "ours /\nthat"])
    ]
    table = _table("time, ms", "ours", *headings)
    for case in _by_case(rows):
        cells = [_digits(case["ours"]["median_ms"])]
        for name in OTHERS:
            row = case[name]
            ratio = row["ours_over_this_time"]
            if name != FASTEST:
                cells.append(_digits(row["median_ms"]) if ratio is not None else _why_not(row))
            cells.append("" if ratio is None else _ratio(ratio))
            if ratio is not None and name == "dense":
                low, high = (row[f"ours_over_this_time_{which}_quartile"] for which in ("first", "third"))
                cells[-1] += f" ({_ratio(low)}–{_ratio(high)})"
        table.add_row(case["ours"]["mask"], _shape(case), *cells)
    return table


def memory_table(rows: Sequence[dict[str, Any]]) -> Table:
    """A row a case: MiB that each implementation took at most beyond its inputs, and ours over each."""
    others = [name for name in OTHERS if name != FASTEST]
    headings = [part for name in others for part in (_heading(name, rows), "ours /\nthat")]
    table = _table("peak extra memory, MiB", "ours", *headings)
    for case in _by_case(rows):
        cells = [_digits(case["ours"]["peak_extra_bytes"], 2**20)]
        for name in others:
            row = case[name]
            ratio = row["ours_over_this_memory"]
            cells.append(_digits(row["peak_extra_bytes"], 2**20) if ratio is not None else _why_not(row))
            cells.append("" if ratio is None else _ratio(ratio))
        table.add_row(case["ours"]["mask"], _shape(case), *cells)
    return table


def profile_table(operators: Sequence[tuple[str, float, float]], most: int = 10) -> Table:
    """A row an operator: its calls and its CPU time without that of what it calls, in one forward and backward pass."""
    right = [Column(name, justify="right") for name in ("calls", "own CPU, ms", "share")]
    table = Table(Column("operator", overflow="fold"), *right, box=box.SIMPLE_HEAD)
    total = sum(milliseconds for *_, milliseconds in operators)
    for name, calls, milliseconds in operators[:most]:
        table.add_row(name, f"{calls:g}", f"{milliseconds:.2f}", f"{milliseconds / total:.1%}".replace("%", " %"))
    return table


def speed_table(speeds: list[DataSpeed]) -> Table:
    """A row a task: length, rows, examples a second, milliseconds an example, the goal and whether it is met."""
    names = ("length", "rows", "examples/s", "ms/example")
    right = [Column(name, justify="right", no_wrap=True) for name in names]
    table = Table(
        Column("task", no_wrap=True),
        *right,
        Column("goal", justify="right"),
        title="one core, from random words to the written Arrow file",
        box=box.SIMPLE_HEAD,
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


def _table(title: str, *headings: str, left: int = 0) -> Table:
    columns = [Column("mask", no_wrap=True), Column("B × L", no_wrap=True, justify="right")]
    for index, heading in enumerate(headings):
        columns.append(Column(heading, justify="left" if left and index in (0, len(headings) - 1) else "right"))
    return Table(
        *columns, title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False
    )


def _heading(name: str, rows: Sequence[dict[str, Any]]) -> str:
    text = {"mask-then-softmax": "mask,\nsoftmax", "x-transformers": "x-trans-\nformers"}.get(name, name)
    missing = all(row["note"] == "not installed" for row in rows if row["implementation"] == name)
    return f"{text}\nnot\ninstalled" if missing else text


def _why_not(row: dict[str, Any]) -> str:
    """A case that an implementation could have had, and did not get, says why; "not installed" stands in the heading."""
    return "–" if row["note"] in ("no such mask", "not installed") else row["note"]


def _by_case(rows: Sequence[dict[str, Any]]) -> list[dict[str, dict[str, Any]]]:
    cases: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in rows:
        cases.setdefault((row["mask"], row["batch"], row["length"]), {})[row["implementation"]] = row
    return list(cases.values())


def _shape(case: dict[str, dict[str, Any]]) -> str:
    return f"{case['ours']['batch']}x{case['ours']['length']}"


def _digits(value: float | None, unit: int = 1) -> str:
    if value is None:
        return "–"
    value /= unit
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _ratio(value: float, places: int = 2) -> str:
    return f"{value:.{places if value >= 0.1 else 3}f}"
