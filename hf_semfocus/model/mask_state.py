"""What a mask strategy learns beside a model's weights: buffers of each attention layer, saved with the checkpoint.

A strategy itself is frozen and shared. One that learns gives a :class:`MaskState` to every layer
(:meth:`MaskStrategy.make_state`), and finds what it holds in ``context.state`` when it is asked which keys are kept.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

Copy = Callable[[torch.Tensor, torch.Tensor], Any]


class MaskState(nn.Module):
    """The state of one strategy in one attention layer; subclasses hold it in persistent buffers.

    A layer calls :meth:`read` once a forward pass, asks the strategy with what it got, and in training mode calls
    :meth:`learn` with it. What is learnt must not change what `read` gives before the next pass in training mode: with
    gradient checkpointing a layer computes the same pass twice.
    """

    def reset(self, copy: Copy = torch.Tensor.copy_) -> None:
        """Fill the buffers with what training starts from; no generator may be touched.

        Args:
            copy: how a value goes into a buffer; Transformers has one that leaves loaded buffers alone.
        """
        raise NotImplementedError(f"{type(self).__name__} must define reset()")

    def read(self) -> Any:
        """What ``context.state`` is in this forward pass: tensors that nobody changes later."""
        raise NotImplementedError(f"{type(self).__name__} must define read()")

    def learn(self, read: Any, query: torch.Tensor, key: torch.Tensor, real: torch.Tensor | None) -> None:
        """Take in one batch; called without gradients, and again with the same arguments where a pass is repeated.

        Args:
            read: what :meth:`read` gave to this pass.
            query: ``(B, H, L, T)``.
            key: ``(B, G, L, T)``.
            real: bool ``(B or 1, L)``: which positions are text and not padding; None: all.
        """
        raise NotImplementedError(f"{type(self).__name__} must define learn()")


class UnionState(MaskState):
    """The states of a union's parts; None for a part that has none."""

    def __init__(self, states: Sequence[MaskState | None]) -> None:
        super().__init__()
        self.count = len(states)
        self.parts = nn.ModuleDict({str(place): state for place, state in enumerate(states) if state is not None})

    def reset(self, copy: Copy = torch.Tensor.copy_) -> None:
        """Each part's; see :meth:`MaskState.reset`."""
        for state in self.parts.values():
            state.reset(copy)  # type: ignore[operator]

    def read(self) -> tuple[Any, ...]:
        """What each part reads, None for one without a state; see :meth:`MaskState.read`."""
        places = (str(place) for place in range(self.count))
        return tuple(self.parts[place].read() if place in self.parts else None for place in places)  # type: ignore[operator]

    def learn(self, read: Any, query: torch.Tensor, key: torch.Tensor, real: torch.Tensor | None) -> None:
        """Each part's; see :meth:`MaskState.learn`."""
        for place, state in self.parts.items():
            state.learn(read[int(place)], query, key, real)  # type: ignore[operator]
