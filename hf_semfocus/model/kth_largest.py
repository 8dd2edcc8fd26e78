"""The k-th largest number of each row, without sorting the row.

``torch.topk`` works on a CPU row by row with scalar code; on short rows it costs more than the rest of the attention.
Here all rows go through one sorting network at once, and a comparator is two vectorised calls, so the same is done with
whole tensors: rows are cut into groups of k, each group is sorted, and pairs of groups are merged into the k largest
of both until one group is left.
"""

from functools import cache

import torch

# Where the network was measured to be faster than `torch.topk` (one thread); by 600 keys it loses.
LARGEST_K = 16
LONGEST_ROW = 128
# Numbers sorted at a time, so that they stay in the cache of a core.
CHUNK = 2**18


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
