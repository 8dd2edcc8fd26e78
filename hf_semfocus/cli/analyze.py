"""`semfocus analyze`: finds models and their data, measures, writes tables, JSON and pictures."""

import argparse
import io
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers import PreTrainedModel

from ..analysis.analyze import analyze, batches_of, plain
from ..analysis.lipschitz import losses_of
from ..analysis.loss_slice import loss_slice
from ..analysis.paper_table import PAPER_BATCH, PAPER_EXAMPLES, beside_paper
from ..analysis.trajectory import path
from ..comparison.run_directory import read_run
from ..comparison.storage import local_copy
from ..data import load_task, task_info
from ..data.options import check_options
from ..experiments.imports import import_strategies
from ..experiments.options import parse_length
from ..files import write_atomically, write_json
from ..products import use_fast_products
from ..report.analysis_pictures import pictures
from ..report.analysis_tables import quantities_csv, terminal_tables
from ..report.files import drawn, write_whole
from ..training.analysis_callback import PREFIX
from ..training.environment import machine, versions
from .analyze_sources import (
    LONGEST_TEXT,
    Source,
    checkpoints_of,
    chosen_mask,
    initial_model,
    loaded,
    names_of,
    source_of,
    task_rows,
    text_rows,
    with_weights,
)

FORMAT = 1
EXAMPLES, BATCH = 200, 20
SLICE_BATCH = 100
GRID = ("offsets", "losses")
"""What of a slice is in `slices.json` alone."""
WIDTH = 100
"""Columns of the tables in `analysis.txt`."""


def run_analyze(options: argparse.Namespace, console: Console) -> int:
    """Measures each checkpoint at initialisation (where its run is known) and as it is; prints, and writes `--output`."""
    use_fast_products()
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
    if options.text is not None:
        what, rows_of = _text(options, console)
        training_rows_of = rows_of
    else:
        what, rows_of, training_rows_of = _task(options, sources)
    if options.output is not None and Path(options.output).exists() and not Path(options.output).is_dir():
        raise ValueError(f"--output is {options.output}, which is a file; allowed: a folder, there or not")
    models = [(name, source, loaded(source)) for name, source in zip(names_of(sources), sources, strict=True)]
    named = [(name, source, model, rows_of(source, model)) for name, source, model in models]
    for _, source, model, rows in named:
        longest = max(len(row["input_ids"]) for row in rows)
        most = getattr(model.config, "max_position_embeddings", longest)
        if longest > most:
            raise ValueError(f"{source.folder} takes {most} tokens, and the inputs have {longest}; choose --length")
    folder = None if options.output is None else Path(options.output)
    if folder is not None:
        os.makedirs(os.path.realpath(folder), exist_ok=True)
    points = _measured(named, mask, options, console)
    trained = [point for point in points if point["moment"] == "trained"]
    paths = [_path(*one, options) for one in named if one[1].spec is not None and "labels" in one[3][0]]
    found = {
        "format": FORMAT,
        "command": options.command_line,
        **what,
        "examples": len(named[0][3]),
        "mask": mask,
        "machine": machine(),
        "versions": versions(),
        "points": points,
        "between": _between(points),
        "paths": paths,
        "paper": plain(beside_paper(what["task"], trained)) if options.paper else [],
        "slices": _slices(named, training_rows_of, options, console) if options.slices is not None else [],
    }
    if folder is not None:
        text = io.StringIO()
        _show(found, Console(file=text, width=WIDTH))
        write_atomically(folder / "analysis.txt", "\n".join(map(str.rstrip, text.getvalue().split("\n"))))
        write_atomically(folder / "analysis.csv", quantities_csv(found))
        numbers = [{k: v for k, v in entry.items() if k not in GRID} for entry in found["slices"]]
        write_json(folder / "analysis.json", {**found, "slices": numbers})
        if found["slices"]:
            write_atomically(folder / "slices.json", json.dumps(found["slices"], allow_nan=False) + "\n")
        for name, figure in pictures(found).items():
            write_whole(folder / f"{name}.png", drawn(figure, "png"))
    _show(found, console)
    if folder is not None:
        console.print(f"results: {folder}", soft_wrap=True, highlight=False)
    return 0


def _show(found: Mapping[str, Any], console: Console) -> None:
    length = found["length"]
    words = f"{found['task']}, length {'–'.join(map(str, length)) if isinstance(length, list) else length}"
    if found["task"] is None:
        words = f"{found['text']}, lines cut at {length} tokens"
    console.print(f"$ {found['command']}", soft_wrap=True, highlight=False, markup=False)
    console.print(
        f"{words}, the first {found['examples']} examples{'' if found['task'] is None else ' of ' + found['split']}; "
        f"mask {found['mask']}. δ dispersion, Δ separation, ξ stability constant; s: all keys, h: the keys that the mask "
        "keeps of the same scores; n counts queries (of β keys)",
        highlight=False,
    )
    console.print()
    console.print(terminal_tables(found))


