"""Entropy of attention at the start against a direct computation from the model's own weights, and the gain for a target."""

import math

import pytest
import torch

from hf_semfocus.analysis import capture as capture_module
from hf_semfocus.analysis import choose_attention_gain, initial_attention
from hf_semfocus.analysis.initial_attention import entropy
from hf_semfocus.model.modeling_semfocus import SemFocusModel
from tests.analysis.test_capture import make_batch, make_model


def direct(model, batch):
    """Nats and normalised entropy of every query's weights, by `output_attentions` and plain loops."""
    with torch.no_grad():
        attentions = model.eval()(**batch, output_attentions=True).attentions
    nats, shares = [], []
    for weights in attentions:
        for row, real in zip(weights, batch["attention_mask"].bool(), strict=True):
            for head in row:
                for query in head[real].double():
                    terms = [-w * math.log(w) for w in query.tolist() if w > 0]
                    nats.append(sum(terms))
                    shares.append(sum(terms) / math.log(int(real.sum())))
    return sum(nats) / len(nats), sum(shares) / len(shares)


@pytest.mark.parametrize("mask", ["full", "topk:3", "banded:3"])
def test_entropy_is_that_of_the_weights_the_model_uses(mask):
    model, batch = make_model(mask, attention_gain=2.0), make_batch()
    found = initial_attention(model, batch)
    nats, share = direct(model, batch)
    assert found.entropy_nats == pytest.approx(nats, rel=1e-5)
    assert found.entropy == pytest.approx(share, rel=1e-5)
    assert found.entropy == pytest.approx(sum(found.entropy_by_layer) / 3, rel=1e-6)
    if mask == "full":
        assert (found.entropy, found.dispersion_kept) == (found.entropy_all, found.dispersion_all)
    else:
        assert found.entropy < found.entropy_all
        assert found.dispersion_kept < found.dispersion_all


def test_uniform_attention_has_entropy_one_and_topk_no_more_than_its_bound():
    batch = make_batch(padded=False)
    uniform = initial_attention(make_model("full", attention_gain=0.0, attention_bias=False), batch)
    assert (uniform.entropy, uniform.dispersion_all) == (pytest.approx(1), pytest.approx(0))
    kept = initial_attention(make_model("topk:3", attention_gain=0.0, attention_bias=False), batch)
    assert kept.entropy_nats == pytest.approx(math.log(3))
    assert kept.entropy == pytest.approx(math.log(3) / math.log(9))
    assert kept.entropy_all == pytest.approx(1)


def test_parts_give_what_the_whole_gives(monkeypatch):
    model, batch = make_model(), make_batch()
    whole = initial_attention(model, batch)
    monkeypatch.setattr(capture_module, "CHUNK_ELEMENTS", 50)
    parts = initial_attention(model, batch)
    assert parts.entropy == pytest.approx(whole.entropy, rel=1e-6)
    assert parts.entropy_by_layer == pytest.approx(whole.entropy_by_layer, rel=1e-6)


def test_labels_are_not_looked_at_and_modes_stay():
    model, batch = make_model().train(), make_batch()
    assert initial_attention(model, {**batch, "labels": torch.zeros(4, dtype=torch.int64)}).entropy > 0
    assert model.training


def test_one_token_has_no_entropy():
    with pytest.raises(ValueError, match="two valid keys"):
        initial_attention(make_model(), {"input_ids": torch.tensor([[3]])})


@pytest.mark.parametrize(
    ("mask", "target", "keys"), [("full", 0.7, "kept"), ("topk:3", 0.3, "kept"), ("topk:3", 0.7, "all")]
)
def test_the_chosen_gain_gives_the_target(mask, target, keys):
    config, batch = make_model(mask, cls=SemFocusModel).config, make_batch()
    state = torch.random.get_rng_state()
    gain = choose_attention_gain(config, batch, target, keys=keys, seed=3)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(3)
    found = initial_attention(
        SemFocusModel(type(config).from_dict({**config.to_dict(), "attention_gain": gain})), batch
    )
    assert (found.entropy if keys == "kept" else found.entropy_all) == pytest.approx(target, abs=2e-3)
    assert config.attention_gain == 1.0


def test_a_function_from_gain_to_model_will_do():
    batch = make_batch()
    gain = choose_attention_gain(lambda gain: make_model("full", attention_gain=gain), batch, 0.8)
    assert initial_attention(make_model("full", attention_gain=gain), batch).entropy == pytest.approx(0.8, abs=2e-3)


def test_an_impossible_target_says_what_can_be_had():
    config, batch = make_model("topk:3", cls=SemFocusModel).config, make_batch(padded=False)
    with pytest.raises(ValueError, match=r"target_entropy is 0.9; allowed: 0\.\d+ to 0\.\d+"):
        choose_attention_gain(config, batch, 0.9)
    with pytest.raises(ValueError, match="0 < lowest < highest"):
        choose_attention_gain(config, batch, 0.3, lowest=2, highest=1)
    with pytest.raises(ValueError, match="keys is 'some'"):
        choose_attention_gain(config, batch, 0.3, keys="some")


def test_entropy_of_zeros_is_zero():
    assert entropy(torch.zeros(3)).item() == 0
    assert entropy(torch.full((4,), 0.25)).item() == pytest.approx(math.log(4))
