"""Reach: how far information can travel through the layers under a mask, so that "no benefit" is not taken for
"cannot see"."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import torch

from ..model.mask_strategies import MaskStrategy, mask_parts, parse_mask
from ..schema import ReachRecord
from ..text import reach_text


@dataclass(frozen=True)
class Reach:
    """What the outputs of the last layer can depend on.

    Args:
        kind: "all"; "window": each query sees up to `left` and `right` positions beside it; "block": those of its block; "some".
        left, right: the farthest that any query can see to each side, in positions.
        sees_all: whether every query can see every position.
        length: of the text, in positions.
        fewest, most: positions that a query sees.
    """

    kind: Literal["all", "window", "block", "some"]
    left: int
    right: int
    sees_all: bool
    length: int
    fewest: int
    most: int

    @property
    def text(self) -> str:
        """In words: "all", "±6 of 20 positions", "own block of 5", "3 to 8 of 20 positions"."""
        return reach_text(ReachRecord(**asdict(self)))


def reach(mask: str | MaskStrategy | Sequence[str | MaskStrategy], length: int, layers: int) -> Reach:
    """How far information can travel through `layers` attention layers under `mask` in a text of `length` positions.

    Found by multiplying the boolean patterns of the layers, each with the identity (the residual connection) added.
    Parts that choose keys by their scores, or draw them again in each call, can choose any key (of their pattern, where they have one),
    so they count as able to reach all of those. Pooling comes after the last layer and is not counted: with mean pooling
    a classifier still averages over all positions, each of which has seen this much.

    Args:
        mask: a specification such as "banded:5", a strategy, or one of these for each layer.
        length: number of positions, ≥ 1, no padding.
        layers: number of attention layers, ≥ 1.

    Raises:
        ValueError: for an unknown mask, or numbers out of range.

    Example:
        >>> reach("banded:5", length=40, layers=5).text
        '±10 of 40 positions'
    """
    if length < 1 or layers < 1:
        raise ValueError(f"length is {length} and layers {layers}; allowed: at least 1 each")
    if isinstance(mask, str | MaskStrategy):
        mask = [mask] * layers
    if len(mask) != layers:
        raise ValueError(f"{len(mask)} masks for {layers} layers; allowed: one mask, or one a layer")
    seen_LL = torch.eye(length, dtype=torch.bool)
    for spec in mask:
        step_LL = _pattern(parse_mask(spec), length) | torch.eye(length, dtype=torch.bool)
        # float32 counts paths exactly enough: a sum of ones is 0 only if every term is.
        seen_LL = (step_LL.float() @ seen_LL.float()) > 0
    return _described(seen_LL)


def _pattern(mask: MaskStrategy, length: int) -> torch.Tensor:
    """The keys that each query may keep, whatever the scores: bool (L, L)."""
    pattern_LL = torch.zeros((length, length), dtype=torch.bool)
    for part in mask_parts(mask):
        if part.fixed:
            pattern_LL |= part.on_positions(length)
        elif part.limited_to_pattern:
            position = torch.arange(length)
            pattern_LL |= part.pattern(position[:, None], position[None, :])
        else:
            pattern_LL |= True
    return pattern_LL


def _described(seen_LL: torch.Tensor) -> Reach:
    length = len(seen_LL)
    position = torch.arange(length)
    offset_LL = position[None, :] - position[:, None]
    seen_offsets = offset_LL[seen_LL]
    left, right = -int(seen_offsets.min()), int(seen_offsets.max())
    counts = seen_LL.sum(-1)
    fewest, most, block = int(counts.min()), int(counts.max()), int(counts[0])
    kind: Literal["all", "window", "block", "some"] = "some"
    if bool(seen_LL.all()):
        kind = "all"
    elif torch.equal(seen_LL, (offset_LL >= -left) & (offset_LL <= right)):
        kind = "window"
    elif torch.equal(seen_LL, position[:, None] // block == position[None, :] // block):
        kind, most = "block", block
    return Reach(kind, left, right, kind == "all", length, fewest, most)
