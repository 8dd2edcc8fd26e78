"""Metrics: −100 never counts, the forms of evaluate and Trainer agree, and nothing needs the network."""

import socket

import evaluate
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import EvalPrediction

from hf_semfocus.data import compute_metrics, load_metric
from hf_semfocus.data.metrics import METRICS, accuracy, sequence_accuracy, token_accuracy

LABELS = st.sampled_from([-100, 0, 1, 2])
ROWS = st.integers(1, 5).flatmap(
    lambda width: st.lists(
        st.tuples(*[st.lists(label, min_size=width, max_size=width) for label in (st.integers(0, 2), LABELS)]),
        min_size=1,
        max_size=6,
    )
)


def by_hand(rows):
    pairs = [[(p, r) for p, r in zip(*row, strict=True) if r != -100] for row in rows]
    flat = [p == r for row in pairs for p, r in row]
    whole = [all(p == r for p, r in row) for row in pairs if row]
    return (sum(flat) / len(flat), sum(whole) / len(whole)) if flat else None


@given(ROWS)
def test_against_a_count_by_hand(rows):
    predictions, references = [row[0] for row in rows], [row[1] for row in rows]
    expected = by_hand(rows)
    if expected is None:
        with pytest.raises(ValueError, match="no reference counts"):
            token_accuracy(predictions, references)
        with pytest.raises(ValueError, match="no reference counts"):
            sequence_accuracy(predictions, references)
        return
    assert (token_accuracy(predictions, references), sequence_accuracy(predictions, references)) == pytest.approx(
        expected
    )
    scores = np.eye(3)[np.array(predictions)]
    result = compute_metrics(EvalPrediction(predictions=scores, label_ids=np.array(references)))
    assert (result["token_accuracy"], result["accuracy"]) == pytest.approx(expected)


def test_classification():
    assert accuracy([0, 1, 1], [0, 1, 0]) == pytest.approx(2 / 3)
    assert compute_metrics(
        EvalPrediction(predictions=(np.array([[1.0, 0.0], [1.0, 0.0]]), None), label_ids=np.array([0, 1]))
    ) == {"accuracy": 0.5}


def test_shapes_that_do_not_fit():
    with pytest.raises(ValueError, match=r"\(2,\) do not fit references of shape \(3,\)"):
        accuracy([0, 1], [0, 1, 1])
    with pytest.raises(ValueError, match="see sequence_accuracy"):
        accuracy([[0]], [[0]])
    with pytest.raises(ValueError, match="see accuracy"):
        sequence_accuracy([0], [0])


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a metric tried to reach the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)


def test_evaluate_modules(no_network, tmp_path):
    metric = load_metric("accuracy", cache_dir=str(tmp_path))
    assert metric.compute(predictions=[0, 1, 1], references=[0, 1, 0]) == {"accuracy": pytest.approx(2 / 3)}
    for predictions, references in (([0, 1], [0, 0]), ([1], [1])):
        metric.add_batch(predictions=predictions, references=references)
    metric.add(prediction=1, reference=1)
    assert metric.compute() == {"accuracy": 0.75}
    predictions, references = [[1, 0, 1], [1, 1]], [[1, -100, 1], [1, 0]]
    open_ones = [load_metric(name, cache_dir=str(tmp_path)) for name in ("token_accuracy", "sequence_accuracy")]
    for one in open_ones:
        one.add_batch(predictions=predictions, references=references)
    assert [one.compute() for one in open_ones] == [{"token_accuracy": 0.75}, {"sequence_accuracy": 0.5}]
    both = evaluate.combine([load_metric("token_accuracy"), load_metric("sequence_accuracy")])
    assert both.compute(predictions=predictions, references=references) == {
        "token_accuracy": 0.75,
        "sequence_accuracy": 0.5,
    }


def test_evaluate_mistakes():
    with pytest.raises(ValueError, match="did you mean 'token_accuracy'"):
        load_metric("token_acuracy")
    with pytest.raises(ValueError, match="row 0 has 1 predictions and 2 references"):
        load_metric("token_accuracy").compute(predictions=[[1]], references=[[1, 1]])
    assert METRICS == ("accuracy", "token_accuracy", "sequence_accuracy")