RowsOf = Callable[[Source, PreTrainedModel], Any]


def _text(options: argparse.Namespace, console: Console) -> tuple[dict[str, Any], RowsOf]:
    """What is measured on, for the JSON, and the rows for each model: lines of a text."""
    if options.paper:
        raise ValueError("got both --paper and --text; allowed: --paper with the training examples of a task")
    if options.task is not None:
        raise ValueError(f"got both --task {options.task} and --text {options.text}; allowed: one of them")
    length = LONGEST_TEXT if options.length is None else parse_length(options.length)
    if not isinstance(length, int) or length < 1:
        raise ValueError(f"--length is {options.length}; allowed with --text: a number of tokens to cut lines at")
    file = Path(options.text)

    def rows_of(source: Source, model: PreTrainedModel) -> Any:
        return text_rows(
            source,
            model,
            file,
            options.examples,
            length,
            lambda told: console.print(told, soft_wrap=True, highlight=False),
        )

    return {"task": None, "text": file.name, "length": length, "split": None}, rows_of


def _task(options: argparse.Namespace, sources: Sequence[Source]) -> tuple[dict[str, Any], RowsOf, RowsOf]:
    """As :func:`_text`, of a task: held-out rows (with --paper training ones), and training rows for the slices."""
    task, data_options = _data_options(options, sources)
    data = load_task(task, **data_options)
    length, split = data_options["length"], "train" if options.paper else "test"
    what = {"task": task, "length": list(length) if isinstance(length, tuple) else length, "split": split}

    def rows_of(source: Source, model: PreTrainedModel) -> Any:
        return task_rows(source, model, data[split])

    def training_rows_of(source: Source, model: PreTrainedModel) -> Any:
        return task_rows(source, model, data["train"])

    return what, rows_of, training_rows_of


def _data_options(options: argparse.Namespace, sources: Sequence[Source]) -> tuple[str, dict[str, Any]]:
    """The task and what `load_task` is called with: the runs' own data, unless options say otherwise."""
    tasks = {source.spec.task for source in sources if source.spec is not None}
    if options.task is None and len(tasks) != 1:
        known = f"they were trained on {', '.join(sorted(tasks))}" if tasks else "no run tells its task"
        other = next((source.folder for source in sources if not source.is_ours), None)
        how = "--task" if other is None else f"--text FILE, an example a line, for {other}, or --task"
        raise ValueError(f"give {how}: {known}")
    task = options.task or tasks.pop()
    info = task_info(task)
    spec = next((source.spec for source in sources if source.spec is not None and source.spec.task == task), None)
    values = {"length": info.default_length, "seed": 0} if spec is None else dict(spec.data_options())
    if options.length is not None:
        values["length"] = parse_length(options.length)
    # A row depends neither on the size of its split nor on those of the others. A model was trained on no more than it had.
    wanted = max(options.examples if options.paper else 1, options.slice_examples if options.slices is not None else 1)
    values.update(
        train_size=min(wanted, values.get("train_size", wanted)),
        validation_size=1,
        test_size=1 if options.paper else options.examples,
    )
    check_options(task, values)
    return task, values


def _measured(
    models: Sequence[tuple[str, Source, PreTrainedModel, Any]],
    mask: str,
    options: argparse.Namespace,
    console: Console,
) -> list[dict[str, Any]]:
    jobs: list[tuple[str, str, Source, PreTrainedModel, Any]] = []
    for name, source, model, rows in models:
        if source.spec is not None and not options.paper:  # the authors measured at the end of training
            jobs.append((name, "initial", source, initial_model(source, model), rows))
        jobs.append((name, "trained", source, model, rows))
    points = []
    with _bars(console) as bars:
        bar = bars.add_task("", total=len(jobs))
        for number, (name, moment, source, model, rows) in enumerate(jobs):

            def told(share: float, words: str, number: int = number, what: str = f"{name}, {moment}") -> None:
                bars.update(bar, completed=number + share, description=f"{what}: {words}")

            found = analyze(
                model, rows, mask, examples=options.examples, batch_size=options.batch_size,
                directions=options.directions, seed=options.seed, progress=told,
            )  # fmt: skip
            epochs = 0 if moment == "initial" else source.epochs
            points.append({"name": name, "moment": moment, "epochs": epochs, **found})
            if not console.is_interactive:
                console.print(
                    f"{name}, {moment}: measured ({number + 1}/{len(jobs)})", soft_wrap=True, highlight=False
                )
    return points


