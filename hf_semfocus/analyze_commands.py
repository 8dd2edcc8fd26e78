"""`semfocus analyze`: finds models and their data, measures, writes tables, JSON and pictures."""

import argparse
import io
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers import AutoConfig, PreTrainedModel

import hf_semfocus

from .analysis.analyze import analyze, batches_of, plain
from .analysis.trajectory import path
from .data import build_tokenizer, load_task, task_info
from .data.options import check_options
from .model.mask_registry import parse_mask
from .report.analysis_pictures import pictures
from .report.analysis_tables import quantities_csv, terminal_tables
from .report.files import drawn, write_whole
from .training.analysis_callback import PREFIX
from .training.environment import machine, versions
from .training.files import read_json, write_atomically, write_json
from .training.imports import import_strategies
from .training.options import parse_length
from .training.run import build_model
from .training.run_files import read_run
from .training.spec import RunSpec

FORMAT = 1
WIDTH = 100
"""Columns of the tables in `analysis.txt`."""


@dataclass(frozen=True)
class Source:
    """A checkpoint, and the run that made it where that is known.

    Args:
        folder: holds config.json and the weights.
        spec: rebuilds the initial weights, and says what the data were.
        epochs: that the run trained, where it has finished.
        own_mask: as the configuration says.
        run: the run's own folder, where the checkpoint still stands in it.
    """

    folder: Path
    spec: RunSpec | None
    epochs: int | None
    own_mask: str
    run: Path | None = None


def run_analyze(options: argparse.Namespace, console: Console) -> int:
    """Measures each checkpoint at initialisation (where its run is known) and as it is; prints, and writes `--output`."""
    import_strategies(options.imports)
    sources = [_source(Path(name)) for name in options.checkpoints]
    mask = _mask(options.mask, sources)
    for name in ("examples", "batch_size", "directions"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} is {getattr(options, name)}; allowed: at least 1")
    task, data_options = _data_options(options, sources)
    rows = load_task(task, **data_options)["test"]
    models = [(source, _load(source)) for source in sources]
    longest = max(len(row["input_ids"]) for row in rows)
    for source, model in models:
        most = getattr(model.config, "max_position_embeddings", longest)
        if longest > most:
            raise ValueError(f"{source.folder} takes {most} tokens, and the inputs have {longest}; choose --length")
    folder = None if options.output is None else Path(options.output)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    named = list(zip(_names(sources), *zip(*models, strict=True), strict=True))
    points = _measured(named, rows, mask, options, console)
    paths = [_path(name, source, model, rows, options) for name, source, model in named if source.spec is not None]
    length = data_options["length"]
    found = {
        "format": FORMAT,
        "command": options.command_line,
        "task": task,
        "length": list(length) if isinstance(length, tuple) else length,
        "split": "test",
        "examples": len(rows),
        "mask": mask,
        "machine": machine(),
        "versions": versions(),
        "points": points,
        "between": _between(points),
        "paths": paths,
    }
    _show(found, console)
    if folder is not None:
        text = io.StringIO()
        _show(found, Console(file=text, width=WIDTH))
        write_atomically(folder / "analysis.txt", "\n".join(map(str.rstrip, text.getvalue().split("\n"))))
        write_atomically(folder / "analysis.csv", quantities_csv(found))
        write_json(folder / "analysis.json", found)
        for name, figure in pictures(found).items():
            write_whole(folder / f"{name}.png", drawn(figure, "png"))
        console.print(f"results: {folder}", soft_wrap=True, highlight=False)
    return 0


def _show(found: Mapping[str, Any], console: Console) -> None:
    length = found["length"]
    words = "–".join(map(str, length)) if isinstance(length, list) else length
    console.print(f"$ {found['command']}", soft_wrap=True, highlight=False, markup=False)
    console.print(
        f"{found['task']}, length {words}, the first {found['examples']} examples of {found['split']}; "
        f"mask {found['mask']}. δ dispersion, Δ separation, ξ stability constant; s: all keys, h: the keys that the mask "
        "keeps of the same scores; n counts queries",
        highlight=False,
    )
    console.print()
    console.print(terminal_tables(found))


def _source(folder: Path) -> Source:
    """The checkpoint that a folder is or holds."""
    if (folder / "experiment.json").is_file():
        raise ValueError(
            f"{folder} is a comparison; give the folders of one or more of its runs (runs/TASK/MASK/seed-N)"
        )
    checkpoint = folder / "model" if (folder / "spec.json").is_file() else folder
    if not (checkpoint / "config.json").is_file():
        there = "it has not finished" if (folder / "spec.json").is_file() else "it has no config.json or spec.json"
        missing = "" if folder.exists() else " (it does not exist)"
        raise ValueError(f"{folder} is no checkpoint and no run with one: {there}{missing}")
    place = checkpoint.absolute()
    spec, epochs, home = None, None, None
    for run in (place.parent, place.parent.parent):  # RUN/model, RUN/checkpoints/checkpoint-N
        if (run / "spec.json").is_file():
            spec, home = RunSpec.from_dict(read_json(run / "spec.json")), run
            if place.name == "model" and (run / "result.json").is_file():
                epochs = read_json(run / "result.json").get("epochs_trained")
            if (checkpoint / "trainer_state.json").is_file():
                epochs = round(read_json(checkpoint / "trainer_state.json")["epoch"])
            break
    else:
        if (checkpoint / "run.json").is_file():  # a checkpoint that was moved tells its run
            facts = read_json(checkpoint / "run.json")
            if not isinstance(facts, dict) or not isinstance(facts.get("spec"), dict):
                raise ValueError(f"{checkpoint / 'run.json'} is damaged: it has no 'spec'; move it away")
            spec, epochs = RunSpec.from_dict(facts["spec"]), facts.get("kept_epoch")
    config = read_json(checkpoint / "config.json")
    if not isinstance(config, dict) or config.get("model_type") != "semfocus":
        kind = config.get("model_type") if isinstance(config, dict) else None
        raise ValueError(
            f"{checkpoint} holds a model of type {kind!r}; allowed here: 'semfocus'. Other models: "
            "hf_semfocus.analysis.analyze(model, dataset, mask) after apply_attention"
        )
    own_masks = config.get("layer_masks") or [config.get("mask", "topk:5")]
    return Source(checkpoint, spec, epochs, " / ".join(dict.fromkeys(map(str, own_masks))), home)


