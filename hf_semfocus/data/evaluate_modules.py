"""Our metrics behind the interface of `evaluate`: a module of its own, because importing `evaluate` takes a while."""

from __future__ import annotations

import uuid
from typing import Any, ClassVar

import datasets
import evaluate

from . import metrics
from .core.task import IGNORED

_PARAMETERS = """
Args:
    predictions: class ids; a list a row for the metrics of sequences.
    references: class ids of the same lengths, -100 where nothing counts.
"""


class _TaskMetric(evaluate.Metric):
    name: ClassVar[str]
    sequences: ClassVar[bool] = True

    def _info(self) -> evaluate.MetricInfo:
        label: Any = datasets.Value("int64")
        column = datasets.List(label) if self.sequences else label
        return evaluate.MetricInfo(
            description=" ".join((getattr(metrics, self.name).__doc__ or "").split("\n\n")[0].split()),
            citation="",
            inputs_description=_PARAMETERS,
            features=datasets.Features({"predictions": column, "references": column}),
        )

    def _compute(self, predictions: list[Any], references: list[Any]) -> dict[str, float]:
        if self.sequences:
            # Rows of different lengths are filled up with what does not count.
            for row, (prediction, reference) in enumerate(zip(predictions, references, strict=True)):
                if len(prediction) != len(reference):
                    raise ValueError(f"row {row} has {len(prediction)} predictions and {len(reference)} references")
            width = max(map(len, references), default=0)
            predictions = [[*row, *[IGNORED] * (width - len(row))] for row in predictions]
            references = [[*row, *[IGNORED] * (width - len(row))] for row in references]
        return {self.name: getattr(metrics, self.name)(predictions, references)}


class Accuracy(_TaskMetric):
    """:func:`~.metrics.accuracy` as a module."""

    name = "accuracy"
    sequences = False


class TokenAccuracy(_TaskMetric):
    """:func:`~.metrics.token_accuracy` as a module, for lists of labels."""

    name = "token_accuracy"


class SequenceAccuracy(_TaskMetric):
    """:func:`~.metrics.sequence_accuracy` as a module."""

    name = "sequence_accuracy"


_MODULES = {module.name: module for module in (Accuracy, TokenAccuracy, SequenceAccuracy)}


def make(name: str, **options: Any) -> evaluate.EvaluationModule:
    """A new module; each has its own scratch file, so that two open ones do not wait for each other's lock."""
    distributed = options.get("num_process", 1) > 1
    if not distributed:
        # Processes that add to one metric must agree on its name; alone, any name will do.
        options.setdefault("experiment_id", uuid.uuid4().hex)
    return _MODULES[name](**options)
