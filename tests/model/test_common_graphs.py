"""Contract of every class under every mask: one graph for `torch.compile`, `torch.export` and ONNX, at several lengths."""

import logging

import pytest
import torch
from torch.export import Dim

from hf_semfocus import SemFocusForMaskedLM, SemFocusForSequenceClassification

from .contract import CLASSES, MASKS, batch, every_mask, gradients, labelled, loss_of, make

#: Every class; every mask is exported with a free length below.
CASES = [(cls, "topk:3+sink:1") for cls in CLASSES]
PAIRS = [(cls, spec) for cls in CLASSES for spec in MASKS]
#: Some in `make test`, all in `make test-long`.
all_pairs = pytest.mark.parametrize(
    ("cls", "spec"), [pytest.param(*pair, marks=[] if pair in CASES else pytest.mark.long) for pair in PAIRS]
)
#: The other strategies, but for `redraw`, which answers differently each time.
OTHER_MASKS = [
    "global:1", "sink:1", "strided:3", "banded:3+strided:3", "random:3;seed=0", "topp:0.6", "botk:3", "lsh:4;rounds=2", "cluster:4",
]  # fmt: skip
DYNAMIC = {name: {0: Dim.AUTO, 1: Dim.AUTO} for name in ("input_ids", "attention_mask")}
#: Lengths of other batches: longer and shorter, not a multiple of the block, below k, and 1.
OTHERS = [(14, 7), (3, 2, 2, 1), (2,), (1, 1), (31, 5, 30)]


@all_pairs
def test_exports_with_the_shapes_of_the_example(cls, spec):
    model, inputs = make(cls, spec), batch()
    program = torch.export.export(model, (), kwargs=inputs)
    assert torch.allclose(program.module()(**inputs)[0], model(**inputs)[0], atol=1e-6)


@pytest.mark.parametrize(
    ("spec", "form", "masked"),
    [(spec, "multihead", True) for spec in [*MASKS, *OTHER_MASKS]]
    + [(spec, "bilinear", False) for spec in ("full", "banded:5", "topk:3+sink:1", "topp:0.6", "lsh:4;rounds=2")],
)
def test_exports_with_a_free_length(spec, form, masked):
    """A length in a stated range, down to fewer keys than a mask selects: nothing of it may be frozen."""
    model = make(SemFocusForSequenceClassification, spec, num_hidden_layers=1, attention_form=form)

    def inputs(rows: int, length: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(1, 8, (rows, length), generator=torch.Generator().manual_seed(length))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)} if masked else {"input_ids": ids}

    free = {0: torch.export.Dim("rows", min=1, max=64), 1: torch.export.Dim("length", min=2, max=32)}
    given = inputs(2, 11)
    program = torch.export.export(model, (), kwargs=given, dynamic_shapes=dict.fromkeys(given, free))
    for rows, length in ((3, 2), (1, 20)):
        other = inputs(rows, length)
        assert torch.allclose(program.module()(**other).logits, model(**other).logits, atol=1e-6)


@every_mask
def test_onnx_with_free_batch_and_length_answers_as_the_model(spec, tmp_path, caplog):
    onnxruntime = pytest.importorskip("onnxruntime")
    caplog.set_level(logging.ERROR)
    model = make(SemFocusForSequenceClassification, spec, num_hidden_layers=1)
    program = torch.onnx.export(model, (), kwargs=batch(), dynamic_shapes=DYNAMIC, dynamo=True, verbose=False)
    program.save(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    assert [one.name for one in session.get_inputs()] == ["input_ids", "attention_mask"]
    exported = program.exported_program.module()
    for seed, lengths in enumerate(OTHERS):
        inputs = batch(lengths, seed=seed)
        expected = model(**inputs).logits
        assert torch.allclose(exported(**inputs).logits, expected, atol=1e-6)
        (answer,) = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
        assert torch.allclose(torch.from_numpy(answer), expected, atol=1e-5)


#: One pair in `make test`, all in `make test-long`: compiling takes seconds a pair.
@pytest.mark.parametrize(
    ("cls", "spec"),
    [
        pytest.param(*pair, marks=[] if pair == (SemFocusForMaskedLM, "topk:3+sink:1") else pytest.mark.long)
        for pair in PAIRS
    ],
)
def test_a_loss_compiles_to_one_graph_at_two_lengths(cls, spec):
    torch._dynamo.reset()
    model = make(cls, spec, num_hidden_layers=1).train()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for lengths in ((9, 6, 1), (12, 4)):
        inputs = labelled(cls, batch(lengths))
        loss, grads = gradients(model, inputs)
        model.zero_grad()
        same = loss_of(compiled, inputs)
        same.backward()
        assert torch.allclose(same, loss, atol=1e-6)
        for name, parameter in model.named_parameters():
            assert torch.allclose(parameter.grad, grads[name], atol=1e-5), name
