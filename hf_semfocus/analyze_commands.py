"""`semfocus analyze`: finds models and their data, measures, writes tables, JSON and pictures."""

import argparse
import io
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers import PreTrainedModel

from .analysis.analyze import analyze, batches_of, plain
from .analysis.trajectory import path
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
from .data import load_task, task_info
from .data.options import check_options
from .products import use_fast_products
from .report.analysis_pictures import pictures
from .report.analysis_tables import quantities_csv, terminal_tables
from .report.files import drawn, write_whole
from .training.analysis_callback import PREFIX
from .training.environment import machine, versions
from .training.files import write_atomically, write_json
from .training.imports import import_strategies
from .training.options import parse_length
from .training.run_files import read_run

FORMAT = 1
WIDTH = 100
"""Columns of the tables in `analysis.txt`."""


def run_analyze(options: argparse.Namespace, console: Console) -> int:
    """Measures each checkpoint at initialisation (where its run is known) and as it is; prints, and writes `--output`."""
    use_fast_products()
    import_strategies(options.imports)
    sources = [source_of(Path(name)) for name in options.checkpoints]
    mask = chosen_mask(options.mask, sources)
    for name in ("examples", "batch_size", "directions"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} is {getattr(options, name)}; allowed: at least 1")
    if options.text is not None:
        what, rows_of = _text(options, console)
    else:
        what, rows_of = _task(options, sources)
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
        folder.mkdir(parents=True, exist_ok=True)
    points = _measured(named, mask, options, console)
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
    }
    if folder is not None:
        text = io.StringIO()
        _show(found, Console(file=text, width=WIDTH))
        write_atomically(folder / "analysis.txt", "\n".join(map(str.rstrip, text.getvalue().split("\n"))))
        write_atomically(folder / "analysis.csv", quantities_csv(found))
        write_json(folder / "analysis.json", found)
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
        "keeps of the same scores; n counts queries",
        highlight=False,
    )
    console.print()
    console.print(terminal_tables(found))


RowsOf = Callable[[Source, PreTrainedModel], Any]


def _text(options: argparse.Namespace, console: Console) -> tuple[dict[str, Any], RowsOf]:
    """What is measured on, for the JSON, and the rows for each model: lines of a text."""
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


def _task(options: argparse.Namespace, sources: Sequence[Source]) -> tuple[dict[str, Any], RowsOf]:
    """As :func:`_text`: held-out rows of a task."""
    task, data_options = _data_options(options, sources)
    rows = load_task(task, **data_options)["test"]
    length = data_options["length"]
    what = {"task": task, "length": list(length) if isinstance(length, tuple) else length, "split": "test"}
    return what, lambda source, model: task_rows(source, model, rows)


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
    # A split's rows do not depend on the sizes of the others.
    values.update(train_size=1, validation_size=1, test_size=options.examples)
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
        if source.spec is not None:
            jobs.append((name, "initial", source, initial_model(source, model), rows))
        jobs.append((name, "trained", source, model, rows))
    points = []
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=console, disable=not console.is_interactive, transient=True
    ) as bars:
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
