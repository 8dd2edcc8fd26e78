"""The command `semfocus`: parses, calls the command's `run`, and turns what a user can mend into one line and exit code 2."""

import argparse
import importlib
import os
import shlex
import signal
import sys
import threading
from collections.abc import Sequence
from importlib.metadata import version
from typing import NoReturn

from .errors import one_line
from .parsing import Parser
from .terminal import replace_what_streams_lack

COMMANDS = (
    "tasks", "masks", "generate", "train", "compare", "status", "report", "demo", "card", "analyze", "advise", "bench",
)  # fmt: skip
"""A file each, with `add_parser(commands)` and `run(options)`."""


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = Parser(
        prog="semfocus",
        description="Sparse self-attention, studied for how fast and how well a transformer learns.",
        epilog="example:\n  semfocus compare --preset quickstart --output runs/quickstart",
    )
    parser.add_argument("--version", action="version", version=f"semfocus {version('hf-semfocus')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    for name in COMMANDS:
        importlib.import_module(f".{name}", __package__).add_parser(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line and exits: 0 done, 1 a run of a comparison failed, 2 bad input, 130 interrupted, 143 terminated."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    replace_what_streams_lack()
    options = parser().parse_args(arguments)
    options.command_line = shlex.join(["semfocus", *arguments])
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _end)  # by an exit that workers and locks see; Python's own ends without one
    try:
        code = options.run(options)
    except KeyboardInterrupt:
        print("\nsemfocus: interrupted; the same command goes on from here", file=sys.stderr)
        code = 130
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except Exception as error:
        places = (getattr(options, name, None) for name in ("output", "directory", "pictures", "folder"))
        message = one_line(error, next((place for place in places if place), None))
        if message is None or os.environ.get("SEMFOCUS_TRACEBACK"):
            raise
        print(f"semfocus {options.command}: {message}", file=sys.stderr)
        code = 2
    sys.exit(code)


def _end(number: int, frame: object) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
