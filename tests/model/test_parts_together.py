"""What acts together: a pattern with a choice by scores, a union, a structure; a mask of each head; weights and dropout; losses."""

import pytest
import torch

from hf_semfocus import (
    MaskStrategy,
    SemFocusConfig,
    SemFocusForSequenceClassification,
    SemFocusModel,
    parameter,
    parse_mask,
    register_mask_strategy,
)
from hf_semfocus.attention import reference_attention, sparse_attention
from hf_semfocus.model import mask_registry
from hf_semfocus.model.mask_structure import Structure


@pytest.fixture
def near(monkeypatch):
    """`near:k`: the k largest scores among the keys at a distance of 2 at most, and the structure that follows."""
    monkeypatch.setattr(mask_registry, "_REGISTRY", dict(mask_registry._REGISTRY))

    @register_mask_strategy("near")
    class Near(MaskStrategy):
        """The k best of five keys."""

        k: int = parameter(minimum=1)
        row_by_row = True

        def pattern(self, query_positions, key_positions):
            return (query_positions - key_positions).abs() <= 2

        def keep(self, scores, valid, context):
            best = scores.topk(min(self.k, scores.shape[-1]), -1).indices
            return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best, True)

        def structure(self, keys):
            return Structure(window=2)


def test_a_part_of_a_union_keeps_what_it_keeps_alone(near):
    scores = torch.zeros(1, 1, 6, 6)
    scores[..., 5] = 9.0  # too far from the first three queries
    alone = parse_mask("near:1")(scores)
    assert not alone[0, 0, :3, 5].any()
    assert torch.equal(parse_mask("near:1+sink:1")(scores), alone | parse_mask("sink:1")(scores))


@pytest.mark.parametrize("spec", ["near:1", "near:1+banded:3", "near:2+topk:3"])
@pytest.mark.parametrize("length", [60, 200])
def test_a_choice_by_scores_is_not_lost_where_a_structure_is_known(near, spec, length):
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, 1, length, 8).unbind(0)
    output = sparse_attention(query, key, value, spec)
    assert torch.allclose(output, reference_attention(query, key, value, spec), atol=1e-5)


@pytest.mark.parametrize("value", [1e16, 1.5e-9, 0.25])
def test_a_written_float_is_read_back(monkeypatch, value):
    monkeypatch.setattr(mask_registry, "_REGISTRY", dict(mask_registry._REGISTRY))

    @register_mask_strategy("scaled")
    class Scaled(MaskStrategy):
        """A float."""

        t: float = parameter()

        def pattern(self, query_positions, key_positions):
            return query_positions >= key_positions

    assert parse_mask(str(Scaled(value))) == Scaled(value)


@pytest.mark.parametrize("options", [{"mask": "banded:5"}, {"mask": "full", "normalizer": "sparsemax"},
                                     {"mask": "random:3", "num_global_tokens": 1}])  # fmt: skip
def test_a_boolean_mask_of_each_head_is_taken(options):
    torch.manual_seed(0)
    model = SemFocusModel(SemFocusConfig(num_attention_heads=2, **options)).eval()
    length = 6
    mask = torch.rand(2, 2, length, length) < 0.7
    mask |= torch.eye(length, dtype=torch.bool)
    ids = torch.randint(1, 9, (2, length))
    fast = model(ids, attention_mask=mask).last_hidden_state
    model.set_attn_implementation("eager")
    assert torch.allclose(fast, model(ids, attention_mask=mask).last_hidden_state, atol=1e-5)


@pytest.mark.parametrize("mask", ["banded:5", "block:8", "full"])
def test_asking_for_attentions_changes_no_dropout(mask):
    model = SemFocusModel(SemFocusConfig(mask=mask, attention_dropout=0.3)).train()
    ids = torch.randint(1, 9, (2, 200))
    states = []
    for asked in (False, True):
        torch.manual_seed(1)
        states.append(model(ids, output_attentions=asked).last_hidden_state)
    assert torch.equal(*states)


def test_rows_without_a_label_do_not_weigh_in_an_accumulated_loss():
    model = SemFocusForSequenceClassification(SemFocusConfig(num_labels=2)).eval()
    ids, labels = torch.randint(1, 9, (4, 5)), torch.tensor([0, 1, -100, 1])
    whole = model(ids, labels=labels).loss
    parts = [
        model(ids[rows], labels=labels[rows], num_items_in_batch=torch.tensor(3)).loss.item()
        for rows in ([0, 1], [2], [3])
    ]
    assert sum(parts) == pytest.approx(whole.item())
    assert parts[1] == 0
