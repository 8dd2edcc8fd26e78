"""A mask on a text with global tokens appended: they attend to all and are attended by all (Longformer's, learned)."""

import torch

from .mask_base import MaskStrategy
from .mask_inputs import MaskContext
from .mask_state import MaskState
from .mask_structure import Structure


class WithGlobalTokens(MaskStrategy):
    """`mask` among the tokens of the text, and g global tokens behind them.

    It has no name in specifications: a model makes it of its mask and ``num_global_tokens``.

    Args:
        mask: what the text's own tokens keep among themselves.
        g: how many of the last keys are global tokens.
    """

    mask: MaskStrategy
    g: int

    def __post_init__(self) -> None:
        for name in ("input_dependent", "redrawn", "row_by_row"):  # as `mask` has them
            object.__setattr__(self, name, getattr(self.mask, name))

    def structure(self, keys: int) -> Structure | None:
        """Everything if `mask` keeps everything, else not known; see :meth:`MaskStrategy.structure`."""
        inside = self.mask.known_structure(max(keys - self.g, 0))
        return Structure(rows=keys) if inside is not None and inside.rows >= keys - self.g else None

    def make_state(self, head_dim: int, heads: int) -> MaskState | None:
        """What `mask` learns; see :meth:`MaskStrategy.make_state`."""
        return self.mask.make_state(head_dim, heads)

    def keep(self, scores: torch.Tensor, valid: torch.Tensor, context: MaskContext) -> torch.Tensor:
        """What `mask` keeps of the text, and all global keys; a global query keeps all. See :meth:`MaskStrategy.keep`."""
        queries, text = scores.shape[-2], scores.shape[-1] - self.g
        valid = valid.expand(*valid.shape[:-1], scores.shape[-1])
        key = None if context.key is None else context.key[..., :text, :]
        inside = self.mask.kept(
            scores[..., :text], valid[..., :text], context.query, key,
            context.query_positions[:, 0, :, 0], context.key_positions[:, 0, 0, :text], context.state,
        )  # fmt: skip
        inside = inside.reshape((1,) * (4 - inside.dim()) + tuple(inside.shape))
        inside = inside.expand(*inside.shape[:2], queries, text)
        # By position, since a caller may ask for some of the queries only.
        is_global = context.query_positions >= context.key_positions[..., text : text + 1]
        return torch.cat([inside, inside.new_ones((*inside.shape[:3], self.g))], dim=-1) | is_global

    def __str__(self) -> str:
        return f"{self.mask} and {self.g} global token{'s' * (self.g != 1)}"

    __repr__ = __str__
