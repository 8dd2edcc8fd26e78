"""Capture from models of Transformers whose attention is ours: what is captured is what they compute, also in parts."""

import pytest
import torch
from transformers import AutoModelForMaskedLM

from hf_semfocus import apply_attention
from hf_semfocus.analysis import capture, capture_scores, dispersion, probe_dispersion
from hf_semfocus.integrations.attention import observers
from tests.integrations import any_models
from tests.integrations.any_models import SIZES


def albert():
    return any_models.made(AutoModelForMaskedLM, "albert", **SIZES, embedding_size=8)


def make(kind, mask="topk:3"):
    build = albert if kind == "albert" else getattr(any_models, kind)
    return apply_attention(any_models.make(build, torch.float32), mask)


def make_batch(side="right"):
    ids = torch.randint(3, 30, (3, 11), generator=torch.Generator().manual_seed(1))
    real = torch.ones_like(ids)
    if side == "right":
        real[1, 7:] = 0
    else:
        real[1, :4] = 0
    return {"input_ids": ids * real, "attention_mask": real}


KINDS = ["bert", "albert", "llama", "gemma2", "modernbert"]


@pytest.mark.parametrize("mask", ["topk:3", "banded:3+sink:1"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_softmax_of_what_is_captured_is_the_models_own_attention(kind, mask):
    model = make(kind, mask)
    batch = make_batch("left" if kind in ("llama", "gemma2") else "right")
    with torch.no_grad():
        plain = model(**batch)
        attentions = model(**batch, output_attentions=True).attentions
    layers = capture_scores(model, batch)
    assert len(layers) == len(attentions) == model.config.num_hidden_layers
    real = batch["attention_mask"].bool()
    for layer, weights in zip(layers, attentions, strict=True):
        own = layer.scores.masked_fill(~layer.keep, -torch.inf).softmax(-1).nan_to_num(0)
        torch.testing.assert_close(own, weights * real[:, None, :, None])
        assert not (layer.valid & ~(real[:, None, :, None] & real[:, None, None, :])).any()
        assert layer.input_dependent == ("topk" in mask)
    with torch.no_grad():
        assert torch.equal(model(**batch).logits, plain.logits)
    assert not observers


@pytest.mark.parametrize("mask", ["topk:3", "banded:3+sink:1", "block:4"])
@pytest.mark.parametrize("kind", ["bert", "llama"])
@pytest.mark.parametrize("most", [1, 3 * 11 * 4, 2 * 4 * 11 * 11])  # one query, three queries, two rows at a time
def test_parts_give_what_the_whole_gives(kind, mask, most, monkeypatch):
    model, batch = make(kind, mask), make_batch("left")
    whole = capture_scores(model, batch)
    monkeypatch.setattr(capture, "CHUNK_ELEMENTS", most)
    parts = {0: [], 1: []}
    capture.visit_scores(model, batch, lambda index, part: parts[index].append(part))
    for index, layer in enumerate(whole):
        assert all(part.scores.numel() <= max(most, 4 * 11) for part in parts[index])
        for name in ("scores", "keep", "valid"):
            # A single query is (B=1, H, 1, K): parts are in order of rows, then of queries.
            rows, held = [], []
            for part in parts[index]:
                held.append(getattr(part, name))
                if sum(piece.shape[2] for piece in held) == 11:
                    rows.append(torch.cat(held, dim=2))
                    held = []
            together = torch.cat(rows)
            if name == "scores":
                torch.testing.assert_close(together, layer.scores)
            else:
                assert torch.equal(together, getattr(layer, name))


def test_another_mask_on_the_same_scores():
    model, batch = make("bert", "full"), make_batch()
    own, other = capture_scores(model, batch), capture_scores(model, batch, mask="topk:2")
    for full, top in zip(own, other, strict=True):
        assert torch.equal(full.scores, top.scores)
        assert torch.equal(full.keep, full.valid)
        count = top.keep.sum(-1)
        assert torch.equal(count, full.valid.sum(-1).clamp(max=2))
        kept = dispersion(top.scores, top.keep)
        assert (kept <= dispersion(full.scores, full.keep))[~kept.isnan()].all()
    measured = probe_dispersion(model, batch)
    assert measured["mask"] == measured["full"]


def test_encoder_and_decoder_are_all_captured():
    model = make("bart")
    batch = make_batch() | {"decoder_input_ids": torch.ones(3, 5, dtype=torch.int64)}
    shapes = [tuple(layer.scores.shape) for layer in capture_scores(model, batch)]
    assert shapes == [(3, 4, 11, 11), (3, 4, 5, 5), (3, 4, 5, 11)]
    across = capture_scores(model, batch)[-1]
    assert torch.equal(across.valid, batch["attention_mask"].bool()[:, None, None].expand(3, 4, 5, 11))


def test_models_without_our_attention_are_refused():
    with pytest.raises(
        ValueError, match=r"BertForMaskedLM has no attention layer with a mask strategy.*apply_attention"
    ):
        capture_scores(any_models.bert(), make_batch())


def test_a_model_beside_is_not_taken_for_this_one():
    beside, model = make("bert"), make("bert", "topk:5")
    with torch.no_grad():
        model.bert.embeddings.register_forward_pre_hook(lambda *_: beside(**make_batch()) and None)
        assert [layer.keep.sum(-1).max() for layer in capture_scores(model, make_batch())] == [5, 5]
