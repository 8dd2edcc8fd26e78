"""Contract of every class under every mask: outputs, batching, inputs, attention implementations, per-layer masks."""

import inspect

import pytest
import torch

from hf_semfocus import SemFocusForSequenceClassification, parse_mask

from .contract import (
    LENGTHS,
    MASKS,
    batch,
    every_class,
    every_mask,
    gradients,
    labelled,
    loss_of,
    make,
    same_tensors,
)


@every_class
def test_the_forward_signature_is_the_usual_one(cls):
    names = list(inspect.signature(cls.forward).parameters)[1:]
    assert names[:3] == ["input_ids", "attention_mask", "inputs_embeds"]


@every_mask
@every_class
def test_two_calls_give_the_same(cls, spec):
    model, inputs = make(cls, spec), labelled(cls, batch())
    first, second = model(**inputs), model(**inputs)
    assert same_tensors(dict(first), dict(second))
    assert all(tensor.isfinite().all() for tensor in first.values())


@pytest.mark.parametrize("side", ["left", "right"])
@every_mask
@every_class
def test_a_row_alone_is_the_row_in_a_padded_batch(cls, spec, side):
    model = make(cls, spec).double()
    inputs = batch(side=side)
    together = model(**inputs, output_hidden_states=True, output_attentions=True)
    for row, length in enumerate(LENGTHS):
        place = slice(0, length) if side == "right" else slice(9 - length, 9)
        alone = model(inputs["input_ids"][row : row + 1, place], output_hidden_states=True, output_attentions=True)
        if cls is SemFocusForSequenceClassification:
            assert torch.allclose(alone[0][0], together[0][row], atol=1e-12)
        else:
            assert torch.allclose(alone[0][0], together[0][row, place], atol=1e-12)
        for one, all_ in zip(alone.hidden_states, together.hidden_states, strict=True):
            assert torch.allclose(one[0], all_[row, place], atol=1e-12)
        for one, all_ in zip(alone.attentions, together.attentions, strict=True):
            assert torch.allclose(one[0], all_[row, :, place, place], atol=1e-12)


@pytest.mark.parametrize("implementation", ["semfocus", "eager"])
@every_mask
@every_class
def test_hidden_states_and_attentions_keep_their_gradients(cls, spec, implementation):
    model, inputs = make(cls, spec, attn_implementation=implementation), labelled(cls, batch())
    output = model(**inputs, output_hidden_states=True, output_attentions=True)
    assert [tuple(states.shape) for states in output.hidden_states] == [(3, 9, 16)] * 3
    assert [tuple(weights.shape) for weights in output.attentions] == [(3, 2, 9, 9)] * 2
    # Weights are part of the graph in "eager" alone, as in the models of Transformers.
    recorded = [*output.hidden_states, *(output.attentions if implementation == "eager" else ())]
    for tensor in recorded:
        tensor.retain_grad()
    head = output["loss"] if "loss" in output else output[0].sin().sum()
    head.backward()
    assert all(tensor.grad.isfinite().all() and tensor.grad.any() for tensor in recorded)


@every_mask
@every_class
def test_tuples_and_dictionaries_hold_the_same(cls, spec):
    model, inputs = make(cls, spec), labelled(cls, batch())
    for flags in ({}, {"output_hidden_states": True}, {"output_hidden_states": True, "output_attentions": True}):
        as_dict, as_tuple = model(**inputs, **flags), model(**inputs, **flags, return_dict=False)
        assert type(as_tuple) is tuple
        flat = as_dict.to_tuple()
        assert len(flat) == len(as_tuple)
        for one, other in zip(flat, as_tuple, strict=True):
            assert type(one) is type(other)
            pairs = zip(one, other, strict=True) if isinstance(one, tuple) else [(one, other)]
            assert all(torch.equal(a, b) for a, b in pairs)


@every_mask
@every_class
def test_embeddings_given_as_inputs_equal_ids(cls, spec):
    model, inputs = make(cls, spec), labelled(cls, batch())
    embedded = {**inputs, "inputs_embeds": model.get_input_embeddings()(inputs["input_ids"])}
    del embedded["input_ids"]
    assert same_tensors(dict(model(**inputs)), dict(model(**embedded)))
    embedded["inputs_embeds"] = embedded["inputs_embeds"].detach().requires_grad_()
    loss_of(model, embedded).backward()
    valid = inputs["attention_mask"].bool()
    assert embedded["inputs_embeds"].grad[0].any(-1).all()
    assert not embedded["inputs_embeds"].grad[~valid].any() or cls is not SemFocusForSequenceClassification


@pytest.mark.parametrize("implementation", ["semfocus", "eager"])
@pytest.mark.parametrize("second", MASKS[1:])
@every_class
def test_masks_per_layer_act_on_their_layer_only(cls, second, implementation, tmp_path):
    fields = {"attn_implementation": implementation, "num_hidden_layers": 3}
    plain = make(cls, "full", **fields)
    model = make(cls, "full", layer_masks=["full", second, "banded:3"], **fields)
    assert same_tensors(model.state_dict(), plain.state_dict())
    inputs = labelled(cls, batch())
    flags = {"output_hidden_states": True, "output_attentions": True}
    before, after = plain(**inputs, **flags), model(**inputs, **flags)
    assert torch.equal(before.hidden_states[1], after.hidden_states[1])
    assert not torch.allclose(before.hidden_states[2], after.hidden_states[2])
    for weights, spec in zip(after.attentions, model.config.layer_masks, strict=True):
        row = weights[0]  # the row without padding
        if spec.startswith("topk"):
            assert ((row > 0).sum(-1) <= 4).all()
            assert ((row > 0).sum(-1) >= 3).all()
        else:
            assert torch.equal(row > 0, parse_mask(spec).on_positions(9).expand(2, 9, 9))
    model.save_pretrained(tmp_path)
    loaded = cls.from_pretrained(tmp_path, attn_implementation=implementation)
    assert loaded.config.layer_masks == model.config.layer_masks
    assert same_tensors(dict(loaded(**inputs)), dict(model(**inputs)))
    loss, grads = gradients(model.train(), inputs)
    assert loss.isfinite()
    assert all(grad.isfinite().all() for grad in grads.values())
