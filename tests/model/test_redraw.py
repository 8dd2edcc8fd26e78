"""`redraw` in models: every layer and call draws anew, a seed repeats all of it, and nothing else is disturbed."""

import pytest
import torch
from datasets import Dataset

from hf_semfocus import SemFocusForSequenceClassification, parse_mask
from hf_semfocus.analysis import capture_scores
from hf_semfocus.attention import choose_path
from hf_semfocus.training.accuracy import measure_accuracy
from hf_semfocus.training.rows import TensorRows

from .contract import batch, gradients, labelled, make, same_tensors

every_spec = pytest.mark.parametrize("spec", ["redraw:2", "redraw:2+sink:1"])


def model_and_inputs(spec, **fields):
    return make(SemFocusForSequenceClassification, spec, **fields), labelled(
        SemFocusForSequenceClassification, batch()
    )


def kept(model, inputs, seed):
    torch.manual_seed(seed)
    return [weights > 0 for weights in model(**inputs, output_attentions=True).attentions]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("fields", [{}, {"num_global_tokens": 1}], ids=["", "global"])
@every_spec
def test_every_layer_head_and_call_draws_anew_and_a_seed_repeats_it(spec, fields, training):
    model, inputs = model_and_inputs(spec, **fields)
    model.train(training)
    first, second = kept(model, inputs, 0)
    assert all(map(torch.equal, kept(model, inputs, 0), (first, second)))
    third = model(**inputs, output_attentions=True).attentions[0] > 0
    assert not torch.equal(first, second)
    assert not torch.equal(first[:, 0], first[:, 1])
    assert not torch.equal(first, third)


@every_spec
def test_the_backward_pass_sees_the_draw_of_the_forward_pass(spec):
    model, inputs = model_and_inputs(spec)
    model.double()
    results = []
    for implementation in ("semfocus", "eager"):  # autograd differentiates the second
        model.set_attn_implementation(implementation)
        torch.manual_seed(3)
        results.append(gradients(model, inputs))
    (loss, grads), (eager_loss, eager_grads) = results
    assert torch.allclose(loss, eager_loss, atol=1e-12)
    assert all(torch.allclose(grads[name], eager_grads[name], atol=1e-10) for name in grads)


@pytest.mark.parametrize("reentrant", [True, False])
@every_spec
def test_gradient_checkpointing_repeats_the_draw(spec, reentrant):
    model, inputs = model_and_inputs(spec, hidden_dropout=0.1, attention_dropout=0.1)
    model.train()
    torch.manual_seed(7)
    loss, plain = gradients(model, inputs)
    model.activation_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    torch.manual_seed(7)
    same_loss, again = gradients(model, inputs)
    assert torch.equal(loss, same_loss)
    assert same_tensors(plain, again)


def test_asking_for_weights_does_not_change_the_draw_of_a_long_input():
    assert choose_path(parse_mask("redraw:3"), 8, 8, 2048, 2048) == "masked"


@every_spec
def test_capturing_sees_the_models_own_draw_and_takes_nothing_from_the_generator(spec):
    model, inputs = model_and_inputs(spec)
    del inputs["labels"]
    is_query = inputs["attention_mask"].bool()[:, None, :, None]
    own = [keep & is_query for keep in kept(model, inputs, 5)]
    after = torch.get_rng_state()
    torch.manual_seed(5)
    layers = capture_scores(model, inputs)
    assert all(torch.equal(layer.keep, keep) for layer, keep in zip(layers, own, strict=True))
    assert torch.equal(torch.get_rng_state(), after)


def test_an_evaluation_leaves_the_generator_to_the_training():
    model, inputs = model_and_inputs("redraw:2")
    state = torch.get_rng_state()
    split = Dataset.from_dict({"input_ids": inputs["input_ids"].tolist(), "labels": inputs["labels"].tolist()})
    measure_accuracy(model, TensorRows(split, pad_token_id=0), batch_size=2)
    assert torch.equal(torch.get_rng_state(), state)
