"""Attention within windows and columns: cost and memory O(Q · (window + columns)).

Queries are cut into tiles. All queries of a tile look at one stretch of keys, and at the columns, through small dense
products; inside the stretch the mask's own pattern says which keys each query keeps.

Shapes: B batch, H query heads, G key heads, R = H / G query heads a key head, Q queries, K keys, T head dim; n tiles of
c queries, w keys in the stretch of a tile, m columns.
"""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from .attention_call import AttentionCall
from .attention_lists import is_column
from .mask_registry import any_pattern, fixed_parts
from .mask_structure import Structure

# Queries in a tile: smaller ones waste fewer products on keys out of reach, larger ones make better products.
SMALLEST_TILE = 24


class Tiling(NamedTuple):
    """How queries and keys are cut.

    Attributes:
        tile: c.
        tiles: n.
        reach: keys in the stretch before and after those at the tile's own positions.
        start: index of the first query; the stretch of tile i starts at ``start + i · c − reach``.
        keys: K.
    """

    tile: int
    tiles: int
    reach: int
    start: int
    keys: int

    @property
    def stretch(self) -> int:
        """Keys in the stretch of a tile, w."""
        return self.tile + 2 * self.reach

    @property
    def padding(self) -> tuple[int, int]:
        """Keys to add in front and behind, so that every stretch exists; negative: keys that no stretch reaches."""
        front = self.reach - self.start
        return front, self.start + self.tile * self.tiles + self.reach - self.keys


