"""Input-dependent mask strategies ("heavy hitters"): the kept keys are chosen by their scores (DESIGN section 2)."""

from fractions import Fraction

import torch

from .mask_base import MaskStrategy
from .mask_inputs import MaskContext
from .mask_parameters import parameter
from .mask_registry import register_mask_strategy
from .mask_structure import Structure
from .topk import keep_largest, topk_keys


@register_mask_strategy("topk")
class TopK(MaskStrategy):
    """The k largest scores of each query among its valid keys: exactly min(k, valid), ties to the lowest key index.

    A row that holds NaN keeps at least its NaN keys, so that the NaN shows in the output of that query and of no other.
    """

    k: int = parameter(minimum=1)
    row_by_row = True
    counts_queries = counts_keys = False

    def structure(self, keys: int) -> Structure:
        """A selection; see :meth:`MaskStrategy.structure`."""
        return Structure(selected=min(self.k, keys))

    def keep(self, scores: torch.Tensor, valid: torch.Tensor, context: MaskContext) -> torch.Tensor:
        """The k largest scores; see :meth:`MaskStrategy.keep`."""
        return topk_keys(scores, valid, self.k)


@register_mask_strategy("botk")
class BotK(MaskStrategy):
    """A control: the k smallest scores of each query among its valid keys, ties to the lowest key index.

    As :class:`TopK` in all else: exactly min(k, valid) keys, and NaN is kept.
    """

    k: int = parameter(minimum=1)
    counts_queries = counts_keys = False
    row_by_row = True

    def keep(self, scores: torch.Tensor, valid: torch.Tensor, context: MaskContext) -> torch.Tensor:
        """The k smallest scores; see :meth:`MaskStrategy.keep`."""
        return topk_keys(torch.where(valid, -scores, -torch.inf), valid, self.k)


# Masses are added and compared as whole numbers, so that neither the order of a sum nor a device makes a difference.
# Mass times denominator fits int64.
MASS_PARTS = 2**40
LARGEST_DENOMINATOR = 2**20


@register_mask_strategy("topp")
class TopP(MaskStrategy):
    """The smallest set of keys whose softmax mass reaches p: the nucleus of the scores.

    With the valid keys of a query in falling order of their scores, equal scores by rising index, and
    ``P_j = exp(D_j) / Σ exp(D_l)`` over its valid keys, a key is kept if and only if the keys before it have a mass
    below p together. So at least one key is kept where one is valid, and no kept key can be left out. Masses are as exact
    as the dtype of the scores, and rounded to 2⁻⁴⁰; ``p = 1`` keeps every valid key. A row that holds NaN keeps at
    least its NaN keys.

    A few keys are kept where attention is sharp and many where it is flat: the number is not bounded, so attention needs
    all scores. Cost: a sort of each row, O(Q · K log K), besides dense scores.

    Source: Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration", section 3.1, for words; here for keys.
    """

    p: float = parameter(above=0.0, maximum=1.0)
    row_by_row = True
    counts_queries = counts_keys = False

    def keep(self, scores: torch.Tensor, valid: torch.Tensor, context: MaskContext) -> torch.Tensor:
        """The largest scores that have the mass p together; see :meth:`MaskStrategy.keep`."""
        if self.p == 1:
            return valid
        ordered = scores.sort(dim=-1, descending=True).values
        precise = torch.promote_types(ordered.dtype, torch.float32)
        # No mass where nothing is valid, and where NaN or inf makes it unknown: one key, and all NaN, are kept then.
        mass = (ordered.softmax(dim=-1, dtype=precise) * MASS_PARTS).nan_to_num(0.0).to(torch.int64)
        before = mass.cumsum(dim=-1) - mass
        share = Fraction(repr(self.p)).limit_denominator(LARGEST_DENOMINATOR)
        wanted = mass.sum(dim=-1, keepdim=True) * share.numerator
        count = (before * share.denominator < wanted).sum(dim=-1, keepdim=True).clamp(min=1)
        return keep_largest(scores, ordered.gather(-1, count - 1), count, valid)