def _mask(asked: str | None, sources: Sequence[Source]) -> str:
    """What is asked for, or the first own mask that leaves keys out."""
    if asked is not None:
        return str(parse_mask(asked))
    own = next((source.own_mask for source in sources if source.own_mask != "full"), sources[0].own_mask)
    if " / " in own:
        raise ValueError(f"give --mask: the layers of a model have several ({own})")
    return str(parse_mask(own))


def _data_options(options: argparse.Namespace, sources: Sequence[Source]) -> tuple[str, dict[str, Any]]:
    """The task and what `load_task` is called with: the runs' own data, unless options say otherwise."""
    tasks = {source.spec.task for source in sources if source.spec is not None}
    if options.task is None and len(tasks) != 1:
        known = f"they were trained on {', '.join(sorted(tasks))}" if tasks else "no run tells its task"
        raise ValueError(f"give --task: {known}")
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


def _load(source: Source) -> PreTrainedModel:
    config = AutoConfig.from_pretrained(source.folder)
    name = (config.architectures or ["SemFocusModel"])[0]
    cls = getattr(hf_semfocus, name, None)
    if cls is None:
        raise ValueError(f"{source.folder} holds a {name}; allowed: a class of hf_semfocus")
    model: PreTrainedModel = cls.from_pretrained(source.folder)
    return model


def _names(sources: Sequence[Source]) -> list[str]:
    """Each checkpoint's mask, with whatever else is needed to tell it from the others."""
    masks = [source.own_mask for source in sources]
    names = []
    for number, source in enumerate(sources):
        name = masks[number]
        if masks.count(name) > 1 and source.spec is not None:
            name += f" seed {source.spec.seed}"
        names.append(name)
    return [name if names.count(name) == 1 else f"{name} ({number + 1})" for number, name in enumerate(names)]


def _measured(
    models: Sequence[tuple[str, Source, PreTrainedModel]],
    rows: Any,
    mask: str,
    options: argparse.Namespace,
    console: Console,
) -> list[dict[str, Any]]:
    jobs: list[tuple[str, str, Source, PreTrainedModel]] = []
    for name, source, model in models:
        if source.spec is not None:
            jobs.append((name, "initial", source, initial_model(source, model)))
        jobs.append((name, "trained", source, model))
    points = []
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal, transient=True
    ) as bars:
        bar = bars.add_task("", total=len(jobs))
        for number, (name, moment, source, model) in enumerate(jobs):

            def told(share: float, words: str, number: int = number, what: str = f"{name}, {moment}") -> None:
                bars.update(bar, completed=number + share, description=f"{what}: {words}")

            found = analyze(
                model, rows, mask, examples=options.examples, batch_size=options.batch_size,
                directions=options.directions, seed=options.seed, progress=told,
            )  # fmt: skip
            epochs = 0 if moment == "initial" else source.epochs
            points.append({"name": name, "moment": moment, "epochs": epochs, **found})
            if not console.is_terminal:
                console.print(
                    f"{name}, {moment}: measured ({number + 1}/{len(jobs)})", soft_wrap=True, highlight=False
                )
    return points


def initial_model(source: Source, trained: PreTrainedModel) -> PreTrainedModel:
    """The model of a run before its first step: the specification and its seed fix the weights."""
    assert source.spec is not None, "the initial weights of a model without a run were asked for"
    tokenizer = build_tokenizer(source.spec.task, pooling=source.spec.model.get("pooling", "mean"))
    # How many positions there are decides which random numbers the layers behind them get.
    return build_model(replace(source.spec), tokenizer, trained.config.max_position_embeddings)


def _path(name: str, source: Source, model: PreTrainedModel, rows: Any, options: argparse.Namespace) -> dict[str, Any]:
    """The loss's change along the path of a run: from the start over the checkpoints that it has kept to `model`.

    A run keeps few checkpoints, so `recorded` tells what it recorded each epoch, where it did.
    """
    batches = batches_of(model, rows, options.examples, options.batch_size)
    between = _checkpoints(source)
    places = [0, *(epoch for epoch, _ in between), source.epochs]

    def models() -> Iterator[PreTrainedModel]:
        yield initial_model(source, model)
        for _, folder in between:
            yield type(model).from_pretrained(folder)
        yield model

    steps = [
        {"from": first, "to": last, **step}
        for (first, last), step in zip(itertools.pairwise(places), path(models(), batches), strict=True)
    ]
    return plain({"name": name, "steps": steps, "recorded": _recorded(source)})


def _checkpoints(source: Source) -> list[tuple[int, Path]]:
    """Epoch and folder of the whole checkpoints before `source`, in the order of training."""
    found = []
    for folder in (source.run / "checkpoints").glob("checkpoint-*") if source.run is not None else ():
        if all((folder / name).is_file() for name in ("trainer_state.json", "config.json", "model.safetensors")):
            found.append((round(read_json(folder / "trainer_state.json")["epoch"]), folder))
    last = source.epochs if source.epochs is not None else 0
    return sorted((epoch, folder) for epoch, folder in found if 0 < epoch < last)


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
