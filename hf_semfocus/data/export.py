"""generate: a task's data as a folder of parquet or JSON lines with a card, complete or not there at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ..files import atomic_folder
from ..text import did_you_mean
from .cards import dataset_card
from .generation import features, split_rows, tables, whole_split
from .options import check_options
from .statistics import label_counts, statistics_from_counts
from .tasks import get_task

FORMATS = ("parquet", "jsonl")
Progress = Callable[[str, int, int], None]


def generate(
    name: str,
    out: str | os.PathLike[str],
    *,
    file_format: str = "parquet",
    overwrite: bool = False,
    progress: Progress | None = None,
    command: str | None = None,
    **options: Any,
) -> Path:
    """Write a task's data to a folder: one file a split, and a card (README.md).

    The folder appears under its name only when everything in it is complete, by one rename; what a failed or killed run leaves is a
    hidden folder beside it, which a run with the same ``out`` removes once it is an hour old.

    Args:
        name: the task's name.
        out: the folder to make. It must not exist, or be empty, or hold an earlier result and ``overwrite`` be set.
        file_format: ``"parquet"`` or ``"jsonl"`` (one JSON object a line).
        overwrite: replace an earlier result of this function.
        progress: called with ``(split, rows done, rows of the split)``, first with 0 rows done.
        command: the command line, for the card.
        options: as in :func:`~.loading.load_task`.

    Returns:
        The folder. ``datasets.load_dataset(folder)`` loads it with splits, column types and class names.

    Raises:
        ValueError: bad options, an unknown format, or a folder that is in the way. Nothing is written then.
        OSError: the folder cannot be written.

    Example:
        >>> folder = generate("parity_check", "parity", length=40, train_size=100)
    """
    if file_format not in FORMATS:
        raise ValueError(
            f"the format is one of {', '.join(FORMATS)}, got {file_format!r}{did_you_mean(str(file_format), FORMATS)}"
        )
    checked = check_options(name, options)
    for split, _ in checked.sizes:
        split_rows(checked, split)
    task = get_task(name, checked.answer)
    target = Path(out)
    _check_target(target, overwrite)
    with atomic_folder(target) as folder:
        facts = {}
        for split, size in checked.sizes:
            if progress is not None:
                progress(split, 0, size)
            done = 0
            counts = np.zeros(len(task.labels), dtype=np.int64)
            with _writer(folder / f"{split}.{file_format}", features(task).arrow_schema, file_format) as write:
                for shard in whole_split(checked, split):
                    for table in tables(checked, shard):
                        write(table)
                        done += len(table)
                        counts += label_counts(table["labels"], task)
                        if progress is not None:
                            progress(split, done, size)
            facts[split] = statistics_from_counts(task, counts)
        card = dataset_card(checked, facts, command=command, files=f"{{split}}.{file_format}")
        (folder / "README.md").write_text(card, encoding="utf-8")
    return target


@contextmanager
def _writer(path: Path, schema: pa.Schema, file_format: str) -> Iterator[Callable[[pa.Table], None]]:
    if file_format == "jsonl":
        with path.open("w", encoding="utf-8") as file:

            def write_lines(table: pa.Table) -> None:
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in table.to_pylist())

            yield write_lines
        return
    from pyarrow import parquet

    with parquet.ParquetWriter(path, schema) as writer:
        yield lambda table: writer.write_table(table.cast(schema))


def _check_target(target: Path, overwrite: bool) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise ValueError(f"{target} is a file; give a folder that does not exist yet")
    inside = {path.name for path in target.iterdir()}
    if not inside:
        return
    ours = "README.md" in inside and all(name.rpartition(".")[2] in (*FORMATS, "md") for name in inside)
    if not overwrite:
        raise ValueError(f"{target} is not empty; give another folder, or overwrite an earlier result (overwrite)")
    if not ours:
        raise ValueError(f"{target} holds more than a generated data set; it is not overwritten, give another folder")
