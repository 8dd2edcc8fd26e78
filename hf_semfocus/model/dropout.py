"""Dropout at a small rate for the cost of what it drops: places are drawn, not a number for every element.

The gaps between dropped elements of independent draws are geometric, so drawing gaps until they pass the last element gives
the same law as a draw for each element. It is used on CPUs, where drawing a number costs more than multiplying by it.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

# Above this rate, and below this size, a draw for each element is as cheap.
LARGEST_RATE = 0.1
FEWEST_ELEMENTS = 2**12


def draws_places(tensor: torch.Tensor, p: float) -> bool:
    """Whether dropout of `tensor` at rate `p` draws places; elsewhere it is ``torch.nn.functional.dropout``."""
    return (
        0 < p <= LARGEST_RATE
        and tensor.device.type == "cpu"
        and tensor.numel() >= FEWEST_ELEMENTS
        and tensor.is_contiguous()
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
    )


def dropped_places(count: int, p: float) -> torch.Tensor:
    """Which of `count` elements are dropped, each with probability `p` and independently; int64, ascending.

    Draws from torch's global CPU generator.

    >>> int(dropped_places(100_000, 0.01).diff().min()) >= 1
    True
    """
    expected = count * p
    # Enough with a probability of all but 1e-9; what lacks is drawn after it.
    draws = int(expected + 6 * math.sqrt(expected) + 12)
    places = torch.empty(draws, dtype=torch.int64).geometric_(p).cumsum(0).sub_(1)
    while int(places[-1]) < count:
        more = torch.empty(draws, dtype=torch.int64).geometric_(p).cumsum(0)
        places = torch.cat([places, places[-1] + more])
    return places[: int(torch.searchsorted(places, count))]


class Dropout(nn.Dropout):
    """``torch.nn.Dropout``, in distribution."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Dropout in training mode."""
        return dropout(input, self.p) if self.training else input

    def add(self, residual: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
        """``residual + self(update)``, for equal shapes."""
        if self.training and draws_places(update, self.p) and residual.is_contiguous():
            return _AddDropped.apply(residual, update, self.p)
        return residual + self(update)


def dropout(tensor: torch.Tensor, p: float) -> torch.Tensor:
    """Dropout in training: each element is 0 with probability `p`, and is divided by 1 − p otherwise."""
    if p == 0:
        return tensor
    return _Dropout.apply(tensor, p) if draws_places(tensor, p) else F.dropout(tensor, p)


def relu_dropped(tensor: torch.Tensor, p: float) -> torch.Tensor:
    """``relu(dropout(tensor))``."""
    return _ReluDropped.apply(tensor, p) if draws_places(tensor, p) else F.relu(dropout(tensor, p))


def _scaled_without(tensor: torch.Tensor, factor: float, places: torch.Tensor) -> torch.Tensor:
    scaled = tensor * factor
    scaled.view(-1).index_fill_(0, places, 0.0)
    return scaled


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, p: float) -> torch.Tensor:
        places = dropped_places(tensor.numel(), p)
        ctx.p = p
        ctx.save_for_backward(places)
        return _scaled_without(tensor, 1 / (1 - p), places)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (places,) = ctx.saved_tensors
        return _scaled_without(grad.contiguous(), 1 / (1 - ctx.p), places), None


class _AddDropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, residual: torch.Tensor, update: torch.Tensor, p: float) -> torch.Tensor:
        places = dropped_places(update.numel(), p)
        ctx.p, ctx.dtype = p, update.dtype
        ctx.save_for_backward(places)
        total = torch.add(residual, update, alpha=1 / (1 - p))
        total.view(-1).index_copy_(0, places, residual.view(-1)[places].to(total.dtype))
        return total

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        (places,) = ctx.saved_tensors
        return grad, _scaled_without(grad.contiguous(), 1 / (1 - ctx.p), places).to(ctx.dtype), None


class _ReluDropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, p: float) -> torch.Tensor:
        ctx.p = p
        active = tensor.clamp_min(0).mul_(1 / (1 - p))
        active.view(-1).index_fill_(0, dropped_places(tensor.numel(), p), 0.0)
        ctx.save_for_backward(active)
        return active

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (active,) = ctx.saved_tensors  # 0 where the input was dropped or not above 0
        return torch.where(active > 0, grad, 0) * (1 / (1 - ctx.p)), None
