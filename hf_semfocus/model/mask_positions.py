"""Input-agnostic mask strategies: the kept keys are fixed by positions (DESIGN section 2).

Positions count from the first valid key, so left padding moves every pattern with the text.
"""

import torch

from .mask_base import MaskStrategy
from .mask_inputs import MaskContext
from .mask_parameters import parameter
from .mask_registry import register_mask_strategy
from .mask_structure import Structure

# Hashes computed at a time in `smallest_ranks`: 8 MB.
CHUNK_HASHES = 2**20
# No position is this far from 0; the sum of two fits int64.
FARTHEST = 2**62


@register_mask_strategy("full")
class Full(MaskStrategy):
    """Every valid key: ordinary attention."""

    counts_queries = counts_keys = False

    def structure(self, keys: int) -> Structure:
        """Every query and key; see :meth:`MaskStrategy.structure`."""
        return Structure(rows=keys)

    def pattern(self, query_positions: torch.Tensor, key_positions: torch.Tensor) -> torch.Tensor:
        """All True, broadcastable; see :meth:`MaskStrategy.pattern`."""
        return torch.ones((1, 1, 1, 1), dtype=torch.bool, device=query_positions.device)


@register_mask_strategy("banded")
class Banded(MaskStrategy):
    """The paper's Banded(w): w keys centred on the query, itself included.

    ``banded:5`` keeps, for the query at position 7, keys 5 to 9. At the ends of the text the band is cut off, so that the
    first query keeps 3 keys; with ``banded:5;ends=shift``, as in the paper's own code, it is shifted inwards instead and
    every query keeps min(w, n) keys of a text of n. A text goes from the first to the last of the query's valid keys.
    """

    w: int = parameter(minimum=1, odd=True)
    ends: str = parameter(default="cut", choices=("cut", "shift"), omit_default=True)
    # Overrides keep() to find the ends among the valid keys, not to look at scores.
    input_dependent = False
    row_by_row = True

    def structure(self, keys: int) -> Structure | None:
        """A window; None where positions alone do not show the ends. See :meth:`MaskStrategy.structure`."""
        return Structure(window=self.w // 2) if self.ends == "cut" else None

    def pattern(self, query_positions: torch.Tensor, key_positions: torch.Tensor) -> torch.Tensor:
        """``|q − k| ≤ w // 2``, the band that is cut at the ends; see :meth:`MaskStrategy.pattern`."""
        return (query_positions - key_positions).abs() <= self.w // 2

    def keep(self, scores: torch.Tensor, valid: torch.Tensor, context: MaskContext) -> torch.Tensor:
        """The band, cut off or shifted inwards at the ends; see :meth:`MaskStrategy.keep`."""
        positions = context.key_positions
        if self.ends == "cut":
            return self.pattern(context.query_positions, positions)
        first = torch.where(valid, positions, FARTHEST).amin(dim=-1, keepdim=True)
        last = torch.where(valid, positions, -FARTHEST).amax(dim=-1, keepdim=True)
        start = (context.query_positions - self.w // 2).minimum(last - (self.w - 1)).maximum(first)
        return (positions >= start) & (positions - start < self.w)


@register_mask_strategy("block")
class Block(MaskStrategy):
    """Block-local: query q and key k share a block of b positions, q // b = k // b.

    ``block:5`` keeps, for the query at position 7, keys 5 to 9.
    """

    b: int = parameter(minimum=1)

    def structure(self, keys: int) -> Structure:
        """A window within blocks; see :meth:`MaskStrategy.structure`."""
        return Structure(window=self.b - 1, block=self.b)

    def pattern(self, query_positions: torch.Tensor, key_positions: torch.Tensor) -> torch.Tensor:
        """Q // b = k // b; see :meth:`MaskStrategy.pattern`."""
        return query_positions // self.b == key_positions // self.b


@register_mask_strategy("global")
class Global(MaskStrategy):
    """The first g positions attend to all and are attended by all; other queries keep only those g keys."""

    g: int = parameter(minimum=1)

    def structure(self, keys: int) -> Structure:
        """The first rows and columns; see :meth:`MaskStrategy.structure`."""
        return Structure(columns=(range(self.g),), rows=self.g)

    def pattern(self, query_positions: torch.Tensor, key_positions: torch.Tensor) -> torch.Tensor:
        """Q < g or k < g; see :meth:`MaskStrategy.pattern`."""
        return (query_positions < self.g) | (key_positions < self.g)


@register_mask_strategy("sink")
class Sink(MaskStrategy):
    """The first s positions, kept by every query. Meant for unions: ``topk:5+sink:1``."""

    s: int = parameter(minimum=1)
    counts_queries = False

    def structure(self, keys: int) -> Structure:
        """The first columns; see :meth:`MaskStrategy.structure`."""
        return Structure(columns=(range(self.s),))

    def pattern(self, query_positions: torch.Tensor, key_positions: torch.Tensor) -> torch.Tensor:
        """K < s; see :meth:`MaskStrategy.pattern`."""
        return key_positions < self.s


@register_mask_strategy("strided")
class Strided(MaskStrategy):
    """Positions 0, s, 2s, … and the query itself."""

    s: int = parameter(minimum=1)

    def structure(self, keys: int) -> Structure:
        """Every s-th column, and the diagonal; see :meth:`MaskStrategy.structure`."""
        return Structure(window=0, columns=(range(0, keys, self.s),))

    def pattern(self, query_positions: torch.Tensor, key_positions: torch.Tensor) -> torch.Tensor:
        """K mod s = 0 or k = q; see :meth:`MaskStrategy.pattern`."""
        return (key_positions % self.s == 0) | (key_positions == query_positions)


def position_hash(query_positions: torch.Tensor, key_positions: torch.Tensor, seed: int) -> torch.Tensor:
    """A fixed 31-bit hash of (query position, key position, seed), the same on every device and platform.

    Three rounds of multiply and xor-shift on 31-bit words: products of two 31-bit numbers fit int64, so nothing wraps.

    Returns:
        int64 in ``[0, 2**31)``, in the broadcast shape of the positions.
    """
    word = 2**31 - 1
    mixed = torch.full((), seed & word, dtype=torch.int64, device=query_positions.device)
    for part, factor in ((seed >> 31, 0x2C1B3C6D), (query_positions, 0x297A2D39), (key_positions, 0x1B56C4E9)):
        mixed = ((mixed ^ (part & word)) * factor + 0x3C6EF372) & word
        mixed = mixed ^ (mixed >> 15)
        mixed = (mixed * 0x2545F491) & word
        mixed = mixed ^ (mixed >> 13)
    return mixed


@register_mask_strategy("random")
class Random(MaskStrategy):
    """Exactly min(r, valid keys) keys a query, drawn without replacement and fixed by positions and `seed`.

    A query keeps the r valid keys with the smallest :func:`position_hash`; equal hashes go to the lower position.
    """

    r: int = parameter(minimum=1)
    seed: int = parameter(default=0, minimum=0, maximum=2**62)
    # Overrides keep() to count valid keys, not to look at scores.
    input_dependent = False
    row_by_row = True

    def structure(self, keys: int) -> Structure:
        """Keys drawn by a hash; see :meth:`MaskStrategy.structure`."""
        return Structure(random=((self.r, self.seed),))

    def keep(self, scores: torch.Tensor, valid: torch.Tensor, context: MaskContext) -> torch.Tensor:
        """The r smallest hashes among valid keys; see :meth:`MaskStrategy.keep`."""
        rank = _rank(context.query_positions, context.key_positions, self.seed, valid)
        if torch.compiler.is_exporting():
            # With r columns more the graph asks nothing of the length, which may be shorter than r.
            more = rank.new_full((*rank.shape[:-1], self.r), torch.iinfo(torch.int64).max)
            padded = torch.cat([rank, more], dim=-1)
            return rank <= padded.topk(self.r, dim=-1, largest=False).values.amax(dim=-1, keepdim=True)
        last = rank.topk(min(self.r, rank.shape[-1]), dim=-1, largest=False).values.amax(dim=-1, keepdim=True)
        return rank <= last


def _rank(
    query_positions: torch.Tensor, key_positions: torch.Tensor, seed: int, valid: torch.Tensor | None
) -> torch.Tensor:
    """The order in which `random` takes keys; the largest int64 for a key that is not valid."""
    # Distinct positions make distinct ranks; 31 + 31 bits leave the largest int64 free.
    rank = position_hash(query_positions, key_positions, seed) * 2**31 + (key_positions & (2**31 - 1))
    return rank if valid is None else torch.where(valid, rank, torch.iinfo(torch.int64).max)


def smallest_ranks(
    r: int, seed: int, query_positions: torch.Tensor, key_positions: torch.Tensor, valid: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The keys that ``random:r;seed=…`` keeps, as a list for each query, hashed in parts of the queries.

    Args:
        query_positions: int64 ``(B or 1, 1, Q, 1)``.
        key_positions: int64 ``(B or 1, 1, 1, K)``.
        valid: bool with four dimensions, broadcastable to ``(B, H, Q, K)``; None: all.

    Returns:
        int64 key indices and whether there is such a key, ``(B or 1, H or 1, Q, min(r, K))``.
    """
    keys = key_positions.shape[-1]
    copies = max(1 if valid is None else valid.shape[0] * valid.shape[1], len(query_positions))
    step = max(1, CHUNK_HASHES // (keys * copies))
    parts = []
    for low in range(0, query_positions.shape[2], step):
        rows = slice(low, low + step)
        part = valid if valid is None or valid.shape[2] == 1 else valid[:, :, rows]
        rank = _rank(query_positions[:, :, rows], key_positions, seed, part)
        parts.append(rank.topk(min(r, keys), largest=False))
    ranks, places = (torch.cat(pieces, dim=2) for pieces in zip(*parts, strict=True))
    return places, ranks != torch.iinfo(torch.int64).max


@register_mask_strategy("redraw")
class Redraw(MaskStrategy):
    """A control: k keys a query, drawn again in each forward pass, uniformly among its valid keys and with replacement.

    So a query keeps 1 to min(k, valid) distinct keys, other ones in each layer, head, example and call, in training and in
    evaluation. They are drawn from torch's global generator of the scores' device: ``torch.manual_seed`` repeats them.
    """

    k: int = parameter(minimum=1)
    counts_queries = counts_keys = False
    input_dependent = False
    redrawn = True
    # In parts of the queries other keys would be drawn than at once.
    row_by_row = False

    def keep(self, scores: torch.Tensor, valid: torch.Tensor, context: MaskContext) -> torch.Tensor:
        """Keys at random places among the valid ones; see :meth:`MaskStrategy.keep`."""
        valid = valid.expand(*valid.shape[:-1], scores.shape[-1])
        # The remainder of a 62-bit number is uniform but for 2⁻⁶² · valid.
        draws = torch.randint(2**62, (*scores.shape[:-1], self.k), device=scores.device)
        places = draws % valid.sum(dim=-1, keepdim=True).clamp(min=1)
        # Valid keys first, in order.
        order = (~valid).to(torch.uint8).argsort(dim=-1, stable=True).expand(scores.shape)
        return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, order.gather(-1, places), True)
