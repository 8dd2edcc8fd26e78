"""`semfocus bench attention`: the benchmark's tables, files and bar."""

import argparse
import contextlib
import io
import os
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table

from ..bench.cases import GOALS_HOLD_FOR, Case, Setting, cases_of, parse_shape
from ..bench.implementations import IMPLEMENTATIONS, NotInstalledError, x_transformers
from ..bench.measure import Cost, bench_attention
from ..bench.profiling import CaseProfile, profile_attention
from ..bench.results import rows, table_of, verdicts
from ..experiments.imports import import_strategies
from ..files import atomic_write, write_json
from ..model.mask_registry import parse_mask
from ..products import use_fast_products
from ..report.cost_pictures import attention_cost
from ..report.files import render_figure
from ..training.environment import machine

WIDTH = 100
"""Columns of the tables in files."""
QUICK_ROUNDS = 3
DISTURBED_FROM = 0.15
"""Cores that other processes may keep busy during a case before it is called disturbed."""
OTHERS = tuple(name for name in IMPLEMENTATIONS if name != "ours")
FASTEST = "fastest dense"  # in the same memory as dense attention, or in that of its scores: told by its time alone


def run_bench_attention(options: argparse.Namespace, console: Console) -> int:
    """Measures ours beside the other implementations, prints the tables and writes the files of `--output`."""
    use_fast_products()
    import_strategies(options.imports)
    setting = Setting(options.heads, options.dim, options.dtype, options.device, options.threads)
    if options.profile is not None:
        return _profile(options, setting, console)
    shapes = None if options.shapes is None else [parse_shape(text) for text in options.shapes]
    cases = cases_of(options.masks, shapes, options.quick)
    rounds = QUICK_ROUNDS if options.quick and options.rounds is None else options.rounds
    folder = _made(options.output)
    measured = []
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_interactive, transient=True) as bars:
        bar = bars.add_task("", total=len(cases))

        def progress(index: int, done: float) -> None:
            bars.update(bar, completed=index + done, description=f"{cases[index].mask} {cases[index].shape}")

        for costs in bench_attention(cases, setting, rounds, progress):
            measured.append(costs)
    found = result(measured, setting, options.command_line)
    if folder is not None:
        text = io.StringIO()
        _print_result(found, Console(file=text, width=WIDTH))
        atomic_write(folder / "attention.txt", _trimmed(text.getvalue()))
        atomic_write(folder / "attention.csv", table_of(found["rows"]))
        write_json(folder / "attention.json", found)
        figure = attention_cost(found["rows"])
        if figure is not None:
            atomic_write(folder / "attention.png", render_figure(figure, "png"))
    try:
        x_transformers(parse_mask("full"), 1, torch.device(setting.device))
    except NotInstalledError as missing:
        console.print(f"{missing} adds its column", style="yellow", markup=False, highlight=False, soft_wrap=True)
    _print_result(found, console)
    if folder is not None:
        console.print(f"results: {folder}", soft_wrap=True, highlight=False)
    return 0


def result(measured: Sequence[dict[str, Cost]], setting: Setting, command: str) -> dict[str, Any]:
    """All of a run, as `attention.json` holds it: command, machine, versions, rows, goals."""
    versions = {"torch": torch.__version__, "hf-semfocus": version("hf-semfocus")}
    with contextlib.suppress(PackageNotFoundError):
        versions["x-transformers"] = version("x-transformers")
    here: dict[str, Any] = dict(machine())
    if setting.device == "cuda":
        here["gpu"] = torch.cuda.get_device_name()
    found = rows(measured, setting)
    return {
        "command": command,
        "machine": here,
        "versions": versions,
        "rows": found,
        "goals": verdicts(measured, setting),
    }


