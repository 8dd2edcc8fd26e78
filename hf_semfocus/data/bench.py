"""How fast a task's rows are made: the figures that `semfocus bench data` prints."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .core.task import Task
from .generation import features, tables, whole_split
from .options import DataOptions, check_options
from .tasks import get_task, list_tasks

# Examples a second on one core, Arrow rows written included, at the default length. ListOps: 0.4 ms an example at 500–600 tokens.
GOALS = {
    **dict.fromkeys(
        (
            "parity_check",
            "even_pairs",
            "cycle_navigation",
            "modular_arithmetic",
            "missing_duplicate_string",
            "reverse_string",
            "duplicate_string",
            "odds_first",
            "bucket_sort",
        ),
        300_000,
    ),
    **dict.fromkeys(("stack_manipulation", "binary_addition", "binary_multiplication", "compute_sqrt"), 50_000),
    **dict.fromkeys(("modular_arithmetic_brackets", "solve_equation"), 30_000),
    "listops": 2_500,
}
_SECONDS_AIMED_AT = 0.5


@dataclass(frozen=True)
class DataSpeed:
    """One line of the benchmark.

    Attributes:
        task: the task's name.
        length: the inclusive range of input lengths in tokens.
        rows: rows that were made and written.
        seconds: the best of the repeats.
        goal: examples a second asked for, or None.
    """

    task: str
    length: tuple[int, int]
    rows: int
    seconds: float
    goal: int | None

    @property
    def examples_per_second(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds

    @property
    def milliseconds_per_example(self) -> float:
        """Milliseconds a row."""
        return 1000 * self.seconds / self.rows


def bench_data(
    tasks: Sequence[str] | None = None,
    *,
    rows: int | None = None,
    repeats: int = 3,
    progress: Callable[[str], None] | None = None,
) -> Iterator[DataSpeed]:
    """Time the making of each task's rows in this process, from the random words to the Arrow file.

    Splits have the proportion of the default sizes (5 : 1 : 2): a validation row costs more candidates than a training row. What is
    made once a process (tables of digits, ListOps' probabilities) is made before the clock starts.

    Args:
        tasks: names; None: all tasks.
        rows: rows of all splits together; None: as many as half a second is good for at the goal, at least 4,000.
        repeats: the best of so many is given.
        progress: called with a task's name when its turn comes.

    Raises:
        ValueError: unknown tasks, or fewer than 8 rows or 1 repeat.

    Yields:
        One :class:`DataSpeed` for each task.

    Example:
        >>> next(bench_data(["parity_check"], rows=8000)).examples_per_second > 100_000
        True
    """
    if repeats < 1:
        raise ValueError(f"bench: repeats must be at least 1, got {repeats}")
    for name in tasks if tasks is not None else list_tasks():
        task = get_task(name)
        if progress is not None:
            progress(name)
        goal = GOALS.get(name)
        count = rows if rows is not None else max(4000, int((goal or 50_000) * _SECONDS_AIMED_AT))
        if count < 8:
            raise ValueError(f"bench: rows must be at least 8, one for every eighth, got {count}")
        options = check_options(
            name,
            {
                "train_size": count * 5 // 8,
                "validation_size": count // 8,
                "test_size": count - count * 5 // 8 - count // 8,
            },
        )
        warm = check_options(name, {"train_size": 64})
        with tempfile.TemporaryDirectory() as folder:
            _write(warm, ("train",), task, f"{folder}/warm")
            splits = tuple(split for split, _ in options.sizes)
            seconds = min(_write(options, splits, task, f"{folder}/{repeat}") for repeat in range(repeats))
        yield DataSpeed(name, (options.low, options.high), count, seconds, goal)


def _write(options: DataOptions, splits: Sequence[str], task: Task, path: str) -> float:
    from datasets.arrow_writer import ArrowWriter

    start = time.perf_counter()
    for split in splits:
        writer = ArrowWriter(path=f"{path}-{split}.arrow", features=features(task))
        for shard in whole_split(options, split):
            for table in tables(options, shard):
                writer.write_table(table)
        writer.finalize()
        writer.close()
    return time.perf_counter() - start
