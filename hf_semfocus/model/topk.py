"""The k largest numbers of each row, exactly k and ties to the lowest index: as a mask, as indices, or the k-th alone.

``torch.topk`` breaks ties as it likes, so only the k-th largest number is taken from it; :func:`keep_largest` is the tie rule.
On a CPU it works row by row with scalar code, which on short rows costs more than the rest of the attention. There all rows go
through one sorting network at once, a comparator being two vectorised calls: rows are cut into groups of k, each group is
sorted, and pairs of groups are merged into the k largest of both until one group is left.
"""

import math
from functools import cache

import torch

# Where the network was measured to be faster than `torch.topk` (one thread); by 600 keys it loses.
LARGEST_K = 16
LONGEST_ROW = 128
# Numbers sorted at a time, so that they stay in the cache of a core.
CHUNK = 2**18
# `torch.topk` keeps a heap where rows have at least this many numbers for each one asked for, and partitions the row
# otherwise, which costs about three times as much a number (CPU; seen in its source and in measurements).
HEAP_FROM = 64
LARGEST_GROUP = 16


def keep_largest(
    scores: torch.Tensor, smallest: torch.Tensor, count: int | torch.Tensor, valid: torch.Tensor | None = None
) -> torch.Tensor:
    """Bool mask of the `count` largest of each row, the last of which is `smallest`: ties from the left, and all NaN.

    Args:
        scores: ``(…, K)``.
        smallest, count: ``(…, 1)``; `count` may be one number for all rows.
        valid: bool, broadcastable to `scores`: where a tie may be kept; None: everywhere.
    """
    # Written so that NaN, which compares False with everything, counts as above.
    above = ~(scores <= smallest)
    tied = scores == smallest if valid is None else (scores == smallest) & valid
    missing = count - above.sum(dim=-1, keepdim=True)
    return above | (tied & (tied.cumsum(dim=-1) <= missing))


def topk_keys(scores: torch.Tensor, valid: torch.Tensor, k: int) -> torch.Tensor:
    """Bool mask of the k largest scores in each row, ties to the lowest index.

    Compiled, or on the meta device, it has no branch on data.

    Args:
        scores: ``(…, K)``, −inf where a key is not valid.
        valid: bool, broadcastable to `scores`.
        k: at least 1.

    Returns:
        bool, in the shape of `scores`.
    """
    if torch.compiler.is_exporting():
        # With k columns more the graph asks nothing of the length, which may be shorter than k.
        padded = torch.nn.functional.pad(scores, (0, k), value=-torch.inf)
        return keep_largest(scores, kth_largest(padded, k), k, valid)
    k = min(k, scores.shape[-1])
    smallest = kth_largest(scores, k)
    if not (torch.compiler.is_compiling() or scores.is_meta):
        kept = ~(scores < smallest)
        if int(kept.sum()) == k * smallest.numel():
            # No ties, and nothing that is not valid among the k: the common case, at half the cost.
            return kept
    return keep_largest(scores, smallest, k, valid)


@cache
def sorting_network(size: int) -> tuple[tuple[int, int], ...]:
    """Batcher's odd-even merge sort as comparators (i, j), i < j, that move the larger number to i.

    Source: Batcher, "Sorting networks and their applications", 1968; in the iterative form of Knuth's Algorithm M,
    which holds for every size.
    """
    pairs = []
    top = 1 << max(size - 1, 0).bit_length() - 1 if size > 1 else 0
    p = top
    while p > 0:
        q, r, d = top, 0, p
        while True:
            pairs += [(i, i + d) for i in range(size - d) if i & p == r]
            if q == p:
                break
            d, q, r = q - p, q // 2, p
        p //= 2
    return tuple(pairs)


