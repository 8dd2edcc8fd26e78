"""Mask stability: by hand on scores that are products of two numbers, by sets, and what it must not depend on."""

import importlib
import math

import pytest
import torch
from transformers import BertConfig, BertModel

from hf_semfocus import apply_attention
from hf_semfocus.analysis import capture_scores, mask_stability
from hf_semfocus.model.configuration_semfocus import SemFocusConfig
from hf_semfocus.model.modeling_semfocus import SemFocusForSequenceClassification, SemFocusModel

from .test_capture import make_batch, make_model


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_by_hand():
    # One number a token, scores x_i · x_j: a positive query keeps the largest key, a negative one the smallest.
    config = SemFocusConfig(
        vocab_size=4, hidden_size=1, intermediate_size=1, num_hidden_layers=1, attention_form="bilinear", mask="topk:1",
        position_embedding_type="none",
    )  # fmt: skip
    model = SemFocusModel(config)
    model.encoder.layers[0].attention.score_matrix.weight.data.fill_(1.0)
    values = [1.0, 2.0, -3.0, 2.5]
    embedded = torch.tensor(values)[None, :, None]
    rms = math.sqrt(sum(value**2 for value in values) / 4)
    seen = set()
    for seed in range(12):
        noise = torch.randn((1, 4, 1), generator=seeded(seed)).flatten().tolist()
        moved = [value + 0.3 * rms * z for value, z in zip(values, noise, strict=True)]

        def kept(x):
            return [max(range(4), key=lambda j, q=q: q * x[j]) for q in x]

        expected = sum(a == b for a, b in zip(kept(values), kept(moved), strict=True)) / 4
        found = mask_stability(model, {"inputs_embeds": embedded}, 0.3, seeded(seed))
        assert found.kept_share.tolist() == [[expected]]
        seen.add(expected)
    assert len(seen) > 1
    # x_i · (largest − second): 1·0.5, 2·0.5, −3·(−3 − 1), 2.5·0.5
    torch.testing.assert_close(found.separation[0], torch.tensor([0.5, 1.0, 12.0, 1.25]))


@pytest.mark.parametrize("mask", [None, "topk:2+banded:3"])
def test_equals_the_definition_by_sets(mask):
    model, batch, eps = make_model("topk:3"), make_batch(), (0.05, 0.5)
    real = batch["attention_mask"].bool()
    embedded = model.get_input_embeddings()(batch["input_ids"]).detach()
    rms = embedded[real].pow(2).mean().sqrt()
    noise = torch.randn(embedded.shape, generator=seeded()) * real[..., None]
    found = mask_stability(model, {**batch, "labels": torch.zeros(4)}, eps, seeded(), mask=mask)
    clean = capture_scores(model, batch, mask)
    for row, size in enumerate(eps):
        disturbed = {"inputs_embeds": embedded + size * rms * noise, "attention_mask": batch["attention_mask"]}
        for index, layer in enumerate(capture_scores(model, disturbed, mask)):
            shares = []
            for before, after in zip(clean[index].keep.flatten(0, 2), layer.keep.flatten(0, 2), strict=True):
                old, new = (set(keys.nonzero().flatten().tolist()) for keys in (before, after))
                if old:
                    shares.append(len(old & new) / len(old))
            assert len(shares) == 2 * int(real.sum())
            assert found.by_query[index][row].tolist() == pytest.approx(shares)
            assert found.kept_share[row, index].item() == pytest.approx(sum(shares) / len(shares))
    assert found.kept_share[1].mean() < found.kept_share[0].mean() < 1


def test_no_noise_and_masks_that_do_not_look_at_scores_keep_everything():
    batch = make_batch()
    assert (mask_stability(make_model("topk:3"), batch, 0, seeded()).kept_share == 1).all()
    for mask in ("full", "banded:3", "topk:9"):
        assert (mask_stability(make_model(mask), batch, 3.0, seeded()).kept_share == 1).all()


def test_well_separated_queries_keep_more():
    found = mask_stability(make_model("topk:3"), make_batch(rows=40, padded=False), 0.2, seeded())
    gap, share = torch.cat(found.separation), torch.cat(found.by_query, dim=1)[0]
    wide = gap > gap.median()
    assert share[wide].mean() > share[~wide].mean() + 0.1


def test_padding_counts_for_nothing():
    model, batch = make_model("topk:3"), make_batch()
    embedded = model.get_input_embeddings()(batch["input_ids"]).detach()
    results = []
    for filling in (0.0, 50.0):
        filled = torch.where(batch["attention_mask"].bool()[..., None], embedded, filling)
        inputs = {"inputs_embeds": filled, "attention_mask": batch["attention_mask"]}
        results.append(mask_stability(model, inputs, (0.1, 1.0), seeded()))
    assert torch.equal(results[0].kept_share, results[1].kept_share)
    additive = torch.zeros(4, 1, 9, 9).masked_fill(~batch["attention_mask"].bool()[:, None, None], -math.inf)
    four = mask_stability(model, {**batch, "attention_mask": additive}, (0.1, 1.0), seeded())
    torch.testing.assert_close(four.kept_share, results[0].kept_share)


def test_rows_at_a_time_give_the_same(monkeypatch):
    model, batch = make_model("topk:3"), make_batch()
    whole = mask_stability(model, batch, (0.1, 1.0), seeded())
    monkeypatch.setattr(importlib.import_module("hf_semfocus.analysis.mask_stability"), "CHUNK_ELEMENTS", 1)
    parts = mask_stability(model, batch, (0.1, 1.0), seeded())
    torch.testing.assert_close(parts.kept_share, whole.kept_share)


def test_it_leaves_no_trace_and_repeats():
    model = make_model("topk:3", cls=SemFocusForSequenceClassification, hidden_dropout=0.5).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    first = mask_stability(model, make_batch(), 0.2, seeded(1))
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(mask_stability(model, make_batch(), 0.2, seeded(1)).kept_share, first.kept_share)
    assert not torch.equal(mask_stability(model, make_batch(), 0.2, seeded(2)).kept_share, first.kept_share)


def test_other_models_and_bad_numbers():
    torch.manual_seed(0)
    sizes = {"vocab_size": 12, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = apply_attention(BertModel(BertConfig(**sizes, intermediate_size=8)), "topk:3")
    found = mask_stability(model, make_batch(), [0.01, 0.3], seeded())
    assert found.kept_share.shape == (2, 2)
    assert (found.kept_share[0] > found.kept_share[1]).all()
    for eps in (-0.1, [], [0.1, math.nan], math.inf):
        with pytest.raises(ValueError, match="eps is"):
            mask_stability(model, make_batch(), eps, seeded())
