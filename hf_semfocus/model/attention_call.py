"""One call of attention: what it computes from, checked once and handed on as one object.

Shapes: B batch, H query heads, G key and value heads (G divides H), Q queries, K keys, T head dim.
"""

import dataclasses
import math
from typing import Any

import torch

from .mask_base import MaskStrategy
from .mask_inputs import check_valid, first_valid_key
from .mask_registry import parse_mask
from .sparse_normalizers import normalizer_named


@dataclasses.dataclass
class AttentionCall:
    """What one call of attention computes from; :meth:`checked` makes it of what a user gives.

    Attributes:
        query, key, value: ``(B, H, Q, T)``, ``(B, G, K, T)``, ``(B, G, K, T_v)``, of one floating point dtype.
        mask: the strategy.
        valid: bool ``(B or 1, H or 1, Q or 1, K)``; None: every key is valid.
        scale: factor on the scores.
        dropout: probability with which a weight is dropped.
        query_positions, key_positions: see :meth:`MaskStrategy.__call__`; None: the default ones.
        keep: what `mask` keeps under `valid`, where the caller knows it already: bool with four dimensions.
        mask_state: what the layer has learnt, for strategies that learn (:meth:`MaskState.read`).
        normalizer: what makes weights of the kept scores.
        bias: added to the scores before the selection: four dimensions.
        softcap: c in ``c · tanh(D / c)``, which replaces the scaled scores before a bias is added.
        sink_logits: ``(H,)``: the score of one more key of each head, always kept, whose value is zero.
        return_weights: whether the weights are asked for too.
        first_query: index of the first query among the keys.
        shift: int64 ``(B, 1, 1, 1)``: the index of position 0, see :meth:`located`; None: 0.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: MaskStrategy
    valid: torch.Tensor | None
    scale: float
    dropout: float
    query_positions: torch.Tensor | None
    key_positions: torch.Tensor | None
    keep: torch.Tensor | None = None
    mask_state: Any = None
    normalizer: str = "softmax"
    bias: torch.Tensor | None = None
    softcap: float | None = None
    sink_logits: torch.Tensor | None = None
    return_weights: bool = False
    first_query: int = 0
    shift: torch.Tensor | None = None

    @classmethod
    def checked(
        cls,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask_spec: str | MaskStrategy,
        valid: torch.Tensor | None = None,
        scale: float | None = None,
        dropout: float = 0.0,
        query_positions: torch.Tensor | None = None,
        key_positions: torch.Tensor | None = None,
        **others: Any,
    ) -> "AttentionCall":
        """The call of these arguments, which are those of :func:`reference_attention`.

        Raises:
            ValueError: for shapes, dtypes, numbers or masks that do not fit, or an unknown normalizer.
        """
        check_attention_shapes(query, key, value)
        if not 0 <= dropout <= 1:
            raise ValueError(f"dropout must be a probability from 0 to 1, got {dropout!r}")
        normalizer_named(others.get("normalizer", "softmax"))
        if scale is None:
            scale = query.shape[-1] ** -0.5
        elif isinstance(scale, bool) or not isinstance(scale, (int, float)) or not math.isfinite(scale):
            raise ValueError(f"scale must be a finite number or None, got {scale!r}")
        queries, keys = query.shape[2], key.shape[2]
        if valid is not None:
            valid = check_valid(valid, (*query.shape[:3], keys))
        for name in ("keep", "bias"):
            if (given := others.get(name)) is not None:
                others[name] = given.reshape((1,) * (4 - given.dim()) + tuple(given.shape))
        return cls(
            query, key, value, parse_mask(mask_spec), valid, scale, dropout, query_positions, key_positions,
            first_query=max(keys - queries, 0), **others,
        )  # fmt: skip

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, H, Q, K)."""
        batch, heads, queries, _ = self.query.shape
        return batch, heads, queries, self.key.shape[2]

    @property
    def origin(self) -> torch.Tensor | int:
        """The index of position 0, as a number where it is 0 everywhere."""
        return 0 if self.shift is None else self.shift

    def located(self) -> "AttentionCall":
        """The same call with `shift` read off `valid`: position 0 is that of the first valid key."""
        if self.valid is None:
            return self
        shift = first_valid_key(self.valid).unsqueeze(-1).expand(self.shape[0], 1, 1, 1)
        return dataclasses.replace(self, shift=shift)

    def with_positions(self) -> "AttentionCall":
        """The same call with the positions that it has by default, so that a part of it keeps its place."""
        _, _, queries, keys = self.shape
        origin = self.origin if self.shift is None else self.shift.flatten(1)
        device, query_positions, key_positions = self.query.device, self.query_positions, self.key_positions
        if query_positions is None:
            query_positions = torch.arange(self.first_query, self.first_query + queries, device=device) - origin
        if key_positions is None:
            key_positions = torch.arange(keys, device=device) - origin
        return dataclasses.replace(self, query_positions=query_positions, key_positions=key_positions)

    def part(self, queries: slice, rows: slice = slice(None)) -> "AttentionCall":
        """The same call for some queries of some rows of the batch."""
        asked = None if self.query_positions is None else self.query_positions[..., queries]
        return dataclasses.replace(
            self,
            query=self.query[rows, :, queries],
            key=self.key[rows],
            value=self.value[rows],
            query_positions=_rows_of(asked, rows),
            key_positions=_rows_of(self.key_positions, rows),
            shift=_rows_of(self.shift, rows),
            first_query=self.first_query + (queries.start or 0),
            valid=_part_of(self.valid, rows, queries),
            keep=_part_of(self.keep, rows, queries),
            bias=_part_of(self.bias, rows, queries),
        )


def _rows_of(tensor: torch.Tensor | None, rows: slice) -> torch.Tensor | None:
    """Some rows of what may be the same for all."""
    return tensor if tensor is None or tensor.dim() == 1 or tensor.shape[0] == 1 else tensor[rows]


def _part_of(tensor: torch.Tensor | None, rows: slice, queries: slice) -> torch.Tensor | None:
    tensor = _rows_of(tensor, rows)
    return tensor if tensor is None or tensor.shape[2] == 1 else tensor[:, :, queries]


def check_attention_shapes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    """Raise ``ValueError``, naming the shapes, unless the three tensors fit together."""
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    if not query.dim() == key.dim() == value.dim() == 4:
        raise ValueError(f"query, key and value must have four dimensions (batch, heads, length, head dim): {shapes}")
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        raise ValueError(f"batch sizes differ: {shapes}")
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(f"query and key differ in head dim: {shapes}")
    if query.shape[-1] == 0 or value.shape[-1] == 0:
        raise ValueError(f"the head dim must be at least 1: {shapes}")
    if key.shape[1:3] != value.shape[1:3]:
        raise ValueError(f"key and value differ in heads or length: {shapes}")
    if key.shape[1] == 0 or query.shape[1] % key.shape[1]:
        raise ValueError(f"the number of query heads must be a multiple of the number of key heads: {shapes}")
    if not query.dtype == key.dtype == value.dtype or not query.dtype.is_floating_point:
        raise ValueError(
            f"query, key and value must share one floating point dtype, got {query.dtype}, {key.dtype}, {value.dtype}"
        )
