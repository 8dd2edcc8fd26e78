"""The k largest scores of each row with their indices: exactly k, ties to the lowest index."""

import math

import torch

# `torch.topk` keeps a heap where rows have at least this many numbers for each one asked for, and partitions the row
# otherwise, which costs about three times as much a number (CPU; seen in its source and in measurements).
HEAP_FROM = 64
LARGEST_GROUP = 16


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

    ``torch.topk`` breaks ties as it likes. One number more than asked for shows whether the k-th is tied with one that
    was left out; only those rows are searched again.

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
        again = _lowest_among_ties(scores[tied], last[tied], k)
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


def _lowest_among_ties(scores: torch.Tensor, smallest: torch.Tensor, k: int) -> torch.Tensor:
    """Indices ``(R, k)``, ascending: what is above `smallest`, then what equals it, from the left."""
    smallest = smallest.unsqueeze(-1)
    # Written so that NaN, which compares False with everything, counts as above.
    above = ~(scores <= smallest)
    tied = scores == smallest
    missing = k - above.sum(dim=-1, keepdim=True)
    kept = above | (tied & (tied.cumsum(dim=-1) <= missing))
    return kept.nonzero()[:, 1].view(-1, k)