def _slices(
    models: Sequence[tuple[str, Source, PreTrainedModel, Any]],
    rows_of: RowsOf,
    options: argparse.Namespace,
    console: Console,
) -> list[dict[str, Any]]:
    """Slices of the training loss around each model under its own mask; every model gets the same directions."""
    parts = [(name, source, model, rows_of(source, model)) for name, source, model, _ in models]
    jobs = [
        (name, source, model, batches_of(model, rows, options.slice_examples, SLICE_BATCH), number)
        for name, source, model, rows in parts
        if "labels" in rows[0]
        for number in range(options.slice_directions)
    ]
    if not jobs:
        console.print("no labels: no slices of the loss", highlight=False)
        return []
    losses_of(jobs[0][2], jobs[0][3])  # the first pass is slower than all others
    started = time.perf_counter()
    losses_of(jobs[0][2], jobs[0][3])
    seconds = (time.perf_counter() - started) * options.slices**2 * len(jobs)
    rows_seen = sum(len(batch["labels"]) for batch in jobs[0][3])
    console.print(
        f"slices: {len(jobs)} of {options.slices} × {options.slices} losses of {rows_seen} examples, "
        f"about {max(1, round(seconds / 60))} min",
        highlight=False,
    )
    found = []
    with _bars(console) as bars:
        bar = bars.add_task("", total=len(jobs))
        for done, (name, source, model, batches, number) in enumerate(jobs):
            words = f"{name}, slice {number + 1}"

            def told(share: float, done: int = done, words: str = words) -> None:
                bars.update(bar, completed=done + share, description=words)

            generator = torch.Generator().manual_seed(options.seed + number)
            measured = loss_slice(model, batches, generator, options.slices, told)
            centre = float(losses_of(model, batches).mean())
            losses = [[float(f"{value:.7g}") for value in row] for row in measured.losses.tolist()]
            found.append(
                {
                    "name": name,
                    "mask": source.own_mask,
                    "direction": number,
                    "size": options.slices,
                    "examples": rows_seen,
                    "loss": centre,
                    **measured.slope_percentiles(),
                    "offsets": measured.offsets.tolist(),
                    "losses": losses,
                }
            )
            if not console.is_interactive:
                console.print(f"{words}: measured ({done + 1}/{len(jobs)})", soft_wrap=True, highlight=False)
    return plain(found)


def _bars(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    return Progress(
        *columns, TimeRemainingColumn(), console=console, disable=not console.is_interactive, transient=True
    )


def _path(name: str, source: Source, model: PreTrainedModel, rows: Any, options: argparse.Namespace) -> dict[str, Any]:
    """The loss's change along the path of a run: from the start over the checkpoints that it has kept to `model`.

    A run keeps few checkpoints, so `recorded` tells what it recorded each epoch, where it did.
    """
    batches = batches_of(model, rows, options.examples, options.batch_size)
    between = checkpoints_of(source)
    places = [0, *(epoch for epoch, _ in between), source.epochs]

    def models() -> Iterator[PreTrainedModel]:
        yield initial_model(source, model)
        for _, folder in between:
            yield with_weights(type(model), folder)
        yield model

    steps = [
        {"from": first, "to": last, **step}
        for (first, last), step in zip(itertools.pairwise(places), path(models(), batches), strict=True)
    ]
    return plain({"name": name, "steps": steps, "recorded": _recorded(source)})


def _recorded(source: Source) -> dict[str, Any] | None:
    """Median and maximum of what the run recorded up to the checkpoint; None where it recorded nothing."""
    run = read_run(source.run) if source.run is not None else None
    values = [] if run is None else run.values(f"{PREFIX}trajectory_ratio")[: source.epochs]
    return {"epochs": len(values), "median": median(values), "max": max(values)} if values else None


def _between(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Dispersion of the keys that each model keeps itself, for each pair of models at the same moment, by layer."""

    def means(point: Mapping[str, Any]) -> dict[int | None, Any]:
        entries = [e for e in point["quantities"] if e["quantity"] == "dispersion_own" and e["head"] is None]
        return {entry["layer"]: entry["mean"] for entry in entries}

    pairs = []
    for first, second in itertools.combinations(points, 2):
        if first["moment"] != second["moment"]:
            continue
        before, after = means(first), means(second)
        layers = []
        for layer in [layer for layer in before if layer in after]:
            a, b = before[layer], after[layer]
            known = isinstance(a, float) and isinstance(b, float) and a > 0
            layers.append({"layer": layer, "first": a, "second": b, "ratio": b / a if known else None})
        pairs.append({"first": first["name"], "second": second["name"], "moment": first["moment"], "layers": layers})
    return pairs
