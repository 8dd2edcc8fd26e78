"""Accuracies that ignore −100 and need no network: as functions, as `compute_metrics`, and as `evaluate` modules."""

from __future__ import annotations

from typing import Any

import numpy as np

from .core.task import IGNORED

METRICS = ("accuracy", "token_accuracy", "sequence_accuracy")


def class_ids(predictions: Any, references: np.ndarray) -> np.ndarray:
    """Class ids from predictions: ids of the references' shape as they are, scores with one more axis by their largest entry.

    Raises:
        ValueError: the shapes do not fit.
    """
    if isinstance(predictions, tuple):
        predictions = predictions[0]  # a model that also returns attentions or hidden states: the logits come first
    predictions = np.asarray(predictions)
    if predictions.ndim == references.ndim + 1:
        predictions = predictions.argmax(axis=-1)
    if predictions.shape != references.shape:
        raise ValueError(f"predictions of shape {predictions.shape} do not fit references of shape {references.shape}")
    return predictions


def token_accuracy(predictions: Any, references: Any) -> float:
    """The share of right predictions among the positions whose reference is not −100.

    Args:
        predictions: class ids ``(N,)`` or ``(N, L)``, or scores with one more axis ``(…, C)``.
        references: class ids ``(N,)`` or ``(N, L)``, −100 where nothing counts.

    Raises:
        ValueError: shapes that do not fit, or nothing that counts.

    Example:
        >>> token_accuracy([[1, 0], [1, 1]], [[1, 1], [1, -100]])
        0.6666666666666666
    """
    references = np.asarray(references)
    counted = references != IGNORED
    if not counted.any():
        raise ValueError("no reference counts: there are none, or all are -100")
    return float((class_ids(predictions, references) == references)[counted].mean())


def accuracy(predictions: Any, references: Any) -> float:
    """The share of right predictions of one label a row: :func:`token_accuracy` for references ``(N,)``.

    Example:
        >>> accuracy([[0.1, 0.9], [0.8, 0.2]], [1, 1])
        0.5
    """
    references = np.asarray(references)
    if references.ndim != 1:
        raise ValueError(f"accuracy takes one reference a row, got shape {references.shape}; see sequence_accuracy")
    return token_accuracy(predictions, references)


def sequence_accuracy(predictions: Any, references: Any) -> float:
    """The share of rows whose every counted position is right; rows where nothing counts are left out.

    Args:
        predictions: class ids ``(N, L)`` or scores ``(N, L, C)``.
        references: class ids ``(N, L)``, −100 where nothing counts.

    Example:
        >>> sequence_accuracy([[1, 0], [1, 1]], [[1, 1], [1, -100]])
        0.5
    """
    references = np.asarray(references)
    if references.ndim != 2:
        raise ValueError(
            f"sequence_accuracy takes a row of references each, got shape {references.shape}; see accuracy"
        )
    counted = references != IGNORED
    rows = counted.any(axis=1)
    if not rows.any():
        raise ValueError("no reference counts: there are none, or all are -100")
    right = (class_ids(predictions, references) == references) | ~counted
    return float(right.all(axis=1)[rows].mean())


def compute_metrics(prediction: Any) -> dict[str, float]:
    """For ``Trainer(compute_metrics=…)``: ``accuracy``, and for sequence outputs ``token_accuracy`` beside it.

    Args:
        prediction: an ``EvalPrediction``, or a pair of predictions and references.

    Returns:
        ``accuracy``: of labels, or of whole sequences; ``token_accuracy`` where references are sequences.

    Example:
        >>> compute_metrics(([[1, 0], [1, 1]], [[1, 1], [1, -100]]))["accuracy"]
        0.5
    """
    predictions, references = prediction[0], np.asarray(prediction[1])
    if references.ndim == 1:
        return {"accuracy": accuracy(predictions, references)}
    return {
        "accuracy": sequence_accuracy(predictions, references),
        "token_accuracy": token_accuracy(predictions, references),
    }
