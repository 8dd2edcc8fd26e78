"""ONNX with the sizes of the example, for every class; tests/model/test_common_graphs.py has free batch and length."""

import logging

import onnxruntime
import pytest
import torch

from hf_semfocus import (
    SemFocusForMaskedLM,
    SemFocusForSequenceClassification,
    SemFocusForTokenClassification,
    SemFocusModel,
)
from tests.model.contract import batch, make


@pytest.mark.parametrize(
    ("cls", "spec", "fields"),
    [
        (SemFocusForTokenClassification, "full", {}),
        (SemFocusModel, "block:5", {"attention_form": "bilinear", "norm_position": "pre"}),
        (SemFocusForSequenceClassification, "topk:3", {"pooling": "last", "position_embedding_type": "sinusoidal"}),
        (SemFocusForMaskedLM, "topk:3+sink:1", {"layer_masks": ["topk:3+sink:1", "banded:3"]}),
    ],
)
def test_onnx_answers_as_the_model(cls, spec, fields, tmp_path, caplog):
    caplog.set_level(logging.ERROR)
    model = make(cls, spec, **fields)
    torch.onnx.export(model, (), tmp_path / "model.onnx", kwargs=batch(), dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    for seed, side in enumerate(("right", "left", "left")):
        inputs = batch(seed=seed, side=side)
        (answer,) = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
        expected = model(**inputs)[0]
        assert answer.shape == expected.shape
        assert torch.allclose(torch.from_numpy(answer), expected, atol=1e-5)
