"""What the commands' parsers share.

argparse, and neither HfArgumentParser nor typer: `--help` and a mistyped option must answer at once, without torch and Transformers;
and `--masks full topk:5` takes several values after one flag. No command's file imports more than the standard library at its top.
"""

import argparse
import difflib
import re
from collections.abc import Callable
from typing import Any, NoReturn

RUN = "run."
"""In front of the `dest` of an option that is short for `--set FIELD=VALUE`: the field's dotted name follows."""


class Parser(argparse.ArgumentParser):
    """Ends with one line and exit code 2; a mistyped option gets the nearest known one."""

    def __init__(self, **options: Any):
        # --mask would be taken for --masks.
        super().__init__(**options, formatter_class=_Formatter, allow_abbrev=False)

    def parse_known_args(self, args=None, namespace=None):
        """As argparse's, but what is left over is an error here, where the nearest option is known."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            option = unknown[0].partition("=")[0]
            known = self._option_string_actions if option.startswith("-") else ()
            near = difflib.get_close_matches(option, known, n=1)
            self.error(f"unknown argument {unknown[0]!r}" + (f"; did you mean {near[0]}?" if near else ""))
        return options, unknown

    def error(self, message: str) -> NoReturn:
        """One line instead of the usage and a line."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


class _Formatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Defaults beside each option, and the example as it was written."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default in (None, False, []) else super()._get_help_string(action)


def add_command(
    commands: Any, name: str, text: str, example: str, run: Callable[[argparse.Namespace], int] | None = None
) -> Parser:
    """A command's parser; `run` is called with its options and returns the exit code."""
    parser = commands.add_parser(name, help=text, description=text, epilog=f"example:\n  {example}")
    parser.set_defaults(run=run)
    return parser


def described(doc: str | None) -> tuple[str, str]:
    """Name and text of a command, from the first line of its file: "`semfocus report`: make the report again."."""
    name, text = re.findall(r"`semfocus (\w+)`: (.*)\.", doc or "")[0]
    return name, text


def place(text: str) -> str:
    """The type of a folder's name, or its URL."""
    from ..comparison.bucket import checked_place

    if not text:
        raise argparse.ArgumentTypeError("the name is empty")
    try:
        return checked_place(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def path(text: str) -> str:
    """The type of a file's or folder's name."""
    from ..comparison.bucket import is_url

    if is_url(found := place(text)):
        raise argparse.ArgumentTypeError(f"{text} is a URL; allowed: a file or folder of this machine")
    return found


def one(text: str) -> str:
    """The type of one of several values."""
    if "," in text:
        several = " ".join(re.split(", *", text))
        raise argparse.ArgumentTypeError(f"{text!r} has a comma; give several as separate arguments: {several}")
    return text


def integer(text: str) -> int:
    """The type of one of several numbers."""
    return int(one(text))


def setting(text: str) -> str:
    """The type of KEY=VALUE."""
    if not re.match(r"\w[\w.]*=", text):
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: KEY=VALUE, such as model.hidden_act=gelu")
    return text


def add_import(parser: argparse.ArgumentParser, dest: str = "imports") -> None:
    """`--import`."""
    text = "Python files or modules that register tasks or mask strategies of your own"
    parser.add_argument("--import", dest=dest, nargs="+", type=path, default=[], metavar="FILE", help=text)


def add_sizes(parser: argparse.ArgumentParser, prefix: str = "") -> None:
    """`--length` and the sizes of the splits, into `prefix` + field."""

    def add(flag: str, kind: Callable[[str], Any], text: str) -> None:
        name = flag.removeprefix("--").replace("-", "_")
        parser.add_argument(flag, dest=prefix + name, type=kind, metavar=name.upper(), help=text)

    add("--length", str, "length of the inputs: 40, or 500-600 for a range (default: the task's)")
    add("--train-size", int, "training examples (default: 5000)")
    add("--validation-size", int, "validation examples (default: 1000)")
    add("--test-size", int, "held-out examples (default: 2000)")


def add_field(parser: argparse.ArgumentParser, flag: str, field: str, text: str, **options: Any) -> None:
    """An option that is short for `--set FIELD=VALUE`."""
    metavar = options.pop("metavar", flag.removeprefix("--").replace("-", "_").upper())
    parser.add_argument(flag, dest=RUN + field, metavar=metavar, help=text, **options)


def add_run_options(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """The fields of `RunSpec` that have an option in each command that trains; the others are reached by --set.

    `default` is what the help says of them where their own defaults do not count.
    """
    add_import(parser, RUN + "imports")
    add_sizes(parser, RUN)
    add_field(parser, "--epochs", "training.epochs", "the budget in epochs (default: 100)", type=int)
    add_field(parser, "--optimizer", "training.optimizer", "sgd, adam or adamw (default: sgd)")
    add_field(parser, "--learning-rate", "training.learning_rate", "of the first epoch (default: 0.3)", type=float)
    add_field(parser, "--batch-size", "training.batch_size", "examples a step (default: 100)", type=int)
    add_field(parser, "--layers", "model.num_hidden_layers", "blocks of the encoder (default: 5)", type=int)
    text = "record the theory's quantities every so many epochs (alone: every epoch)"
    analysis: dict[str, Any] = {"nargs": "?", "type": int, "const": 1, "metavar": "EPOCHS"}
    add_field(parser, "--analysis", "training.analysis_every", text, **analysis)
    text = "store what the model attends to on a few held-out rows at about N epochs, for the report's slider"
    add_field(parser, "--snapshots", "training.snapshots", text, type=int, metavar="N")
    text = "report each epoch to trackio, tensorboard or wandb (default: none)"
    add_field(parser, "--report-to", "training.report_to", text, metavar="TRACKER")
    text = "any other field: model.hidden_act=gelu, model.attention_gain=auto, training.lr_decay=1.0, task_options.…"
    parser.add_argument("--set", nargs="+", type=setting, default=[], metavar="KEY=VALUE", help=text)
    for action in parser._actions if default else ():
        if action.dest.startswith(RUN) and action.help:
            action.help = re.sub(r"\(default: .*?\)", f"(default: {default})", action.help)


def asked(options: argparse.Namespace) -> dict[str, Any]:
    """The fields of `RunSpec` that the command line names, nested as there; --set goes over the others."""
    from ..experiments.options import nested

    named = {name.removeprefix(RUN): value for name, value in vars(options).items() if name.startswith(RUN)}
    return nested({name: value for name, value in named.items() if value not in (None, [])}, options.set)
