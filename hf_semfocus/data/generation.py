"""From options to Arrow tables: the rows of a split, in one go or in shards that can be made apart from each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from .core.encoding import encode
from .core.rows import SplitRows
from .core.task import Task
from .options import DataOptions
from .tasks import get_task

if TYPE_CHECKING:
    from datasets import Features

# Rows of one shard: what one worker makes at a time.
SHARD_ROWS = 1 << 14


@dataclass
class Shard:
    """A run of rows of a split. ``taken`` int32 ``(stop − start,)`` holds their settled candidates; None: settle on the way, from row 0."""

    split: str
    start: int
    stop: int
    taken: np.ndarray | None = None


def features(task: Task) -> Features:
    """Column types of a task's data sets; class names are kept in ``labels``, a ClassLabel or a list of them."""
    from datasets import ClassLabel, Features, List, Value

    label = ClassLabel(names=list(task.labels))
    columns = {
        "text": Value("string"),
        "target": Value("string"),
        "input_ids": List(Value("int32")),
        "labels": label if task.kind == "sequence_classification" else List(label),
        "length": Value("int32"),
    }
    if task.has_depth:
        columns["depth"] = Value("int32")
    return Features(columns)


def split_rows(options: DataOptions, split: str) -> SplitRows:
    """The rows of one split; ``ValueError`` where too few different inputs exist."""
    low, high = options.lengths(split)
    task = get_task(options.task, options.answer)
    possible = task.lengths(low, high)
    if len(possible) == 1:
        low = high = possible[0]
    return SplitRows(task, low, high, split, dict(options.sizes)[split], options.seed, options.allow_duplicates)


def whole_split(options: DataOptions, split: str) -> list[Shard]:
    """A split as one shard, settled while it is made: the cheapest way for one process."""
    return [Shard(split, 0, dict(options.sizes)[split])]


def settled_shards(options: DataOptions, split: str) -> list[Shard]:
    """A split as shards that can be made in any order and process."""
    size = dict(options.sizes)[split]
    taken = split_rows(options, split).settled()
    return [
        Shard(split, start, min(size, start + SHARD_ROWS), taken[start : start + SHARD_ROWS])
        for start in range(0, size, SHARD_ROWS)
    ]


def tables(options: DataOptions, shard: Shard) -> Iterator[pa.Table]:
    """The rows of a shard as tables of the columns of :func:`~.core.encoding.encode`."""
    rows = split_rows(options, shard.split)
    if shard.taken is None:
        for _, batch in rows.batches():
            yield encode(rows.task, batch, options.pooling)
        return
    for start in range(shard.start, shard.stop, rows.batch_rows):
        numbers = np.arange(start, min(shard.stop, start + rows.batch_rows), dtype=np.int64)
        batch = rows.candidates(numbers, shard.taken[numbers - shard.start].astype(np.int64))
        yield encode(rows.task, batch, options.pooling)
