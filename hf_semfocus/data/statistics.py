"""Label statistics of a split: what accuracy means next to chance and to always answering the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .core.task import IGNORED, Task
from .tasks import get_task

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset


def label_counts(labels: pa.ChunkedArray, task: Task) -> np.ndarray:
    """How often each class occurs in the column ``labels``, int64 ``(classes,)``; −100 does not count."""
    import pyarrow as pa
    import pyarrow.compute as pc

    lists = pa.types.is_list(labels.type) or pa.types.is_large_list(labels.type)
    numbers = (pc.list_flatten(labels) if lists else labels).to_numpy()
    return np.bincount(numbers[numbers != IGNORED], minlength=len(task.labels))


def statistics_from_counts(task: Task, counts: np.ndarray) -> dict[str, Any]:
    """The statistics that follow from how often each class occurs, int64 ``(classes,)``."""
    majority = int(counts.argmax())
    return {
        "histogram": dict(zip(task.labels, counts.tolist(), strict=True)),
        "chance": task.chance,
        "majority_label": task.labels[majority],
        "majority_accuracy": int(counts[majority]) / int(counts.sum()),
    }


def label_statistics(dataset_split: Dataset, name: str, answer: str | None = None) -> dict[str, Any]:
    """Histogram of the labels of a split, and the accuracies that stand beside a model's.

    Args:
        dataset_split: one split, as ``load_task(name)["test"]``.
        name: the task's name.
        answer: the kind of answer that the split was loaded with.

    Returns:
        ``histogram`` ``{label: count}`` (for sequence outputs counted over labelled positions), ``chance`` (a uniform guess),
        ``majority_label`` and ``majority_accuracy`` (always the most frequent label, on ties the first; per position for sequence
        outputs), and for sequence outputs ``majority_sequence_accuracy`` (always the most frequent whole output).

    Example:
        >>> statistics = label_statistics(load_task("parity_check")["test"], "parity_check")
        >>> statistics["chance"], sum(statistics["histogram"].values())
        (0.5, 2000)
    """
    import pyarrow.compute as pc

    task = get_task(name, answer)
    # The column itself is the whole data set's: an index mapping (shuffle, select) has to be applied.
    table = dataset_split.with_format("arrow")[:]
    counts = label_counts(table["labels"], task)
    if not counts.any():
        raise ValueError(f"{name}: the split has no labels to count")
    statistics = statistics_from_counts(task, counts)
    if task.kind == "token_classification":
        targets = table["target"]
        frequencies = pc.value_counts(targets).field("counts")
        statistics["majority_sequence_accuracy"] = pc.max(frequencies).as_py() / len(targets)
    return statistics
