"""`semfocus report`: the summary, the pictures and report.html of a comparison."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .parsing import add_command, path
from .terminal import console

if TYPE_CHECKING:
    from rich.console import Console

    from ..summary_schema import Summary


def add_parser(commands: Any) -> None:
    """Adds `report`."""
    text = "make the summary, the pictures and report.html again"
    parser = add_command(commands, "report", text, "semfocus report runs/quickstart", run)
    parser.add_argument("directory", type=path, help="a run directory of `semfocus compare`")


def run(options: argparse.Namespace) -> int:
    """Writes them, then prints the table."""
    from ..comparison.summary import write_summary
    from ..report.html import write_report

    folder = Path(options.directory)
    summary = write_summary(folder)
    show(summary, write_report(folder, summary), console())
    return 0


def show(summary: "Summary", page: Path, out: "Console") -> None:
    """Prints the table of a summary, and where its report is."""
    from ..report.tables import terminal_table

    out.print(terminal_table(summary))
    out.print(f"report: {page}", soft_wrap=True, highlight=False)
