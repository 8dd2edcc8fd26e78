"""Attention over a short list of keys for each query: after the selection nothing costs more than O(Q · n).

The lists come from a selection (``topk``), from hashes (``random``), or from positions (``sink``, a narrow window), or from
several of these. Scores are computed in chunks of queries that stay in cache and are never kept; what is saved for the
backward pass is the list and its weights.

Shapes: B batch, H query heads, G key heads, Q queries, K keys, T head dim, n entries of a list, N = B · H · Q rows.
"""

import dataclasses
import functools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from .attention_call import AttentionCall
from .mask_positions import smallest_ranks
from .mask_registry import any_pattern, fixed_parts
from .mask_structure import Structure
from .topk import select_topk

# Scores computed at a time: 4 MB in fp32 were the fastest from length 600 to 8192. Accelerators want more work at once.
CHUNK_SCORES = {"cpu": 2**20}
CHUNK_SCORES_ELSEWHERE = 2**26
# A product with few queries is bound by reading the keys.
FEWEST_QUERIES = 64


class _AttendToLists(torch.autograd.Function):
    """Output of given weights over lists; its backward treats them as the softmax of ``scale · query keyᵀ`` there."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        entries: torch.Tensor,
        weights: torch.Tensor,
        scale: float,
        dropout_mask: torch.Tensor | None,
    ) -> torch.Tensor:
        ctx.scale = scale
        ctx.save_for_backward(query, key, value, entries, weights, dropout_mask)
        return _weighted_rows(value, entries, weights if dropout_mask is None else weights * dropout_mask)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, entries, weights, dropout_mask = ctx.saved_tensors
        dropped = weights if dropout_mask is None else weights * dropout_mask
        grad_output = grad_output.contiguous()
        grad_weights = dots_with_entries(grad_output, value, entries)
        if dropout_mask is not None:
            grad_weights = grad_weights * dropout_mask
        mean = (weights * grad_weights).sum(dim=-1, keepdim=True)
        grad_scores = weights * (grad_weights - mean) * ctx.scale
        grad_query = _weighted_rows(key, entries, grad_scores)
        # The transposed lists: for each key the queries that kept it, in order, so that sums are always in this order.
        ordered, order = entries.flatten().sort(stable=True)
        keys = torch.arange(len(key) + 1, device=key.device, dtype=ordered.dtype)
        starts = torch.searchsorted(ordered, keys).to(ordered.dtype)
        readers = torch.div(order, entries.shape[1], rounding_mode="floor").to(ordered.dtype)
        grad_key, grad_value = (
            F.embedding_bag(
                readers, rows, starts, mode="sum", per_sample_weights=shares.flatten()[order], include_last_offset=True
            )
            for rows, shares in ((query, grad_scores), (grad_output, dropped))
        )
        return grad_query, grad_key, grad_value, None, None, None, None


def _starts(entries: torch.Tensor) -> torch.Tensor:
    """Where each row's entries start in the flat list, and its end: ``(N + 1,)``."""
    rows, count = entries.shape
    return torch.arange(0, rows * count + 1, count, device=entries.device, dtype=entries.dtype)


