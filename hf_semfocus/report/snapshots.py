"""What runs attended to while they learnt, for the page's slider, from the files of `--snapshots`."""

import base64
import re
from pathlib import Path
from typing import Any

import numpy as np

from ..summary_schema import RunEntry, Summary

MOST_BYTES = 1_500_000
"""Of weights on the page, a byte each: beyond it later rows, and then later masks, are left out."""


def snapshots(summary: Summary, run_dir: Path) -> list[dict[str, Any]]:
    """Per task what the slider shows, for its first seed with snapshots; empty without any.

    Returns:
        ``task``, ``seed``, ``tokens`` (a list a row), and ``masks``: ``mask``, ``shape`` (rows, layers, heads, queries, keys; global tokens
        and a variant's own depth are the mask's), ``ended`` (epochs), ``accuracy`` (training, an epoch each, from 0: None) and ``epochs``,
        {epoch: base64 of bytes, 255 a weight of 1}.
    """
    found = []
    for task in (task.name for task in summary.tasks):
        for seed in summary.seeds:
            runs = [run for run in summary.runs if (run.task, run.seed) == (task, seed)]
            taken = {run.mask: _files(run_dir / run.path) for run in runs if run.path}
            taken = {mask: files for mask, files in taken.items() if files}
            if taken:
                found.append((task, seed, runs, taken))
                break
    return [_task(*one, most=MOST_BYTES // len(found)) for one in found]


def _files(folder: Path) -> dict[int, Path]:
    epochs = {int(re.sub(r"\D", "", path.stem)): path for path in folder.glob("snapshots/epoch-*.npz")}
    return dict(sorted(epochs.items()))


def _task(task: str, seed: int, runs: list[RunEntry], taken: dict[str, dict[int, Path]], most: int) -> dict[str, Any]:
    shapes: dict[str, tuple[int, ...]] = {}
    tokens: list[list[str]] = []
    for mask, files in taken.items():
        with np.load(next(iter(files.values()))) as first:
            shapes[mask] = first["weights"].shape
            tokens = tokens or first["tokens"].tolist()
    sizes = {
        mask: len(taken[mask]) * int(np.prod(shape[1:])) for mask, shape in shapes.items()
    }  # of a row, all epochs
    rows = max(1, min(*(shape[0] for shape in shapes.values()), most // sum(sizes.values())))
    masks: list[dict[str, Any]] = []
    used = 0
    for run in runs:
        files = taken.get(run.mask, {})
        if not files:
            continue
        used += sizes[run.mask] * rows
        if used > most and masks:
            continue
        epochs = {}
        for epoch, path in files.items():
            with np.load(path) as stored:
                weights = np.rint(255 * stored["weights"][:rows].astype(np.float32)).astype(np.uint8)
            epochs[epoch] = base64.b64encode(weights.tobytes()).decode("ascii")
        accuracy = [None, *(row.train_accuracy for row in run.history)]
        shape = [rows, *shapes[run.mask][1:]]
        masks.append(
            {"mask": run.mask, "shape": shape, "ended": run.epochs_trained, "accuracy": accuracy, "epochs": epochs}
        )
    return {"task": task, "seed": seed, "tokens": tokens[:rows], "masks": masks}
