"""`semfocus report`: make the summary, the pictures and report.html again."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .parsing import add_command, described, place
from .terminal import console

if TYPE_CHECKING:
    from rich.console import Console

    from ..comparison.run_directory import RunDirectory
    from ..comparison.storage import Store


def add_parser(commands: Any) -> None:
    """Adds `report`."""
    parser = add_command(commands, *described(__doc__), "semfocus report runs/quickstart", run)
    parser.add_argument("directory", type=place, help="a run directory of `semfocus compare`, or its URL")


def run(options: argparse.Namespace) -> int:
    """Writes them, then prints the table."""
    from ..comparison.storage import open_store

    store = open_store(options.directory, required=True)
    show(store, store.folder, console())
    return 0


def show(store: "Store", directory: "RunDirectory | Path", out: "Console") -> None:
    """Makes the summary and the report of a comparison, prints the table, and says where the report is."""
    from ..comparison.summary import write_summary
    from ..report.html import write_report
    from ..report.tables import terminal_table

    summary = write_summary(directory)
    page = write_report(store.folder, summary)
    store.put_report()
    out.print(terminal_table(summary))
    out.print(f"report: {store.shown}/{page.name}", soft_wrap=True, highlight=False)
