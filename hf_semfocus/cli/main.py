"""The command `semfocus`; its subcommands are in `_parser`. Bad input ends with one line and exit code 2."""

import argparse
import codecs
import difflib
import errno
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

# What only one command needs is imported inside it.

# Torch and safetensors raise plain RuntimeErrors (or types of their own) for what the machine lacks.
NO_MEMORY = ("can't allocate memory", "out of memory", "Storage size calculation overflowed")
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# What stands for a character that the output's encoding lacks (a redirect on Windows, the C locale); any other becomes "?".
NEAREST = {"■": "#", "·": ".", "–": "-", "—": "-", "…": "...", "→": "->", "≤": "<=", "≥": ">=", "×": "x", "τ": "tau"}
TABLE_WIDTH = 80  # what every table fits into
LONGEST_WORD = 400
LONGEST_DRAWN = 500


class _Parser(argparse.ArgumentParser):
    def __init__(self, **options: Any):
        # --mask would be taken for --masks.
        super().__init__(**options, allow_abbrev=False)

    def parse_known_args(self, args=None, namespace=None):
        """As argparse's, but what is left over is an error here, where the nearest option is known."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            option = unknown[0].partition("=")[0]
            near = (
                difflib.get_close_matches(option, self._option_string_actions, n=1) if option.startswith("-") else []
            )
            self.error(f"unknown argument {unknown[0]!r}" + (f"; did you mean {near[0]}?" if near else ""))
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """One line instead of the usage and a line."""
        if commas := re.search(r"invalid int value: '(-?\d+(?:,-?\d+)+,?)'", message):
            message += f"; several are arguments of their own: {commas[1].replace(',', ' ')}"
        self.exit(2, f"{self.prog}: {_shortened(message)} (see {self.prog} --help)\n")


class _Formatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Defaults beside each option, and the example as it was written."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default in (None, False, []) else super()._get_help_string(action)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line and exits: 0 done, 1 a run of a comparison failed, 2 bad input, 130 interrupted."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    _print_whatever_comes()
    options = _parser().parse_args(arguments)
    if getattr(options, "output", None) == "" or getattr(options, "directory", None) == "":
        print(f"semfocus {options.command}: the folder's name is empty", file=sys.stderr)
        sys.exit(2)
    if getattr(options, "config", None) == "":
        print(f"semfocus {options.command}: --config is empty; allowed: a YAML or JSON file", file=sys.stderr)
        sys.exit(2)
    for name, value in vars(options).items():
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, str) and "\0" in part:
                print(f"semfocus {options.command}: {name} is {part!r}; allowed: no NUL characters", file=sys.stderr)
                sys.exit(2)
            if name in ("tasks", "masks", "shapes") and isinstance(part, str) and "," in part:
                told = f"{name} is {part!r}; allowed: arguments of their own, {' '.join(re.split(', *', part))}"
                print(f"semfocus {options.command}: {told}", file=sys.stderr)
                sys.exit(2)
    options.command_line = shlex.join(["semfocus", *arguments])
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
        message = _one_line(error, next((place for place in places if place), None))
        if message is None or os.environ.get("SEMFOCUS_TRACEBACK"):
            raise
        if "unknown mask strategy" in message and hasattr(options, "imports") and not options.imports:
            message += "; a mask of your own needs --import FILE"
        print(f"semfocus {options.command}: {message}", file=sys.stderr)
        code = 2
    sys.exit(code)


def _print_whatever_comes() -> None:
    """From now on no character ends the program because stdout or stderr cannot take it."""

    def nearest(error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeEncodeError)  # what a stream that is written to raises
        text = "".join(NEAREST.get(character, "?") for character in error.object[error.start : error.end])
        return text, error.end

    codecs.register_error("semfocus.nearest", nearest)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # None without a console; a notebook's own kind takes everything
            stream.reconfigure(errors="semfocus.nearest")


def _one_line(error: Exception, output: str | None) -> str | None:
    """What a user can act on, in one line; None for an error of ours, whose traceback is wanted."""
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in text for words in NO_MEMORY)
    ):
        return f"not enough memory ({text[:200]}); ask for smaller sizes (model, batch size, length, examples)"
    if "No space left on device" in text or getattr(error, "errno", None) in DISK_FULL:
        where = getattr(error, "filename", None) or output
        return (
            f"{text}{'' if where is None or str(where) in text else f': {where}'}; free some space, then start again"
        )
    if not isinstance(error, ValueError | OSError):
        return None
    return _shortened(_without_number(error, output) or text)


def _without_number(error: Exception, output: str | None) -> str | None:
    """An error of the system about a file, with what to do instead of its number; None for another error."""
    if not isinstance(error, OSError) or not isinstance(error.filename, str | os.PathLike) or not error.strerror:
        return None
    path, reason = Path(error.filename), error.strerror.lower()
    if isinstance(error, FileExistsError | NotADirectoryError):
        reason = "a file is in the way"
    if output is None:
        return f"{path}: {reason}"
    place, full = Path(output).absolute(), path.absolute()
    beside = full.parent == place.parent and full.name.startswith(f".{place.name}.")  # renamed into place at the end
    if not (beside or full.is_relative_to(place) or place.is_relative_to(full)):
        return f"{path}: {reason}"
    return f"the folder {output} cannot be used ({path}: {reason}); choose one that can be made, read and written"


def _shortened(text: str) -> str:
    """A message in which no value of thousands of digits hides what is allowed."""
    return re.sub(rf"\S{{{LONGEST_WORD},}}", lambda match: f"{match[0][:60]}…{match[0][-20:]}", text)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="semfocus",
        description="Sparse self-attention, studied for how fast and how well a transformer learns.",
        epilog="example:\n  semfocus compare --preset quickstart --output runs/quickstart",
        formatter_class=_Formatter,
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)

    def command(name: str, run: Callable[[Any], int], text: str, example: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name, help=text, description=text, epilog=f"example:\n  {example}", formatter_class=_Formatter
        )
        sub.set_defaults(run=run)
        return sub

    tasks = command("tasks", _tasks, "list the tasks: level, vocabulary, labels, chance, an example", "semfocus tasks")
    tasks.add_argument("task", nargs="?", help="show one task in full")
    tasks.add_argument("--pictures", metavar="DIR", help="also draw the example of each task into this folder")

    masks = command(
        "masks", _masks, "list the mask strategies, or draw one", "semfocus masks banded:5+global:1 --length 12"
    )
    masks.add_argument("mask", nargs="?", help="a mask to draw: rows are queries, columns are keys")
    _add_import(masks)
    masks.add_argument("--length", type=int, default=16, help="positions to draw")

    generate = command(
        "generate",
        _generate,
        "write a task's data to a folder: parquet or JSON lines, with a data set card",
        "semfocus generate listops --length 100-200 --train-size 1000 --output data/listops",
    )
    generate.add_argument("task", help="see `semfocus tasks`")
    generate.add_argument("--output", required=True, help="the folder to make; it appears only when it is complete")
    generate.add_argument("--format", default="parquet", help="parquet or jsonl")
    generate.add_argument("--overwrite", action="store_true", help="replace an earlier result of this command")
    generate.add_argument("--length", help="length of the inputs: 40, or 500-600 for a range (default: the task's)")
    generate.add_argument("--train-size", type=int, help="training examples (default: 5000)")
    generate.add_argument("--validation-size", type=int, help="validation examples (default: 1000)")
    generate.add_argument("--test-size", type=int, help="test examples (default: 2000)")
    generate.add_argument(
        "--length-splits", nargs="+", type=int, metavar="N", help="further test splits of these lengths"
    )
    generate.add_argument("--seed", type=int, help="another seed gives other rows (default: 0)")
    generate.add_argument("--pooling", help="mean, cls ([CLS] in front) or last (default: mean)")
    generate.add_argument("--answer", help="of stack_manipulation: stack, or top for one label (default: stack)")
    generate.add_argument("--allow-duplicates", action="store_true", help="a split may hold an input twice")

    train = command(
        "train",
        _train,
        "train one model on one task",
        "semfocus train even_pairs --mask topk:5 --length 20 --layers 3 --epochs 20 --output runs/one",
    )
    train.add_argument("task", help="see `semfocus tasks`")
    train.add_argument("--output", required=True, help="folder for the history, the result and the model")
    train.add_argument(
        "--mask", help="a mask specification; `full`, `topk:5`, `banded:5+global:1` … (default: topk:5)"
    )
    train.add_argument("--seed", type=int, help="fixes the data, the initial weights and the batch order (default: 0)")
    train.add_argument(
        "--config", help="YAML or JSON file with fields of RunSpec (a run's spec.json); options given here go over it"
    )
    train.add_argument(
        "--threads",
        type=int,
        help="torch threads on the CPU; more help long inputs and wide models (default: 1, as `compare` has, or OMP_NUM_THREADS)",
    )
    _add_run_options(train)

    compare = command(
        "compare",
        _compare,
        "train every task × mask × seed and report how fast each mask learns beside full attention",
        "semfocus compare --preset quickstart --output runs/quickstart --jobs 2",
    )
    compare.add_argument(
        "--preset",
        help="quickstart (minutes), cpu (7 NNCH tasks at paper size), paper (the authors' recipe, all 8 tasks), paper-nnch (its 7 tasks of "
        "length 40)",
    )
    compare.add_argument(
        "--config", help="YAML or JSON file with an experiment (a comparison's experiment.json) instead of a preset"
    )
    compare.add_argument(
        "--output", required=True, help="the run directory; started again, it goes on where it stopped"
    )
    compare.add_argument("--jobs", type=int, help="runs at once, one torch thread each (default: the number of cores)")
    compare.add_argument("--tasks", nargs="+", help="these tasks instead of the preset's")
    compare.add_argument(
        "--masks", nargs="+", help="these masks, or variants, instead of the preset's, each an argument of its own"
    )
    compare.add_argument("--seeds", nargs="+", type=int, help="these seeds instead of the preset's")
    _add_run_options(compare)

    report = command(
        "report", _report, "make the summary, the pictures and report.html anew", "semfocus report runs/quickstart"
    )
    report.add_argument("directory", help="a run directory of `semfocus compare`")

    demo = command(
        "demo",
        _demo,
        "make a folder that runs as a static Space: the report, with what masks attend to while they learn",
        "semfocus demo runs/quickstart --output runs/demo",
    )
    demo.add_argument("directory", help="a run directory of `semfocus compare`, best with --snapshots")
    demo.add_argument("--output", required=True, help="the folder to make")

    card = command(
        "card",
        _card,
        "make the model card of a checkpoint, and publish both on the Hub",
        "semfocus card runs/one --repo user/name --push",
    )
    card.add_argument("folder", help="a run's folder, its checkpoint, or a run directory of `semfocus compare`")
    card.add_argument(
        "--output", metavar="DIR", help="put <name>.md and <name>.png there (default: README.md in the checkpoint)"
    )
    card.add_argument("--repo", metavar="USER/NAME", help="what the checkpoint is called on the Hub")
    card.add_argument("--dataset", metavar="USER/NAME", help="its data set on the Hub (default: the task's name)")
    card.add_argument(
        "--push", action="store_true", help="publish model, code, tokenizer and card in --repo, in one commit"
    )
    card.add_argument("--private", action="store_true", help="with --push: in a private repository")
    card.add_argument("--revision", metavar="BRANCH", help="with --push: to this branch (default: main)")

    analyze = command(
        "analyze",
        _analyze,
        "measure the theory's quantities of trained models: dispersion, separation, stability, norms, Lipschitz estimates",
        "semfocus analyze runs/quickstart/runs/even_pairs/full/seed-0 runs/quickstart/runs/even_pairs/topk-5/seed-0 "
        "--output analysis\n  semfocus analyze runs/paper/runs/even_pairs/*/seed-* --paper --slices --output analysis",
    )
    analyze.add_argument(
        "checkpoints",
        nargs="+",
        metavar="CHECKPOINT_OR_RUN",
        help="a run's folder (also measured at initialisation), or a checkpoint, also of another model of Transformers",
    )
    analyze.add_argument("--task", help="see `semfocus tasks` (default: what the run was trained on)")
    analyze.add_argument(
        "--text",
        metavar="FILE",
        help="instead of a task: a text, an example a line, for the checkpoints' own tokenizers (any model of Transformers)",
    )
    analyze.add_argument(
        "--length",
        help="length of the inputs: 40, or 500-600 for a range (default: the run's); of a text: tokens a line is cut at (128)",
    )
    analyze.add_argument(
        "--mask", help="the mask to apply to all models' scores (default: the first of their own that leaves keys out)"
    )
    _add_import(analyze)
    analyze.add_argument(
        "--paper",
        action="store_true",
        help="measure as the paper's authors did, at the end of training on ten batches of 100 training examples, beside their numbers",
    )
    analyze.add_argument(
        "--slices",
        type=int,
        nargs="?",
        const=21,
        metavar="SIZE",
        help="also the training loss around the trained weights, on SIZE x SIZE points of a plane of two random directions "
        "(21; the paper: 200). SIZE² passes: with 200 examples of length 40 and 5 blocks one to two minutes a slice at 21, two "
        "hours at 200",
    )
    analyze.add_argument("--slice-directions", type=int, default=1, help="planes for each model")
    analyze.add_argument("--slice-examples", type=int, default=200, help="training examples of each loss of a slice")
    analyze.add_argument(
        "--examples", type=int, help="examples to measure on: held-out ones (200), with --paper training ones (1000)"
    )
    analyze.add_argument(
        "--batch-size", type=int, help="examples at a time; one gradient norm each (20; with --paper 100)"
    )
    analyze.add_argument("--directions", type=int, default=4, help="random directions of the Lipschitz estimates")
    analyze.add_argument("--seed", type=int, default=0, help="of the noise and the directions")
    analyze.add_argument(
        "--output", metavar="DIR", help="write analysis.txt, .csv, .json, slices.json and pictures there"
    )

    advise = command(
        "advise",
        _advise,
        "say what attention looks like before training, and which change the stored evidence supports",
        "semfocus advise even_pairs",
    )
    advise.add_argument(
        "task_or_run",
        metavar="TASK_OR_RUN",
        help="a task, with the paper's recipe and the options given here over it, or a run's folder",
    )
    advise.add_argument("--mask", help="of a task's model: a mask specification or a variant (default: full)")
    advise.add_argument("--seed", type=int, help="of a task's model: fixes the data and the weights (default: 0)")
    advise.add_argument(
        "--evidence", metavar="FILE", help="a summary by recipes/focus_law.py (default: what came with this version)"
    )
    _add_run_options(advise)

    bench = commands.add_parser(
        "bench",
        help="measure speed and memory",
        description="measure speed and memory",
        epilog="example:\n  semfocus bench attention --masks topk:5 --shapes 16x600 4x2048",
        formatter_class=_Formatter,
    )
    benches = bench.add_subparsers(dest="what", required=True, metavar="WHAT", parser_class=_Parser)
    data = benches.add_parser(
        "data",
        help="rows a second of each task's generator",
        description="rows a second of each task's generator",
        epilog="example:\n  semfocus bench data parity_check listops",
        formatter_class=_Formatter,
    )
    data.set_defaults(run=_bench_data)
    data.add_argument("tasks", nargs="*", help="these tasks (default: all)")
    data.add_argument("--rows", type=int, help="rows to make (default: about half a second's at the goal)")
    data.add_argument("--repeats", type=int, default=3, help="the best of so many")
    attention = benches.add_parser(
        "attention",
        help="time and peak memory of attention beside other implementations",
        description="Forward + backward of sparse attention, dense scaled_dot_product_attention, mask-then-softmax and "
        "x-transformers' Attend(sparse_topk=k), measured in turn in one run: time, peak extra memory, ratios, goals.",
        epilog="examples:\n  semfocus bench attention --masks topk:5 --shapes 16x600 4x2048\n"
        "  semfocus bench attention --profile topk:32 4x2048",
        formatter_class=_Formatter,
    )
    attention.set_defaults(run=_bench_attention)
    attention.add_argument(
        "--masks", nargs="+", help="masks, each an argument of its own (default: those of the goals, and some)"
    )
    attention.add_argument("--shapes", nargs="+", metavar="BxL", help="batch and length, such as 16x600 4x2048")
    attention.add_argument("--heads", type=int, default=1, help="attention heads")
    attention.add_argument("--dim", type=int, default=64, help="head dim")
    attention.add_argument("--threads", type=int, default=2, help="torch threads on the CPU")
    attention.add_argument("--rounds", type=int, help="runs of each (default: about 12 seconds a case, 7 to 41)")
    attention.add_argument("--dtype", default="float32", help="float32, bfloat16, float16 or float64")
    attention.add_argument("--device", default="cpu", help="cpu or cuda")
    attention.add_argument("--output", metavar="DIR", help="write attention.txt, .csv, .json and .png there")
    attention.add_argument("--quick", action="store_true", help="short inputs and 3 rounds, to see that it runs")
    attention.add_argument(
        "--profile",
        nargs=2,
        metavar=("MASK", "BxL"),
        help="instead: the ten operators that take most of one case's time",
    )
    _add_import(attention)
    return parser


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    """Options that `train` and `compare` share; everything else is reached by --set."""
    _add_import(parser)
    parser.add_argument("--length", help="length of the inputs: 40, or 500-600 for a range (default: the task's)")
    parser.add_argument("--train-size", type=int, help="training examples (default: 5000)")
    parser.add_argument("--validation-size", type=int, help="validation examples (default: 1000)")
    parser.add_argument("--test-size", type=int, help="held-out examples (default: 2000)")
    parser.add_argument("--epochs", type=int, help="the budget in epochs (default: 100)")
    parser.add_argument("--optimizer", help="sgd, adam or adamw (default: sgd)")
    parser.add_argument("--learning-rate", type=float, help="of the first epoch (default: 0.3)")
    parser.add_argument("--batch-size", type=int, help="examples a step (default: 100)")
    parser.add_argument("--layers", type=int, help="blocks of the encoder (default: 5)")
    parser.add_argument(
        "--analysis",
        nargs="?",
        type=int,
        const=1,
        metavar="EPOCHS",
        help="record dispersion, separation, stability and gradient norms every so many epochs (alone: every epoch)",
    )
    parser.add_argument(
        "--snapshots",
        type=int,
        metavar="N",
        help="store what the model attends to on a few held-out rows at about N epochs, for the report's slider",
    )
    parser.add_argument("--report-to", help="report each epoch to trackio, tensorboard or wandb (default: none)")
    parser.add_argument(
        "--set",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="any other field: model.hidden_act=gelu, model.attention_gain=auto, training.lr_decay=1.0, task_options.…",
    )


def _add_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--import",
        dest="imports",
        nargs="+",
        default=[],
        metavar="FILE",
        help="Python files or modules that register mask strategies of your own",
    )


def _asked(options: argparse.Namespace) -> dict[str, Any]:
    """The fields of `RunSpec` that the command line names, nested as there."""
    from ..experiments.options import parse_length, parse_setting

    asked: dict[str, Any] = {"model": {}, "training": {}}
    for name in ("train_size", "validation_size", "test_size", "mask", "seed"):
        if getattr(options, name, None) is not None:
            asked[name] = getattr(options, name)
    if options.length is not None:
        asked["length"] = parse_length(options.length)
    for name in ("epochs", "optimizer", "learning_rate", "batch_size", "snapshots", "report_to"):
        if getattr(options, name) is not None:
            asked["training"][name] = getattr(options, name)
    if options.analysis is not None:
        asked["training"]["analysis_every"] = options.analysis
    if options.layers is not None:
        asked["model"]["num_hidden_layers"] = options.layers
    for setting in options.set:
        path, value = parse_setting(setting)
        place = asked
        for step in path[:-1]:
            place = place.setdefault(step, {})
            if not isinstance(place, dict):
                raise ValueError(f"--set got both {step}={place!r} and {setting!r}; allowed: one of them")
        place[path[-1]] = value
    return {key: value for key, value in asked.items() if value != {}}


def _console():
    from rich.console import Console

    # Under `accelerate launch` every process runs this code; one of them speaks.
    console = Console(quiet=os.environ.get("RANK", "0") != "0")
    if (
        not console.is_interactive and console.width < TABLE_WIDTH
    ):  # a log can be read at any width; what is cut off is lost
        console.width = TABLE_WIDTH
    return console


def _tasks(options: argparse.Namespace) -> int:
    from .data import run_tasks

    return run_tasks(options, _console())


def _generate(options: argparse.Namespace) -> int:
    from .data import run_generate

    return run_generate(options, _console())


def _bench_data(options: argparse.Namespace) -> int:
    from .data import run_bench_data

    return run_bench_data(options, _console())


def _bench_attention(options: argparse.Namespace) -> int:
    from .bench import run_bench_attention

    return run_bench_attention(options, _console())


def _masks(options: argparse.Namespace) -> int:
    from ..experiments.imports import import_strategies
    from .listings import drawn_mask, mask_table

    import_strategies(options.imports)
    if options.length > LONGEST_DRAWN:
        raise ValueError(f"length is {options.length}; allowed: 1 … {LONGEST_DRAWN}, to draw a mask")

    _console().print(
        drawn_mask(options.mask, options.length) if options.mask is not None else mask_table(),
        highlight=False,
        soft_wrap=options.mask is not None,  # a row that goes on in the next line is no picture
    )
    return 0


def _train(options: argparse.Namespace) -> int:
    from ..experiments.experiment import merged, read_yaml
    from ..experiments.spec import RunSpec

    configured = read_yaml(options.config) if options.config is not None else {}
    if configured.get("task", options.task) != options.task:
        raise ValueError(
            f"{options.config} is for task {configured['task']!r}; allowed here: {options.task!r}, as given"
        )
    values = merged(configured, _asked(options))
    if options.imports:
        values["imports"] = options.imports
    spec = RunSpec.from_dict({**values, "task": options.task})
    if values.get("mask_source") not in (None, spec.mask_source):
        raise ValueError(
            f"mask_source is {values['mask_source']!r}, and the code of {spec.mask} has {spec.mask_source!r}: it is another one "
            "than was recorded; leave mask_source out to train with the code as it is"
        )
    if options.threads is not None and options.threads < 1:
        raise ValueError(f"threads is {options.threads}; allowed: at least 1")
    _quiet_libraries()
    import torch

    if options.threads is not None or "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(options.threads or 1)
    from ..training.run import run_unit
    from .progress import EpochBar

    console = _console()
    with EpochBar(f"{spec.task} {spec.label}", spec.training.epochs, console) as bar:
        result = run_unit(spec, options.output, on_epoch=bar.update)
    if _main_process():
        from .card import fresh_card

        fresh_card(Path(options.output))
        tau = spec.training.tau
        when = f"training accuracy {tau:g} after {result['epochs_to_tau']} epochs"
        if result["epochs_to_tau"] is None:
            when = f"training accuracy {tau:g} not reached in {result['epochs_trained']} epochs ({result['status']})"
        console.print(f"{when}; {result['seconds']:.0f} s, evaluation included", soft_wrap=True)
        console.print(f"model: {Path(options.output) / 'model'}", soft_wrap=True, highlight=False)
    return 0


def _compare(options: argparse.Namespace) -> int:
    from dataclasses import replace

    from ..experiments.experiment import CHANGED, Experiment, changed_note, merged
    from ..experiments.presets import preset

    if (options.preset is None) == (options.config is None):
        raise ValueError("give either --preset NAME or --config FILE")
    base = preset(options.preset) if options.preset is not None else Experiment.from_yaml(options.config)
    values = base.to_dict()
    if options.imports:
        values["defaults"] = {**values["defaults"], "imports": options.imports}
    asked = _asked(options)
    tasks = {name: base.tasks.get(name, {}) for name in options.tasks or base.tasks}
    values["tasks"] = {name: merged(settings or {}, asked) for name, settings in tasks.items()}
    values["masks"] = options.masks or values["masks"]
    values["seeds"] = options.seeds or values["seeds"]
    experiment = Experiment.from_dict(values)
    note = changed_note(base, experiment)
    if note is not None:
        experiment = replace(experiment, name=base.name.removesuffix(CHANGED) + CHANGED, note=note)
    _quiet_libraries()
    from ..comparison.compare import compare
    from ..comparison.run_directory import read_experiment
    from ..comparison.summary import write_summary
    from ..report.html import write_report
    from ..report.tables import terminal_table
    from .card import comparison_cards
    from .progress import ComparisonBars

    command, record = options.command_line, Path(options.output) / "experiment.json"
    if options.config is not None and Path(options.config).resolve() == record.resolve():
        # A record that names itself would not tell how it came about.
        first = read_experiment(record.parent).get("command") or command
        command = first if note is None else f"{first} && {command}"
    console = _console()
    with ComparisonBars(len(experiment.units()), console) as bars:
        results = compare(experiment, options.output, options.jobs, command, bars.update)
    if not _main_process():
        return 0
    summary, page = write_summary(Path(options.output)), write_report(Path(options.output))
    comparison_cards(Path(options.output), console, changed_only=True)
    console.print(terminal_table(summary))
    console.print(f"report: {page}", soft_wrap=True, highlight=False)
    return 1 if any(result["status"] == "failed" for result in results) else 0


def _report(options: argparse.Namespace) -> int:
    from ..comparison.summary import write_summary
    from ..report.html import write_report
    from ..report.tables import terminal_table

    console = _console()
    summary, page = write_summary(Path(options.directory)), write_report(Path(options.directory))
    console.print(terminal_table(summary))
    console.print(f"report: {page}", soft_wrap=True, highlight=False)
    return 0


def _demo(options: argparse.Namespace) -> int:
    from .demo import run_demo

    return run_demo(options, _console())


def _analyze(options: argparse.Namespace) -> int:
    _quiet_libraries()
    from .analyze import run_analyze

    return run_analyze(options, _console())


def _advise(options: argparse.Namespace) -> int:
    _quiet_libraries()
    from .advise import run_advise

    return run_advise(options, _asked(options), _console())


def _card(options: argparse.Namespace) -> int:
    from .card import run_card

    return run_card(options, _console())


def _main_process() -> bool:
    from ..training.environment import process_state

    return process_state().is_main_process


def _quiet_libraries() -> None:
    """Our own bars show the work; the bars of a data set's preparation and of loading weights would break them."""
    import datasets
    from transformers.utils import logging

    datasets.disable_progress_bars()
    logging.disable_progress_bar()
    logging.set_verbosity_error()  # mtime order of checkpoints and the like: nothing a user can act on


def _version() -> str:
    from importlib.metadata import version

    return f"semfocus {version('hf-semfocus')}"


if __name__ == "__main__":
    main()
