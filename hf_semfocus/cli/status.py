"""`semfocus status`: how far a comparison is, from any terminal that sees its folder or URL."""

import argparse
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .parsing import add_command, place
from .terminal import console

if TYPE_CHECKING:
    from ..comparison.records import ProgressRecord

SILENT_SECONDS = 60
SHOWN_RUNS = 20


def add_parser(commands: Any) -> None:
    """Adds `status`."""
    text = "say how far a comparison is, from any terminal"
    parser = add_command(commands, "status", text, "semfocus status runs/quickstart", run)
    parser.add_argument("directory", type=place, help="the --output of `semfocus compare`: a folder or a URL")


def run(options: argparse.Namespace) -> int:
    """Prints what the comparison at work, or the last one, has written down."""
    from ..comparison.records import ProgressRecord
    from ..comparison.storage import PROGRESS, open_store

    store, out = open_store(options.directory, required=True), console()
    for line in _lines(store.told(PROGRESS, ProgressRecord), store.folder):
        out.print(line, soft_wrap=True, highlight=False)
    return 0


def _counted(folder: Path) -> Counter[str]:
    """The states of the runs themselves."""
    from ..comparison.run_directory import RunDirectory

    return Counter("waiting" if run.status == "unfinished" else run.status for run in RunDirectory.read(folder).runs)


def _lines(told: "ProgressRecord | None", folder: Path) -> list[str]:
    silent = 0.0 if told is None else (datetime.now(UTC) - told.updated).total_seconds()
    if told is None or told.ended or silent > SILENT_SECONDS:  # the runs themselves: some may have been removed since
        states: dict[str, int] = _counted(folder)
        runs = sum(states.values())
    else:
        states, runs = told.states, told.runs
    done = sum(count for state, count in states.items() if state not in ("waiting", "running"))
    parts = [f"{count} {state}" for state, count in sorted(states.items()) if count]
    lines = [f"{done} of {runs} runs done ({', '.join(parts)})"]
    if told is None or told.ended:
        return [*lines, *(["the same `semfocus compare` goes on"] if done < runs else [])]
    if silent > SILENT_SECONDS:
        return [*lines, f"no word from the comparison for {duration(silent)}: the same `semfocus compare` goes on"]
    left = told.seconds_left
    lines.append(f"estimated time left: {'not known yet' if left is None else duration(left)}")
    lines += [f"{node}: {count} running" for node, count in sorted(told.nodes.items())]
    for row in told.running[:SHOWN_RUNS]:
        lines.append(f"  {row.run}  epoch {row.epoch or 0}/{row.of}  on {row.node}")
    more = len(told.running) - SHOWN_RUNS
    return [*lines, *([f"  … and {more} more"] if more > 0 else [])]


def duration(seconds: float) -> str:
    """In the unit that matters."""
    minutes, hours, days = round(seconds / 60), round(seconds / 3600), round(seconds / 86400)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{hours} h" if hours < 72 else f"{days} days"