def kth_largest(scores: torch.Tensor, k: int) -> torch.Tensor:
    """The k-th largest number of each row, counted with repetitions; without a gradient.

    Args:
        scores: ``(…, K)`` floating point.
        k: from 1 to K.

    Returns:
        ``(…, 1)``. For a row that holds NaN, NaN or the k-th largest when NaN counts as the largest.

    Example:
        >>> kth_largest(torch.tensor([[3.0, 1.0, 3.0, 2.0]]), 2).item()
        3.0
    """
    scores = scores.detach()
    if k == 1:
        return scores.amax(dim=-1, keepdim=True)
    keys = scores.shape[-1]
    # A graph should stay small, and other devices have a parallel topk.
    plain = torch.compiler.is_compiling() or scores.device.type != "cpu" or scores.numel() == 0
    if plain or k > LARGEST_K or keys > LONGEST_ROW:
        return scores.topk(k, dim=-1).values[..., -1:]
    rows = scores.reshape(-1, keys).split(max(1, CHUNK // keys))
    return torch.cat([_by_network(chunk, k) for chunk in rows]).reshape(*scores.shape[:-1], 1)


def _by_network(rows: torch.Tensor, k: int) -> torch.Tensor:
    """k-th largest of each row of a matrix ``(rows, keys)``, as a vector."""
    keys = rows.shape[1]
    columns = rows.t()
    groups = 1
    while groups * k < keys:
        groups *= 2
    missing = groups * k - keys
    if missing:
        columns = torch.cat([columns, columns.new_full((missing, columns.shape[1]), -torch.inf)])
    # slab[i] holds number i of every group, (groups, rows).
    slabs = list(columns.contiguous().view(k, groups, -1).unbind(0))
    while groups > 1:
        for i, j in sorting_network(k):
            slabs[i], slabs[j] = torch.maximum(slabs[i], slabs[j]), torch.minimum(slabs[i], slabs[j])
        groups //= 2
        # Of two descending groups, the larger ones of opposite ends are the k largest of both, in some order.
        slabs = [torch.maximum(slabs[i][:groups], slabs[k - 1 - i][groups:]) for i in range(k)]
    smallest = slabs[0]
    for slab in slabs[1:]:
        smallest = torch.minimum(smallest, slab)
    return smallest[0]


def group_size(keys: int, k: int) -> int:
    """How many numbers make a group in :func:`select_topk`; 1: no groups.

    Groups of g leave ``keys / g + k · g`` numbers to ``torch.topk``, for one pass that reads all. Where it can keep a
    heap, g is the largest for which it still can; where it cannot, the one with the fewest numbers left.

    Example:
        >>> group_size(8192, 6), group_size(2048, 33), group_size(600, 6), group_size(40, 6)
        (16, 8, 1, 1)
    """
    if keys >= HEAP_FROM * k:
        return min(LARGEST_GROUP, 2 ** int(math.log2(keys / (HEAP_FROM * k))))
    size = 2 ** round(math.log2(math.sqrt(keys / k)))
    return min(LARGEST_GROUP, size) if size >= 4 else 1


def select_topk(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and indices of the k largest numbers of each row, without a gradient.

    One number more than asked for shows whether the k-th is tied with one that was left out; only those rows are searched
    again.

    Args:
        scores: ``(R, K)`` floating point, contiguous; −inf where a key is not valid.
        k: at least 1.

    Returns:
        values ``(R, min(k, K))`` in any order, and int64 indices of the same shape. What is finite is exact. Rows that
        hold NaN give at least one NaN.

    Example:
        >>> values, indices = select_topk(torch.tensor([[1.0, 3.0, 3.0, 2.0]]), 2)
        >>> values.tolist(), sorted(indices[0].tolist())
        ([[3.0, 3.0]], [1, 2])
    """
    keys = scores.shape[-1]
    if k >= keys:
        return scores.sort(dim=-1, descending=True, stable=True)
    # On a CPU the smallest one comes last even where the others are not sorted, which saves their sorting. Nothing
    # promises it, so it is looked at.
    for in_order in (scores.device.type != "cpu", True):
        values, indices = _candidates(scores, k + 1, in_order)
        following, values, indices = values[:, k], values[:, :k], indices[:, :k]
        last = values.amin(dim=-1)
        if in_order or not bool((following > last).any()):
            break
    tied = ((last == following) & (last != -math.inf)).nonzero().squeeze(-1)
    if len(tied):
        again = keep_largest(scores[tied], last[tied, None], k).nonzero()[:, 1].view(-1, k)
        values, indices = values.clone(), indices.clone()
        indices[tied] = again
        values[tied] = scores[tied].gather(-1, again)
    return values, indices


def _candidates(scores: torch.Tensor, k: int, in_order: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """As ``topk(k, sorted=in_order)``, through the maxima of groups where rows are long.

    The k largest numbers lie in at most k groups, and no other group has a larger maximum than these.
    """
    rows, keys = scores.shape
    size = group_size(keys, k)
    if size == 1:
        return scores.topk(k, dim=-1, sorted=in_order)
    groups = keys // size
    # Group j holds the numbers j, j + groups, j + 2 · groups, …: its maximum is taken over whole vectors.
    best = scores[:, : groups * size].unflatten(1, (size, groups)).amax(dim=1)
    chosen = best.topk(k, dim=-1, sorted=False).indices
    steps = torch.arange(0, groups * size, groups, device=scores.device)
    places = (chosen.unsqueeze(-1) + steps).flatten(1)
    if keys > groups * size:
        rest = torch.arange(groups * size, keys, device=scores.device).expand(rows, -1)
        places = torch.cat([places, rest], dim=1)
    values, order = scores.gather(-1, places).topk(k, dim=-1, sorted=in_order)
    return values, places.gather(-1, order)
