"""`semfocus bench`: measure speed and memory: of the data's generators, and of attention."""

import argparse
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .parsing import Parser, add_command, add_import, described, one, path
from .terminal import console, made, text_of

if TYPE_CHECKING:
    from rich.console import Console

    from ..bench.cases import Setting
    from ..bench.measure import Cost

QUICK_ROUNDS = 3


def add_parser(commands: Any) -> None:
    """Adds `bench data` and `bench attention`."""
    example = "semfocus bench attention --masks topk:5 --shapes 16x600 4x2048"
    bench = add_command(commands, *described(__doc__), example)
    benches = bench.add_subparsers(dest="what", required=True, metavar="WHAT", parser_class=Parser)
    text = "rows a second of each task's generator"
    data = add_command(benches, "data", text, "semfocus bench data parity_check listops", run_data)
    data.add_argument("tasks", nargs="*", help="these tasks (default: all)")
    data.add_argument("--rows", type=int, help="rows to make (default: about half a second's at the goal)")
    data.add_argument("--repeats", type=int, default=3, help="the best of so many")
    text = "time and peak memory of attention, forward and backward, in turn with dense attention and other implementations"
    example += "\n  semfocus bench attention --profile topk:32 4x2048"
    attention = add_command(benches, "attention", text, example, run_attention)
    add = attention.add_argument
    add("--masks", nargs="+", type=one, help="masks (default: those of the goals, and some)")
    add("--shapes", nargs="+", type=one, metavar="BxL", help="batch and length, such as 16x600 4x2048")
    add("--heads", type=int, default=1, help="attention heads")
    add("--dim", type=int, default=64, help="head dim")
    add("--threads", type=int, default=2, help="torch threads on the CPU")
    add("--rounds", type=int, help="runs of each (default: about 12 seconds a case, 7 to 41)")
    add("--dtype", default="float32", help="float32, bfloat16, float16 or float64")
    add("--device", default="cpu", help="cpu or cuda")
    add("--output", type=path, metavar="DIR", help="write attention.txt, .csv, .json and .png there")
    add("--quick", action="store_true", help="short inputs and 3 rounds, to see that it runs")
    text = "instead: the ten operators that take most of one case's time"
    add("--profile", nargs=2, metavar=("MASK", "BxL"), help=text)
    add_import(attention)


def run_data(options: argparse.Namespace) -> int:
    """Times every task's generator and prints the table."""
    from ..data.bench import bench_data
    from ..data.tasks import get_task
    from .bench_tables import speed_table

    out = console()
    for name in options.tasks or []:
        get_task(name)
    with out.status("") as status:
        speeds = list(
            bench_data(
                options.tasks or None,
                rows=options.rows,
                repeats=options.repeats,
                progress=lambda name: status.update(f"timing {name}"),
            )
        )
    out.print(speed_table(speeds))
    return 0


def run_attention(options: argparse.Namespace) -> int:
    """Measures ours beside the other implementations, writes the files of `--output` and prints the tables."""
    import torch

    from ..bench.cases import Setting, cases_of, parse_shape
    from ..bench.implementations import NotInstalledError, x_transformers
    from ..bench.measure import bench_attention
    from ..bench.results import table_of
    from ..experiments.imports import import_strategies
    from ..files import atomic_write, write_json
    from ..model.mask_registry import parse_mask
    from ..products import use_fast_products
    from ..report.cost_pictures import attention_cost
    from ..report.files import render_figure
    from .bench_tables import print_result
    from .progress import share_bar

    out = console()
    use_fast_products()
    import_strategies(options.imports)
    setting = Setting(options.heads, options.dim, options.dtype, options.device, options.threads)
    if options.profile is not None:
        return _profile(options, setting, out)
    shapes = None if options.shapes is None else [parse_shape(text) for text in options.shapes]
    cases = cases_of(options.masks, shapes, options.quick)
    rounds = QUICK_ROUNDS if options.quick and options.rounds is None else options.rounds
    folder = made(options.output)
    measured = []
    with share_bar(out) as bars:
        bar = bars.add_task("", total=len(cases))

        def progress(index: int, done: float) -> None:
            bars.update(bar, completed=index + done, description=f"{cases[index].mask} {cases[index].shape}")

        for costs in bench_attention(cases, setting, rounds, progress):
            measured.append(costs)
    measurement = result(measured, setting, options.command_line)
    if folder is not None:
        atomic_write(folder / "attention.txt", text_of(lambda to: print_result(measurement, to)))
        atomic_write(folder / "attention.csv", table_of(measurement["rows"]))
        write_json(folder / "attention.json", measurement)
        figure = attention_cost(measurement["rows"])
        if figure is not None:
            atomic_write(folder / "attention.png", render_figure(figure, "png"))
    try:
        x_transformers(parse_mask("full"), 1, torch.device(setting.device))
    except NotInstalledError as missing:
        out.print(f"{missing} adds its column", style="yellow", highlight=False, soft_wrap=True)
    print_result(measurement, out)
    if folder is not None:
        out.print(f"results: {folder}", soft_wrap=True, highlight=False)
    return 0


def result(measured: "Sequence[dict[str, Cost]]", setting: "Setting", command: str) -> dict[str, Any]:
    """All of a run, as `attention.json` holds it: command, machine, versions, rows, goals."""
    from importlib.metadata import PackageNotFoundError, version

    import torch

    from ..bench.results import rows, verdicts
    from ..training.environment import machine

    versions = {"torch": torch.__version__, "hf-semfocus": version("hf-semfocus")}
    with contextlib.suppress(PackageNotFoundError):
        versions["x-transformers"] = version("x-transformers")
    here: dict[str, Any] = dict(machine())
    if setting.device == "cuda":
        here["gpu"] = torch.cuda.get_device_name()
    return {
        "command": command,
        "machine": here,
        "versions": versions,
        "rows": rows(measured, setting),
        "goals": verdicts(measured, setting),
    }


def _profile(options: argparse.Namespace, setting: "Setting", out: "Console") -> int:
    from ..bench.cases import Case, parse_shape
    from ..bench.profiling import profile_attention
    from ..files import atomic_write
    from ..model.attention_sparse import choose_path
    from ..model.mask_registry import parse_mask
    from .bench_tables import profile_table

    mask, shape = options.profile
    case = Case(mask, *parse_shape(shape))
    folder = made(options.output)
    with out.status(f"profiling {mask} {shape}"):
        operators = profile_attention(case, setting)
    taken = choose_path(parse_mask(mask), case.batch, setting.heads, case.length, case.length)

    def show(to: "Console") -> None:
        to.print(f"$ {options.command_line}", highlight=False, soft_wrap=True)
        to.print(
            f"one forward and backward pass, {setting.dtype}, head dim {setting.dim}, {setting.heads} head(s), "
            f"{setting.threads} thread(s), path {taken!r}: {sum(ms for *_, ms in operators):.1f} ms of CPU under the profiler",
            highlight=False,
        )
        to.print(profile_table(operators))

    if folder is not None:
        atomic_write(folder / "attention_profile.txt", text_of(show))
    show(out)
    if folder is not None:
        out.print(f"profile: {folder / 'attention_profile.txt'}", soft_wrap=True, highlight=False)
    return 0
