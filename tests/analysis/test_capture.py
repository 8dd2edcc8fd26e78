"""What is captured from a model is what the model computes with, and capturing changes nothing."""

import pytest
import torch

from hf_semfocus.analysis import aggregate, capture, capture_scores, dispersion, probe_dispersion
from hf_semfocus.model.configuration_semfocus import SemFocusConfig
from hf_semfocus.model.modeling_semfocus import SemFocusForSequenceClassification, SemFocusModel


def make_model(mask="topk:3", cls=SemFocusForSequenceClassification, **kwargs):
    torch.manual_seed(0)
    fields = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
    return cls(SemFocusConfig(vocab_size=11, mask=mask, max_position_embeddings=32, **{**fields, **kwargs}))


def make_batch(rows=4, length=9, padded=True):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, 11, (rows, length), generator=generator)
    mask = torch.ones(rows, length, dtype=torch.int64)
    if padded:
        mask[1, 6:] = 0  # right padding
        mask[2, :2] = 0  # left padding
    return {"input_ids": ids * mask, "attention_mask": mask}


@pytest.mark.parametrize("form", ["multihead", "bilinear"])
@pytest.mark.parametrize("mask", ["topk:3", "full", "banded:3+sink:1", "topk:2+banded:3"])
def test_the_softmax_of_what_is_captured_is_the_models_own_attention(mask, form):
    model = make_model(mask, attention_form=form).eval()
    batch = make_batch()
    with torch.no_grad():
        attentions = model(**batch, output_attentions=True).attentions
    layers = capture_scores(model, batch)
    assert len(layers) == 3
    is_query = batch["attention_mask"].bool()[:, None, :, None]
    for layer, weights in zip(layers, attentions, strict=True):
        own = layer.scores.masked_fill(~layer.keep, -torch.inf).softmax(-1).nan_to_num(0)
        torch.testing.assert_close(own, weights * is_query)
        assert not (layer.keep & ~layer.valid).any()
        assert layer.input_dependent == ("topk" in mask)


def test_padding_counts_neither_as_query_nor_as_key():
    batch = make_batch()
    real = batch["attention_mask"].bool()
    for layer in capture_scores(make_model("full"), batch):
        expected = (real[:, :, None] & real[:, None, :])[:, None].expand(layer.valid.shape)
        assert torch.equal(layer.valid, expected)
        assert torch.equal(layer.keep, expected)


def test_padded_rows_give_the_dispersion_of_the_same_rows_alone():
    model = make_model()
    batch = make_batch()
    for row, real in enumerate(batch["attention_mask"].bool()):
        alone = capture_scores(model, {"input_ids": batch["input_ids"][row, real][None]})
        for layer, single in zip(capture_scores(model, batch), alone, strict=True):
            for kept in ("keep", "valid"):
                padded = dispersion(layer.scores, getattr(layer, kept))[row][:, real]
                torch.testing.assert_close(padded, dispersion(single.scores, getattr(single, kept))[0])
                assert dispersion(layer.scores, getattr(layer, kept))[row][:, ~real].isnan().all()


def test_capturing_leaves_no_trace():
    model = make_model(hidden_dropout=0.5).train()
    model.model.encoder.layers[1].eval()
    batch = make_batch()
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    with torch.no_grad():
        torch.manual_seed(3)
        before = model(**batch).logits
    torch.set_rng_state(state)
    capture_scores(model, batch)
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == modes
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    with torch.no_grad():
        torch.manual_seed(3)
        torch.testing.assert_close(model(**batch).logits, before, rtol=0, atol=0)


def test_a_failing_forward_leaves_no_hook():
    model = make_model()
    with pytest.raises(ValueError, match="max_position_embeddings"):
        capture_scores(model, {"input_ids": torch.ones(1, 40, dtype=torch.int64)})
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_the_probe_is_the_aggregate_over_all_layers_and_does_not_depend_on_its_parts(monkeypatch):
    model, batch = make_model(), make_batch(rows=5)
    layers = capture_scores(model, batch)
    expected = {
        "full": aggregate(torch.cat([dispersion(layer.scores, layer.valid).flatten() for layer in layers])),
        "mask": aggregate(torch.cat([dispersion(layer.scores, layer.keep).flatten() for layer in layers])),
    }
    assert probe_dispersion(model, batch) == expected
    monkeypatch.setattr(capture, "CHUNK_ELEMENTS", 2 * 2 * 9 * 9)  # two rows at a time
    in_parts = probe_dispersion(model, batch)
    for part, values in expected.items():
        assert in_parts[part] == pytest.approx(values, rel=1e-5)
    assert in_parts["mask"]["mean"] < in_parts["full"]["mean"]


def test_other_inputs_and_models():
    model = make_model(cls=SemFocusModel)
    ids = make_batch(padded=False)["input_ids"]
    embedded = model.embeddings.tokens(ids)
    assert probe_dispersion(model, {"inputs_embeds": embedded}) == probe_dispersion(model, {"input_ids": ids})
    causal = torch.ones(9, 9, dtype=torch.bool).tril()[None, None]
    layer = capture_scores(model, {"input_ids": ids, "attention_mask": causal})[0]
    assert torch.equal(layer.valid, causal.expand(layer.valid.shape))
    with pytest.raises(ValueError, match="Linear has no attention layer"):
        capture_scores(torch.nn.Linear(2, 2), {})
