"""What a mask strategy is given: queries and keys, their positions, which keys are valid, and scores as they were accumulated."""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import torch


@dataclasses.dataclass
class MaskContext:
    """What a strategy may look at besides the scores.

    Attributes:
        query: ``(B, H, Q, T)`` or None, the queries.
        key: ``(B, H_kv, K, T)`` or None, the keys.
        query_positions: int64, broadcastable to ``(B, 1, Q, 1)``: the position of each query in the text.
        key_positions: int64, broadcastable to ``(B, 1, 1, K)``: the position of each key; the first valid key has
            position 0, padding in front of it has negative positions.
        state: what the layer has learnt for the strategy (:meth:`MaskState.read`), or None.
    """

    query: torch.Tensor | None
    key: torch.Tensor | None
    query_positions: torch.Tensor
    key_positions: torch.Tensor
    state: Any = None

    def query_and_key(self, mask: object) -> tuple[torch.Tensor, torch.Tensor]:
        """`query` and `key`, or a ``ValueError`` that says that `mask` needs them."""
        if self.query is None or self.key is None:
            raise ValueError(f"mask {str(mask)!r} looks at queries and keys; give them: mask(scores, query=…, key=…)")
        return self.query, self.key


def positions_of(
    given: torch.Tensor | None, name: str, count: int, start: int, first: torch.Tensor | None, device: torch.device
) -> torch.Tensor:
    """Positions as ``(1 or B, 1, count)``: those given, or ``start, start + 1, …`` counted from the first valid key."""
    if given is not None:
        if given.dim() not in (1, 2) or given.shape[-1] != count:
            raise ValueError(f"{name} must have shape ({count},) or (batch, {count}), got {tuple(given.shape)}")
        return (given if given.dim() == 2 else given[None])[:, None, :].to(device=device, dtype=torch.int64)
    steps = torch.arange(start, start + count, device=device)[None, None, :]
    return steps if first is None else steps - first


def first_valid_key(valid: torch.Tensor) -> torch.Tensor:
    """Index of the first key that any query of an example may see.

    Args:
        valid: bool, broadcastable to ``(B, H, Q, K)``.

    Returns:
        int64 ``(B, 1, 1)``; 0 where no key is valid.

    Example:
        >>> first_valid_key(torch.tensor([[[[False, False, True, True]]]])).item()
        2
    """
    seen = valid.reshape(valid.shape[0], -1, valid.shape[-1]).any(dim=1)
    return seen.to(torch.uint8).argmax(dim=-1)[:, None, None]


def check_valid(valid: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """`valid` with four dimensions, the last one full, or a ``ValueError`` that says what does not fit.

    Args:
        valid: bool, broadcastable to `shape`.
        shape: (batch, heads, queries, keys).
    """
    if valid.dtype != torch.bool:
        raise ValueError(f"valid must be boolean, got {valid.dtype}")
    if valid.dim() > 4 or any(
        size not in (1, full) for size, full in zip(valid.shape[::-1], shape[::-1], strict=False)
    ):
        raise ValueError(f"valid {tuple(valid.shape)} does not broadcast to scores {tuple(shape)}")
    valid = valid.reshape((1,) * (4 - valid.dim()) + tuple(valid.shape))
    # One column for all keys would hide where the first valid key is.
    return valid.expand(*valid.shape[:-1], shape[-1])


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which scores are accumulated: fp64 for fp64 inputs, fp32 for everything else."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def without_autocast(tensor: torch.Tensor) -> contextlib.AbstractContextManager[Any]:
    """A context in which autocast does not round: selection needs scores as they were accumulated."""
    # Autocast does not know the meta device, on which shapes are computed.
    kind = tensor.device.type
    return contextlib.nullcontext() if kind == "meta" else torch.autocast(device_type=kind, enabled=False)