def _print_result(found: dict[str, Any], console: Console) -> None:
    first, machine = found["rows"][0], found["machine"]
    heads = "1 head" if first["heads"] == 1 else f"{first['heads']} heads"
    where = machine.get("gpu", machine["processor"]) if first["device"] == "cuda" else machine["processor"]
    with_ = ", ".join(f"{name} {number}" for name, number in found["versions"].items() if name != "hf-semfocus")
    threads = "1 thread" if first["threads"] == 1 else f"{first['threads']} threads"
    counts = sorted({row["rounds"] for row in found["rows"] if row["rounds"]})
    rounds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    console.print(
        f"forward + backward, {first['dtype']}, head dim {first['dim']}, {heads}, {first['device']} ({where}), {threads}, "
        f"{with_}; medians of {rounds} interleaved rounds, in brackets the quartiles of the rounds' ratios",
        highlight=False,
    )
    for line in _beside_other_work(found["rows"]):
        console.print(line, highlight=False)
    console.print()
    if found["goals"]:
        console.print(goal_table(found["goals"]))
    else:
        told = f"{GOALS_HOLD_FOR.threads} threads, {GOALS_HOLD_FOR.dtype}, head dim {GOALS_HOLD_FOR.dim}, {GOALS_HOLD_FOR.heads} head"
        console.print(
            f"no goals for these cases (there are some for {told} on {GOALS_HOLD_FOR.device})", highlight=False
        )
    console.print()
    console.print(time_table(found["rows"]))
    console.print()
    console.print(memory_table(found["rows"]))


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
        cells = [_milliseconds(case["ours"]["median_ms"])]
        for name in OTHERS:
            row = case[name]
            ratio = row["ours_over_this_time"]
            if name != FASTEST:
                cells.append(_milliseconds(row["median_ms"]) if ratio is not None else _why_not(row))
            cells.append("" if ratio is None else _ratio(ratio))
            if ratio is not None and name == "dense":
                low, high = (row[f"ours_over_this_time_{which}_quartile"] for which in ("first", "third"))
                cells[-1] += f" ({_ratio(low)}–{_ratio(high)})"
        table.add_row(case["ours"]["mask"], _shape(case), *cells)
    return table


def memory_table(rows: Sequence[dict[str, Any]]) -> Table:
    """A row a case: MiB that each implementation held at most beyond its inputs, and ours over each."""
    others = [name for name in OTHERS if name != FASTEST]
    headings = [part for name in others for part in (_heading(name, rows), "ours /\nthat")]
    table = _table("peak extra memory, MiB", "ours", *headings)
    for case in _by_case(rows):
        cells = [_mebibytes(case["ours"]["peak_extra_bytes"])]
        for name in others:
            row = case[name]
            ratio = row["ours_over_this_memory"]
            cells.append(_mebibytes(row["peak_extra_bytes"]) if ratio is not None else _why_not(row))
            cells.append("" if ratio is None else _ratio(ratio))
        table.add_row(case["ours"]["mask"], _shape(case), *cells)
    return table


def profile_table(found: CaseProfile) -> Table:
    """A row an operator: its calls and own CPU time in one forward and backward pass."""
    right = [Column(name, justify="right") for name in ("calls", "own CPU, ms", "share")]
    table = Table(Column("operator", overflow="fold"), *right, box=box.SIMPLE_HEAD)
    for operator in found.operators:
        table.add_row(
            operator.name, f"{operator.calls:g}", f"{operator.milliseconds:.2f}", f"{100 * operator.share:.1f} %"
        )
    return table


def _profile(options: argparse.Namespace, setting: Setting, console: Console) -> int:
    mask, shape = options.profile
    case = Case(mask, *parse_shape(shape))
    folder = _made(options.output)
    with console.status(f"profiling {mask} {shape}"):
        found = profile_attention(case, setting)

    def show(console: Console) -> None:
        console.print(f"$ {options.command_line}", highlight=False, soft_wrap=True, markup=False)
        console.print(
            f"one forward and backward pass, {setting.dtype}, head dim {setting.dim}, {setting.heads} head(s), "
            f"{setting.threads} thread(s), path {found.path!r}: {found.milliseconds:.1f} ms of CPU under the profiler",
            highlight=False,
        )
        console.print(profile_table(found))

    if folder is not None:
        text = io.StringIO()
        show(Console(file=text, width=WIDTH))
        atomic_write(folder / "attention_profile.txt", _trimmed(text.getvalue()))
    show(console)
    if folder is not None:
        console.print(f"profile: {folder / 'attention_profile.txt'}", soft_wrap=True, highlight=False)
    return 0


def _made(output: str | None) -> Path | None:
    """The folder, made before the minutes are spent, so that one that cannot be written to is said at once."""
    if output is None:
        return None
    folder = Path(output)
    os.makedirs(os.path.realpath(folder), exist_ok=True)
    return folder


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


def _milliseconds(value: float | None) -> str:
    return "–" if value is None else _digits(value)


def _mebibytes(value: int | None) -> str:
    return "–" if value is None else _digits(value / 2**20)


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _ratio(value: float, places: int = 2) -> str:
    return f"{value:.{places if value >= 0.1 else 3}f}"


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").split("\n")) + "\n"
