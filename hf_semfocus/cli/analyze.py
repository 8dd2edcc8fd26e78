"""`semfocus analyze`: measure the theory's quantities of trained models: dispersion, separation, stability, norms, Lipschitz estimates."""

import argparse
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .parsing import add_command, add_import, described, path
from .terminal import console, made, quiet_libraries, text_of

if TYPE_CHECKING:
    from rich.console import Console

FORMAT = 1
EXAMPLES, BATCH = 200, 20
GRID = ("offsets", "losses")
"""What of a slice is in `slices.json` alone."""


def add_parser(commands: Any) -> None:
    """Adds `analyze`."""
    runs = "runs/quickstart/runs/even_pairs"
    example = f"semfocus analyze {runs}/full/seed-0 {runs}/topk-5/seed-0 --output analysis"
    example += "\n  semfocus analyze runs/paper/runs/even_pairs/*/seed-* --paper --slices --output analysis"
    parser = add_command(commands, *described(__doc__), example, run)
    add = parser.add_argument
    text = "a run's folder (also measured at initialisation), or a checkpoint, also of another model of Transformers"
    add("checkpoints", nargs="+", metavar="CHECKPOINT_OR_RUN", help=text)
    add("--task", help="see `semfocus tasks` (default: what the run was trained on)")
    add(
        "--text",
        metavar="FILE",
        help="instead of a task: a text, an example a line, for the checkpoints' own tokenizers",
    )
    add(
        "--length", help="of the inputs: 40, or 500-600 (default: the run's); of a text: tokens a line is cut at (128)"
    )
    add("--mask", help="applied to all models' scores (default: the first of their own that leaves keys out)")
    add_import(parser)
    text = "measure as the paper's authors did, on ten batches of 100 training examples, beside their numbers"
    add("--paper", action="store_true", help=text)
    text = "also the training loss on SIZE x SIZE points of a plane of two random directions (21; the paper: 200): SIZE² passes"
    add("--slices", type=int, nargs="?", const=21, metavar="SIZE", help=text)
    add("--slice-directions", type=int, default=1, help="planes for each model")
    add("--slice-examples", type=int, default=200, help="training examples of each loss of a slice")
    add("--examples", type=int, help="to measure on: held-out ones (200), with --paper training ones (1000)")
    add("--batch-size", type=int, help="examples at a time; one gradient norm each (20; with --paper 100)")
    add("--directions", type=int, default=4, help="random directions of the Lipschitz estimates")
    add("--seed", type=int, default=0, help="of the noise and the directions")
    add("--output", type=path, metavar="DIR", help="write analysis.txt, .csv, .json, slices.json and pictures there")


def run(options: argparse.Namespace) -> int:
    """Measures each checkpoint at initialisation (where its run is known) and as it is; writes `--output`, then prints."""
    quiet_libraries()
    from ..analysis.analyze import plain
    from ..analysis.paper_table import PAPER_BATCH, PAPER_EXAMPLES, beside_paper
    from ..comparison.storage import local_copy
    from ..experiments.imports import import_strategies
    from ..files import atomic_write, write_json
    from ..products import use_fast_products
    from ..report.analysis_pictures import pictures
    from ..report.analysis_tables import quantities_csv
    from ..report.files import render_figure
    from ..training.environment import machine, versions
    from .analyze_measure import between, measure, measure_path, measure_slices
    from .analyze_sources import chosen_mask, loaded, names_of, rows_for, source_of

    use_fast_products()
    out = console()
    import_strategies(options.imports)
    sources = [source_of(local_copy(name)) for name in options.checkpoints]
    mask = chosen_mask(options.mask, sources)
    examples, batch_size = (PAPER_EXAMPLES, PAPER_BATCH) if options.paper else (EXAMPLES, BATCH)
    options.examples = examples if options.examples is None else options.examples
    options.batch_size = batch_size if options.batch_size is None else options.batch_size
    for name in ("examples", "batch_size", "directions", "slice_directions", "slice_examples"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} is {getattr(options, name)}; allowed: at least 1")
    if options.slices is not None and options.slices < 2:
        raise ValueError(f"--slices is {options.slices}; allowed: at least 2 points a side")
    what, rows_of, training_rows_of = rows_for(options, sources, out)
    models = [(name, source, loaded(source)) for name, source in zip(names_of(sources), sources, strict=True)]
    named = [(name, source, model, rows_of(source, model)) for name, source, model in models]
    for _, source, model, rows in named:
        longest = max(len(row["input_ids"]) for row in rows)
        most = getattr(model.config, "max_position_embeddings", longest)
        if longest > most:
            raise ValueError(f"{source.folder} takes {most} tokens, and the inputs have {longest}; choose --length")
    folder = made(options.output)
    points = measure(named, mask, options, out)
    trained = [point for point in points if point["moment"] == "trained"]
    paths = [measure_path(*one, options) for one in named if one[1].spec is not None and "labels" in one[3][0]]
    result = {
        "format": FORMAT,
        "command": options.command_line,
        **what,
        "examples": len(named[0][3]),
        "mask": mask,
        "machine": machine(),
        "versions": versions(),
        "points": points,
        "between": between(points),
        "paths": paths,
        "paper": plain(beside_paper(what["task"], trained)) if options.paper else [],
        "slices": measure_slices(named, training_rows_of, options, out) if options.slices is not None else [],
    }
    if folder is not None:
        atomic_write(folder / "analysis.txt", text_of(lambda to: _show(result, to)))
        atomic_write(folder / "analysis.csv", quantities_csv(result))
        numbers = [{k: v for k, v in entry.items() if k not in GRID} for entry in result["slices"]]
        write_json(folder / "analysis.json", {**result, "slices": numbers})
        if result["slices"]:
            atomic_write(folder / "slices.json", json.dumps(result["slices"], allow_nan=False) + "\n")
        for name, figure in pictures(result).items():
            atomic_write(folder / f"{name}.png", render_figure(figure, "png"))
    _show(result, out)
    if folder is not None:
        out.print(f"results: {folder}", soft_wrap=True, highlight=False)
    return 0


def _show(result: Mapping[str, Any], out: "Console") -> None:
    from ..report.analysis_tables import terminal_tables

    length = result["length"]
    words = f"{result['task']}, length {'–'.join(map(str, length)) if isinstance(length, list) else length}"
    if result["task"] is None:
        words = f"{result['text']}, lines cut at {length} tokens"
    out.print(f"$ {result['command']}", soft_wrap=True, highlight=False)
    out.print(
        f"{words}, the first {result['examples']} examples{'' if result['task'] is None else ' of ' + result['split']}; "
        f"mask {result['mask']}. δ dispersion, Δ separation, ξ stability constant; s: all keys, h: the keys that the mask "
        "keeps of the same scores; n counts queries (of β keys)",
        highlight=False,
    )
    out.print()
    out.print(terminal_tables(result))
