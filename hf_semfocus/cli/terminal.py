"""Where the commands print and write: any stream, one process of several, no libraries' bars between ours."""

import codecs
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

# What stands for a character that the output's encoding lacks (a redirect on Windows, the C locale); any other becomes "?".
NEAREST = {"■": "#", "·": ".", "–": "-", "—": "-", "…": "...", "→": "->", "≤": "<=", "≥": ">=", "×": "x", "τ": "tau"}
TABLE_WIDTH = 80  # what every table fits into


def replace_what_streams_lack() -> None:
    """From now on no character ends the program because stdout or stderr cannot take it."""

    def nearest(error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeEncodeError)  # what a stream that is written to raises
        text = "".join(NEAREST.get(character, "?") for character in error.object[error.start : error.end])
        return text, error.end

    codecs.register_error("semfocus.nearest", nearest)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # None without a console; a notebook's own kind takes everything
            stream.reconfigure(errors="semfocus.nearest")


def console() -> "Console":
    """Standard output."""
    from rich.console import Console

    # Under `accelerate launch` every process runs this code; one of them speaks. No markup: brackets in paths and errors are text.
    console = Console(quiet=os.environ.get("RANK", "0") != "0", markup=False)
    # A log can be read at any width; what is cut off is lost.
    if not console.is_interactive and console.width < TABLE_WIDTH:
        console.width = TABLE_WIDTH
    return console


def text_of(show: "Callable[[Console], None]") -> str:
    """What `show` prints, as a file has it: 100 columns, no spaces at the end of a line."""
    from rich.console import Console

    text = io.StringIO()
    show(Console(file=text, width=100, markup=False))
    return "\n".join(line.rstrip() for line in text.getvalue().strip("\n").split("\n")) + "\n"


def made(folder: str | None) -> Path | None:
    """The folder, made before the work, so that one that cannot be written to is refused at once; links are followed."""
    if folder is not None:
        os.makedirs(os.path.realpath(folder), exist_ok=True)
    return None if folder is None else Path(folder)


def quiet_libraries() -> None:
    """Our bars show the work; the bars of a data set's preparation and of loading weights would break them."""
    import datasets
    from transformers.utils import logging

    datasets.disable_progress_bars()
    logging.disable_progress_bar()
    logging.set_verbosity_error()  # mtime order of checkpoints and the like: nothing a user can act on