def tiling(structure: Structure, queries: int, keys: int, start: int, shifted: bool) -> Tiling | None:
    """Tiles for a structure's window; None: it has no window, so columns are all there is.

    Args:
        start: index of the first query among the keys.
        shifted: whether position 0 is elsewhere than at index 0 in some example.
    """
    if structure.window is None:
        return None
    tile = max(SMALLEST_TILE, 2 ** math.ceil(math.log2(structure.window + 1)))
    if structure.block is not None and start % structure.block == 0 and not shifted:
        # Tiles of whole blocks need no key from outside.
        tile = structure.block * max(1, round(SMALLEST_TILE / structure.block))
        return Tiling(tile, -(-queries // tile), 0, start, keys)
    tile = min(tile, queries)
    return Tiling(tile, -(-queries // tile), structure.window, start, keys)


def _padded(rows: torch.Tensor, front: int, back: int) -> torch.Tensor:
    """``(…, K, T)`` with so many rows of zeros in front and behind; negative: with rows taken away."""
    rows = rows[..., max(0, -front) : rows.shape[-2] - max(0, -back), :]
    zeros = [rows.new_zeros(*rows.shape[:-2], max(0, count), rows.shape[-1]) for count in (front, back)]
    # Unlike F.pad, which fills all of its result before it copies.
    return torch.cat([zeros[0], rows, zeros[1]], dim=-2) if front > 0 or back > 0 else rows


def _stretches(rows: torch.Tensor, cut: Tiling) -> torch.Tensor:
    """``(…, K, T)`` → ``(…, n, w, T)``."""
    return _padded(rows, *cut.padding).unfold(-2, cut.stretch, cut.tile).transpose(-1, -2)


def _sum_stretches(pieces: torch.Tensor, cut: Tiling) -> torch.Tensor:
    """The transpose of :func:`_stretches`: ``(…, n, w, T)`` → ``(…, K, T)``, in a fixed order of summation."""
    *lead, tiles, stretch, dim = pieces.shape
    parts = -(-stretch // cut.tile)
    if parts == 1:
        total = pieces
    else:
        total = pieces.new_empty(*lead, tiles + parts - 1, cut.tile, dim)
        total[..., :tiles, :, :] = pieces[..., : cut.tile, :]
        total[..., tiles:, :, :] = 0
        for part in range(1, parts):
            piece = pieces[..., part * cut.tile : (part + 1) * cut.tile, :]
            total[..., part : part + tiles, : piece.shape[-2], :] += piece
    front, back = cut.padding
    length = cut.tile * tiles + 2 * cut.reach
    return _padded(total.flatten(-3, -2)[..., :length, :], -front, -back)


class _AttendInTiles(torch.autograd.Function):
    """Masked softmax attention of tiles; saves the inputs and the weights of the pairs it looks at."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        keep: torch.Tensor,
        columns: torch.Tensor,
        cut: Tiling | None,
        scale: float,
        dropout: float,
    ) -> torch.Tensor:
        # query (B, G, n, R·c, T), key and value (B, G, K, T); keep (B or 1, G or 1, n, R or 1, c, w + m)
        scores = _products(query, key, columns, cut)
        tiles, tile = keep.shape[2], keep.shape[4]
        by_head = scores.unflatten(3, (-1, tile))
        weights = by_head.mul_(scale).masked_fill_(~keep, torch.finfo(scores.dtype).min).softmax(dim=-1)
        weights = weights.mul_(keep).view(scores.shape)
        dropout_mask = F.dropout(torch.ones_like(weights), dropout) if dropout > 0 else None
        ctx.save_for_backward(query, key, value, weights, columns, dropout_mask)
        ctx.cut, ctx.scale, ctx.tiles = cut, scale, tiles
        return _weighted_values(weights if dropout_mask is None else weights * dropout_mask, value, columns, cut)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, weights, columns, dropout_mask = ctx.saved_tensors
        cut, width = ctx.cut, 0 if ctx.cut is None else ctx.cut.stretch
        dropped = weights if dropout_mask is None else weights * dropout_mask
        grad_weights = _products(grad_output, value, columns, cut)
        if dropout_mask is not None:
            grad_weights = grad_weights * dropout_mask
        grad_scores = torch.ops.aten._softmax_backward_data(grad_weights, weights, -1, weights.dtype).mul_(ctx.scale)
        grad_query = _weighted_values(grad_scores, key, columns, cut)
        grads = []
        for table, shares, rows in ((key, grad_scores, query), (value, dropped, grad_output)):
            if cut is None:
                grad = torch.zeros_like(table)
            else:
                grad = _sum_stretches(torch.matmul(shares[..., :width].transpose(-1, -2), rows), cut)
            if columns.numel():
                flat = shares[..., width:].flatten(2, 3).transpose(-1, -2)
                per_column = torch.matmul(flat, rows.flatten(2, 3))
                # Columns are distinct but for those that do not exist, whose weights are 0.
                grad = grad.scatter_add(2, columns[:, None, :, None].expand_as(per_column), per_column)
            grads.append(grad)
        return grad_query, *grads, None, None, None, None, None


def _rows_at(rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """``(B, G, K, T)`` at key indices ``(B, m)`` → ``(B, G, 1, m, T)``."""
    index = columns[:, None, :, None].expand(-1, rows.shape[1], -1, rows.shape[-1])
    return rows.gather(2, index).unsqueeze(2)


def _products(tiles: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, cut: Tiling | None) -> torch.Tensor:
    """``(B, G, n, R·c, T)`` with the ``(B, G, K, T)`` rows that each tile looks at → ``(B, G, n, R·c, w + m)``."""
    looked_at = [] if cut is None else [_stretches(rows, cut)]
    looked_at += [_rows_at(rows, columns)] if columns.numel() else []
    pieces = [torch.matmul(tiles, piece.transpose(-1, -2)) for piece in looked_at]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-1)


def _weighted_values(
    weights: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, cut: Tiling | None
) -> torch.Tensor:
    """``(B, G, n, R·c, w + m)`` weights of ``(B, G, K, T)`` rows → ``(B, G, n, R·c, T)``."""
    width = 0 if cut is None else cut.stretch
    output = None
    if cut is not None:
        output = torch.matmul(weights[..., :width], _stretches(rows, cut))
    if columns.numel():
        far = torch.matmul(weights[..., width:], _rows_at(rows, columns))
        output = far if output is None else output + far
    assert output is not None, "tiles need a window or columns"
    return output


def attend_in_tiles(call: AttentionCall, structure: Structure) -> torch.Tensor:
    """Exact attention under a mask whose kept keys lie in a window and in columns.

    Args:
        call: located, with tensors in the compute dtype.
        structure: of its mask: a window or columns, and nothing else.

    Returns:
        ``(B, H, Q, T_v)``.
    """
    batch, heads, queries, keys = call.shape
    groups = call.key.shape[1]
    cut = tiling(structure, queries, keys, call.first_query, call.shift is not None)
    tile, tiles = (queries, 1) if cut is None else (cut.tile, cut.tiles)
    places, keep = _pairs(call, cut, structure.column_positions(keys))
    padded = _padded(call.query, 0, tile * tiles - queries)
    # (B, G, R, n, c, T) → (B, G, n, R·c, T)
    cut_query = padded.reshape(batch, groups, heads // groups, tiles, tile, -1).transpose(2, 3).flatten(3, 4)
    output = _AttendInTiles.apply(
        cut_query, call.key, call.value, keep, places.expand(batch, -1), cut, call.scale, call.dropout
    )
    output = output.unflatten(3, (heads // groups, tile)).transpose(2, 3)
    return output.reshape(batch, heads, tiles * tile, -1)[:, :, :queries]


def _pairs(call: AttentionCall, cut: Tiling | None, columns: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The pairs that tiles look at.

    Returns:
        Key indices of the columns, int64 ``(B or 1, m)``, and which pairs are kept, bool
        ``(B or 1, G or 1, n, R or 1, c, w + m)``.
    """
    _, heads, queries, keys = call.shape
    device, valid, groups = call.query.device, call.valid, call.key.shape[1]
    tile, tiles = (queries, 1) if cut is None else (cut.tile, cut.tiles)
    index = torch.arange(tiles * tile, device=device).view(1, tiles, tile, 1)
    origin = torch.zeros(1, 1, 1, 1, dtype=torch.int64, device=device) if call.shift is None else call.shift
    places = torch.tensor(columns, dtype=torch.int64, device=device) + origin[:, 0, 0]
    key_index = places.view(len(origin), 1, 1, len(columns)).expand(-1, tiles, -1, -1)
    if cut is not None:
        start = torch.arange(tiles, device=device).view(1, -1, 1, 1) * tile + call.first_query - cut.reach
        near = (start + torch.arange(cut.stretch, device=device)).expand(len(origin), -1, -1, -1)
        # A column in the stretch is counted with the columns.
        if columns:
            near = near.masked_fill(is_column(near - origin, columns, keys), -1)
        key_index = torch.cat([near, key_index], dim=-1)
    inside = (key_index >= 0) & (key_index < keys) & (index < queries)
    key_index = key_index.clamp(0, keys - 1)
    query_positions = index + call.first_query - origin
    kept = any_pattern(fixed_parts(call.mask, keys), query_positions, key_index - origin) & inside
    kept = kept.view(len(origin), 1, tiles, 1, tile, -1)
    if valid is not None:
        example = torch.arange(len(valid), device=device).view(-1, 1, 1, 1, 1)
        head = torch.arange(valid.shape[1], device=device).view(1, -1, 1, 1, 1)
        row = index.clamp(max=valid.shape[2] - 1).unsqueeze(1) if valid.shape[2] > 1 else 0
        allowed = valid[example, head, row, key_index.unsqueeze(1)]  # (b, h, n, c or 1, w + m)
        by_head = (1, 1) if allowed.shape[1] == 1 else (groups, heads // groups)
        kept = kept & allowed.unflatten(1, by_head).transpose(2, 3)
    return places.clamp(0, keys - 1), kept
