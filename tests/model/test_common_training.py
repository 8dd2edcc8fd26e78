"""Contract of every class under every mask: training, gradient checkpointing, problem types, bf16."""

import math

import pytest
import torch
from torch import nn

from hf_semfocus import SemFocusForSequenceClassification

from .contract import (
    batch,
    every_class,
    every_head,
    every_mask,
    gradients,
    labelled,
    loss_of,
    make,
    same_tensors,
)

DROPOUT = {"hidden_dropout": 0.1, "attention_dropout": 0.1, "classifier_dropout": 0.1}


@every_mask
@every_class
def test_training_moves_every_parameter_and_lowers_the_loss(cls, spec):
    model, inputs = make(cls, spec, max_position_embeddings=9, vocab_size=13).train(), labelled(cls, batch())
    inputs["input_ids"] = torch.arange(27).reshape(3, 9) % 13  # every token, so that every row of the table is trained
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)
    losses = []
    for _ in range(15):
        loss = loss_of(model, inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    for name, parameter in model.named_parameters():
        assert parameter.isfinite().all(), name
        # Softmax does not see a shift of all scores of a query: a key bias has no gradient but rounding.
        assert not torch.equal(parameter, before[name]) or name.endswith("key.bias"), name


@pytest.mark.parametrize("reentrant", [True, False])
@every_mask
@every_class
def test_gradient_checkpointing_changes_no_gradient(cls, spec, reentrant):
    model, inputs = make(cls, spec, **DROPOUT).train(), labelled(cls, batch())
    calls = []
    model.base_model.encoder.layers[0].mlp.register_forward_hook(lambda *_: calls.append(0))
    torch.manual_seed(7)
    loss, plain = gradients(model, inputs)
    assert len(calls) == 1
    model.activation_checkpointing_enable({"use_reentrant": reentrant})
    assert model.is_activation_checkpointing
    model.enable_input_require_grads()
    torch.manual_seed(7)
    same_loss, again = gradients(model, inputs, output_attentions=True)
    assert len(calls) == 3  # once more in the backward pass
    assert torch.equal(loss, same_loss)
    assert same_tensors(plain, again)
    model.activation_checkpointing_disable()
    assert not model.is_activation_checkpointing
    gradients(model, inputs)
    assert len(calls) == 4


@every_mask
@pytest.mark.parametrize(
    ("kind", "labels", "derived"),
    [
        ({}, torch.tensor([0, 2, 1]), "single_label_classification"),
        ({"problem_type": "single_label_classification"}, torch.tensor([0, 2, 1]), "single_label_classification"),
        ({}, torch.tensor([[1.0, 0, 1], [0, 0, 0], [1, 1, 1]]), "multi_label_classification"),
        ({"num_labels": 1}, torch.tensor([0.5, -1.0, 2.0]), "regression"),
        ({"problem_type": "regression"}, torch.tensor([[0.5, 1, 2], [0, 0, 0], [1, 1, -1]]), "regression"),
    ],
    ids=["single", "single-named", "multi", "regression", "regression-3"],
)
def test_problem_types(spec, kind, labels, derived):
    model = make(SemFocusForSequenceClassification, spec, **kind)
    loss, grads = gradients(model, {**batch(), "labels": labels})
    logits = model(**batch()).logits.detach()
    expected = {
        "single_label_classification": lambda: -logits.log_softmax(-1)[torch.arange(3), labels].mean(),
        "multi_label_classification": lambda: (
            -(labels * nn.functional.logsigmoid(logits) + (1 - labels) * nn.functional.logsigmoid(-logits)).mean()
        ),
        "regression": lambda: (logits.view_as(labels) - labels).square().mean(),
    }[derived]()
    assert model.config.problem_type == derived
    assert torch.allclose(loss, expected)
    assert grads["classifier.weight"].any()


def test_one_label_is_let_pass_as_models_that_are_built_in_do():
    config = make(SemFocusForSequenceClassification, num_labels=1).config
    config.problem_type = "single_label_classification"  # in one call, Transformers' own configuration refuses it
    model = SemFocusForSequenceClassification(config)
    assert model(**batch(), labels=torch.tensor([0, 0, 0])).loss == 0


@every_head
def test_labels_of_minus_100_and_of_nothing(cls):
    model, inputs = make(cls), labelled(cls, batch())
    if cls is not SemFocusForSequenceClassification:
        output = model(**inputs)
        chosen = inputs["labels"] != -100
        log_p = output.logits[chosen].log_softmax(-1)
        expected = -log_p[torch.arange(len(log_p)), inputs["labels"][chosen]].mean()
        assert torch.allclose(output.loss, expected)
    with_items = model(**inputs, num_items_in_batch=torch.tensor(5)).loss
    labels = (inputs["labels"] != -100).sum()
    assert torch.allclose(with_items * 5, model(**inputs).loss * labels)


@pytest.mark.parametrize("how", ["weights", "autocast"])
@every_mask
@every_class
def test_bf16_trains_on_a_cpu(cls, spec, how):
    model, inputs = make(cls, spec).train(), labelled(cls, batch())
    if how == "weights":
        model = model.bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(12):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=how == "autocast"):
            loss = loss_of(model, inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(map(math.isfinite, losses))
    assert losses[-1] < 0.95 * losses[0]
    assert {parameter.dtype for parameter in model.parameters()} == {
        torch.bfloat16 if how == "weights" else torch.float32
    }
