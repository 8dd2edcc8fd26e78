"""Strategies of a user's own: by scores among the keys of a pattern, and mistakes that are said in words."""

import pytest
import torch

from hf_semfocus import MaskStrategy, SemFocusConfig, SemFocusModel, parameter, parse_mask, register_mask_strategy
from hf_semfocus.analysis import reach
from hf_semfocus.model.topk import topk_keys


@register_mask_strategy("test_local_top")
class LocalTop(MaskStrategy):
    """The k largest scores among the keys at a distance of at most 2."""

    k: int = parameter(minimum=1)

    def pattern(self, query_positions, key_positions):
        return (query_positions - key_positions).abs() <= 2

    def keep(self, scores, valid, context):
        return topk_keys(scores, valid, self.k)


@register_mask_strategy("test_wrong")
class Wrong(MaskStrategy):
    """Returns what no mask can be."""

    how: str = parameter()

    def keep(self, scores, valid, context):
        return {"float": scores, "shape": scores[..., :1, :-1] > 0, "dims": scores[None] > 0, "none": None}[self.how]


def test_scores_choose_among_the_keys_of_a_pattern():
    scores = torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(0))
    valid = torch.ones(2, 1, 1, 9, dtype=torch.bool)
    valid[1, ..., :2] = False
    keep = parse_mask("test_local_top:2")(scores, valid)
    for b in range(2):
        for h in range(3):
            for q in range(9):
                near = [k for k in range(9) if abs(q - k) <= 2 and valid[b, 0, 0, k]]
                best = set(sorted(near, key=lambda k: -scores[b, h, q, k].item())[:2])
                assert set(keep[b, h, q].nonzero().flatten().tolist()) == best


def test_its_reach_is_that_of_the_pattern():
    assert reach("test_local_top:2", 16, 1).text == "±2 of 16 positions"
    assert not reach("test_local_top:2", 16, 3).sees_all
    assert reach("topk:2", 16, 1).sees_all


def test_what_a_mask_counts_is_what_its_class_says():
    assert [parse_mask("topp:0.9+sink:1").counts_queries, parse_mask("topp:0.9+sink:1").counts_keys] == [False, True]
    assert parse_mask("topk:3+banded:3").counts_queries

    class Sharper(type(parse_mask("topk:3"))):
        """A kind of top-k."""

    class Nearer(Sharper):
        """Looks at positions, and does not say so."""

        def keep(self, scores, valid, context):
            return context.query_positions > context.key_positions

    assert not Sharper(k=2).counts_queries
    assert Nearer(k=2).counts_queries
    assert Nearer(k=2).counts_keys


@pytest.mark.parametrize("how", ["float", "shape", "dims", "none"])
def test_a_strategy_that_returns_no_mask_is_named(how):
    model = SemFocusModel(SemFocusConfig(mask=f"test_wrong:{how}", num_hidden_layers=1))
    with pytest.raises(ValueError, match=f"'test_wrong:{how}' returned"):
        model(torch.randint(1, 9, (2, 5)))


def test_a_parameter_that_no_specification_could_write_is_refused():
    class Flagged(MaskStrategy):
        """With a parameter that is no text, whole number or number."""

        on: bool = parameter()

    with pytest.raises(ValueError, match=r"'flagged': parameter on is <class 'bool'>; allowed: int, float or str"):
        register_mask_strategy("flagged")(Flagged)
