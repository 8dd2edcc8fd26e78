"""What `semfocus analyze` measures of each model: quantities, slices of the loss, the path of its training."""

import argparse
import itertools
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import torch
from rich.console import Console
from transformers import PreTrainedModel

from ..analysis.analyze import analyze, batches_of, plain
from ..analysis.lipschitz import losses_of
from ..analysis.loss_slice import loss_slice
from ..analysis.trajectory import path
from ..schema import ANALYSIS_PREFIX
from ..training.run_files import read_run
from .analyze_sources import RowsOf, Source, checkpoints_of, initial_model, with_weights
from .progress import share_bar

SLICE_BATCH = 100

Model = tuple[str, Source, PreTrainedModel, Any]
"""Its name, where it comes from, itself, the rows to measure it on."""


def measure(models: Sequence[Model], mask: str, options: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """The quantities of each model at initialisation, where its run is known, and as it is."""
    jobs: list[tuple[str, str, Source, PreTrainedModel, Any]] = []
    for name, source, model, rows in models:
        if source.spec is not None and not options.paper:  # the authors measured at the end of training
            jobs.append((name, "initial", source, initial_model(source, model), rows))
        jobs.append((name, "trained", source, model, rows))
    points = []
    with share_bar(console) as bars:
        bar = bars.add_task("", total=len(jobs))
        for number, (name, moment, source, model, rows) in enumerate(jobs):

            def report(share: float, words: str, number: int = number, what: str = f"{name}, {moment}") -> None:
                bars.update(bar, completed=number + share, description=f"{what}: {words}")

            values = analyze(
                model, rows, mask, examples=options.examples, batch_size=options.batch_size,
                directions=options.directions, seed=options.seed, progress=report,
            )  # fmt: skip
            epochs = 0 if moment == "initial" else source.epochs
            points.append({"name": name, "moment": moment, "epochs": epochs, **values})
            if not console.is_interactive:
                console.print(
                    f"{name}, {moment}: measured ({number + 1}/{len(jobs)})", soft_wrap=True, highlight=False
                )
    return points


def measure_slices(
    models: Sequence[Model],
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
    rows_seen = sum(len(batch["labels"]) for batch in jobs[0][3])
    size = f"{options.slices} × {options.slices}"
    console.print(f"slices: {len(jobs)} of {size} losses of {rows_seen} examples", highlight=False)
    slices = []
    with share_bar(console) as bars:
        bar = bars.add_task("", total=len(jobs))
        for done, (name, source, model, batches, number) in enumerate(jobs):
            words = f"{name}, slice {number + 1}"

            def report(share: float, done: int = done, words: str = words) -> None:
                bars.update(bar, completed=done + share, description=words)

            generator = torch.Generator().manual_seed(options.seed + number)
            measured = loss_slice(model, batches, generator, options.slices, report)
            centre = float(losses_of(model, batches).mean())
            losses = [[float(f"{value:.7g}") for value in row] for row in measured.losses.tolist()]
            slices.append(
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
    return plain(slices)


def measure_path(
    name: str, source: Source, model: PreTrainedModel, rows: Any, options: argparse.Namespace
) -> dict[str, Any]:
    """The loss's change along the path of a run: from the start over the checkpoints that it has kept to `model`.

    A run keeps few checkpoints, so `recorded` has what it recorded each epoch, where it did.
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


def between(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
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


def _recorded(source: Source) -> dict[str, Any] | None:
    """Median and maximum of what the run recorded up to the checkpoint; None where it recorded nothing."""
    run = read_run(source.run) if source.run is not None else None
    rows = [] if run is None else run.history[: source.epochs]
    values = [value for row in rows if (value := row.get(f"{ANALYSIS_PREFIX}trajectory_ratio")) is not None]
    return {"epochs": len(values), "median": median(values), "max": max(values)} if values else None