def _weighted_rows(table: torch.Tensor, entries: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """``Σ_e weights[r, e] · table[entries[r, e]]`` as ``(N, T)``."""
    return F.embedding_bag(
        entries.flatten(),
        table,
        _starts(entries),
        mode="sum",
        per_sample_weights=weights.flatten(),
        include_last_offset=True,
    )


def dots_with_entries(rows: torch.Tensor, table: torch.Tensor, entries: torch.Tensor) -> torch.Tensor:
    """Dot product of row r with each row of `table` in its list.

    Args:
        rows: ``(N, T)`` contiguous.
        table: ``(M, T)`` contiguous.
        entries: ``(N, n)`` int, rows of `table`.

    Returns:
        ``(N, n)``.
    """
    bag_of = torch.arange(len(rows), device=rows.device, dtype=entries.dtype).repeat_interleave(entries.shape[1])
    # What autograd itself calls for the gradient of `per_sample_weights`: nothing of size (N, n, T) is made.
    dots = torch.ops.aten._embedding_bag_per_sample_weights_backward(
        rows, table, entries.flatten(), _starts(entries)[:-1], bag_of, 0
    )
    return dots.view_as(entries)


def attend_to_lists(call: AttentionCall, structure: Structure) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Exact attention under a mask whose kept keys fit in short lists.

    Args:
        call: located, with tensors in the compute dtype.
        structure: of its mask, without rows.

    Returns:
        ``(B, H, Q, T_v)``, and the weights ``(B, H, Q, K)`` or None.
    """
    batch, heads, queries, keys = call.shape
    key, value = call.key, call.value
    groups = key.shape[1]
    with torch.no_grad():
        places, scores = _lists(dataclasses.replace(call, query=call.query.detach(), key=key.detach()), structure)
        count = places.shape[-1]
        # −inf marks an entry that is not kept. NaN is not −inf.
        alive = scores != -math.inf
        weights = scores.softmax(dim=-1).masked_fill(~alive, 0.0)
        # An entry that is not kept reads the row's best key, not one whose value may be NaN.
        places = torch.where(alive, places, places.gather(-1, scores.argmax(dim=-1, keepdim=True)))
        entries = _entries(places, groups, keys)
        if max(batch * groups * keys, entries.numel()) < 2**31:
            entries = entries.int()
        dropout_mask = None
        if call.dropout > 0:
            dropout_mask = F.dropout(torch.ones_like(weights), call.dropout).view(-1, count)
    output = _AttendToLists.apply(
        call.query.reshape(-1, key.shape[-1]),
        key.reshape(-1, key.shape[-1]),
        value.reshape(-1, value.shape[-1]),
        entries,
        weights.view(-1, count),
        call.scale,
        dropout_mask,
    ).view(batch, heads, queries, -1)
    if not call.return_weights:
        return output, None
    dense = weights.new_zeros(batch, heads, queries, keys)
    return output, dense.scatter_add_(-1, places, weights)


def _entries(places: torch.Tensor, groups: int, keys: int) -> torch.Tensor:
    """Key indices ``(B, H, Q, n)`` as rows ``(B · H · Q, n)`` of the table of all keys of all groups."""
    batch, heads, _, count = places.shape
    table_of_head = torch.arange(batch * heads, device=places.device) // (heads // groups)
    return (places + (table_of_head * keys).view(batch, heads, 1, 1)).view(-1, count)


def _lists(call: AttentionCall, structure: Structure) -> tuple[torch.Tensor, torch.Tensor]:
    """Key indices ``(B, H, Q, n)`` and scores, −inf for entries that are not kept."""
    batch, heads, queries, keys = call.shape
    limit = CHUNK_SCORES.get(call.query.device.type, CHUNK_SCORES_ELSEWHERE)
    examples = batch if structure.selected == 0 else max(1, limit // (min(queries, FEWEST_QUERIES) * heads * keys))
    at_once = min(batch, examples) * heads
    step = queries if structure.selected == 0 else min(queries, max(1, limit // (at_once * keys)))
    buffer = call.query.new_empty(at_once * step * keys if structure.selected else 0)
    parts = []
    for start in range(0, batch, examples):
        rows = slice(start, start + examples)
        along_queries = [
            _chunk_lists(call.part(slice(low, low + step), rows), structure, buffer) for low in range(0, queries, step)
        ]
        parts.append([torch.cat(pieces, dim=2) for pieces in zip(*along_queries, strict=True)])
    places, scores = (torch.cat(pieces, dim=0) for pieces in zip(*parts, strict=True))
    return places, scores


def _chunk_lists(call: AttentionCall, structure: Structure, buffer: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`_lists`, with all scores at once; `buffer` has room for them."""
    *shape, keys = call.shape
    batch, heads, queries = shape
    groups, dim = call.key.shape[1], call.key.shape[3]
    origin, scale = call.origin, call.scale
    index = torch.arange(call.first_query, call.first_query + queries, device=call.query.device).view(1, 1, -1, 1)
    fixed = fixed_parts(call.mask, keys)

    def by_position(places: torch.Tensor) -> torch.Tensor:
        """Whether positions alone keep the keys at `places`."""
        return any_pattern(fixed, index - origin, places - origin)

    listed = _listed(structure, index, keys, call.shift)
    places_of, scores_of = [], []
    all_scores = None
    if structure.selected:
        transposed = call.key.reshape(batch * groups, keys, dim).transpose(1, 2)
        # Fresh memory for every chunk would cost more than the product: the system hands it out page by page.
        room = buffer[: batch * heads * queries * keys].view(batch * groups, -1, keys)
        all_scores = torch.bmm(call.query.reshape(batch * groups, -1, dim), transposed, out=room).view(*shape, keys)
        if scale <= 0:
            all_scores.mul_(scale)
            scale = 1.0
        # A positive scale does not change the order, so it is applied to the scores that are listed.
        if call.valid is not None:
            all_scores.masked_fill_(~call.valid, -math.inf)
        scores, places = select_topk(all_scores.view(-1, keys), structure.selected)
        scores, places = scores.view(*shape, -1) * scale, places.view(*shape, -1)
        if listed is not None:
            # What positions keep is listed below.
            scores = scores.masked_fill(by_position(places), -math.inf)
        places_of.append(places)
        scores_of.append(scores)

    def add(places: torch.Tensor, inside: torch.Tensor) -> None:
        """List the keys at `places` with their scores, −inf where they are not inside or not valid."""
        places, inside = places.expand(*shape, -1), inside.expand(*shape, -1)
        if all_scores is not None:
            scores = all_scores.gather(-1, places) * scale
        else:
            rows = call.query.reshape(-1, dim), call.key.reshape(-1, dim)
            scores = dots_with_entries(*rows, _entries(places, groups, keys)).view(places.shape) * scale
            if call.valid is not None:
                inside = inside & call.valid.expand(*shape, keys).gather(-1, places)
        places_of.append(places)
        scores_of.append(scores.masked_fill(~inside, -math.inf))

    if listed is not None:
        places, inside = listed
        add(places, inside & by_position(places))
    for r, seed in structure.random:
        places, inside = random_keys(call, r, seed)
        if listed is not None:
            inside = inside & ~by_position(places)
        for others, scores in zip(places_of, scores_of, strict=True):
            repeated = (places.unsqueeze(-1) == others.unsqueeze(-2)) & (scores != -math.inf).unsqueeze(-2)
            inside = inside & ~repeated.any(dim=-1)
        add(places, inside)
    return torch.cat(places_of, dim=-1), torch.cat(scores_of, dim=-1)


def _listed(
    structure: Structure, index: torch.Tensor, keys: int, shift: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Key indices in columns and in the window, ``(B or 1, 1, Q, n)``, each once, and whether there is such a key.

    None if the structure has neither. `index` is ``(1, 1, Q, 1)``.
    """
    columns = structure.column_positions(keys)
    if structure.window is None and not columns:
        return None
    origin = 0 if shift is None else shift
    column_places = torch.tensor(columns, dtype=torch.int64, device=index.device).view(1, 1, 1, -1) + origin
    places = column_places.expand(-1, -1, index.shape[2], -1)
    if structure.window is not None:
        near = index + torch.arange(-structure.window, structure.window + 1, device=index.device)
        near = near.expand(len(places), -1, -1, -1)
        # A column in the window is listed once.
        near = near.masked_fill(is_column(near - origin, columns, keys), -1)
        places = torch.cat([places, near], dim=-1)
    inside = (places >= 0) & (places < keys)
    return places.clamp(0, keys - 1), inside


def is_column(positions: torch.Tensor, columns: list[int], keys: int) -> torch.Tensor:
    """Whether each position is one of `columns`, which lie below `keys`."""
    table = torch.zeros(keys, dtype=torch.bool, device=positions.device)
    table[columns] = True
    return table[positions.clamp(0, keys - 1)] & (positions >= 0) & (positions < keys)


def random_keys(call: AttentionCall, r: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The keys that ``random:r;seed=…`` keeps, as a list for each query.

    Returns:
        int64 key indices and whether there is such a key, ``(B or 1, H or 1, Q, min(r, K))``.
    """
    _, _, queries, keys = call.shape
    where = call.first_query, queries, keys, call.query.device
    if call.valid is None and call.shift is None:
        return _remembered_keys(r, seed, *where)
    query_index, key_index = _indices(*where)
    return smallest_ranks(r, seed, query_index - call.origin, key_index - call.origin, call.valid)


@functools.lru_cache(maxsize=64)
def _remembered_keys(
    r: int, seed: int, first_query: int, queries: int, keys: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    return smallest_ranks(r, seed, *_indices(first_query, queries, keys, device), None)


def _indices(first_query: int, queries: int, keys: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices of queries ``(1, 1, Q, 1)`` and keys ``(1, 1, 1, K)`` among the keys."""
    query_index = torch.arange(first_query, first_query + queries, device=device).view(1, 1, -1, 1)
    return query_index, torch.arange(keys, device=device).view(1, 1, 1, -1)
