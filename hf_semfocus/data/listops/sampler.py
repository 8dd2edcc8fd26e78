"""ListOps rows drawn directly from the tree distribution conditioned on a range of lengths, level by level over a whole batch.

Top down: the length from its exact probabilities, then for every operator, given its length, the number of arguments and of operators
among them, which arguments those are, and their lengths one after another. Each of these is an exact conditional distribution, so no
tree is ever thrown away.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from ..core.draws import bounded, halves
from ..core.task import Batch
from .counting import SHAPES, length_tables
from .grammar import CLOSE, DIGITS, MAX_ARGUMENTS, MAX_DEPTH, MIN, OPERATORS

# Draws and thresholds have 32 bits; the topmost draw counts as the one below it, so that the last threshold can be 2**32 − 1.
_TOP = (1 << 32) - 1
# Cumulative tables kept in memory and made in one step, in entries of four and eight bytes.
_POOL_ENTRIES = 1 << 25
_FILL_ENTRIES = 1 << 20


def _subsets() -> tuple[np.ndarray, np.ndarray]:
    """For (arguments, operators): how many choices there are, and for each which arguments are operators, as bits."""
    counts = np.zeros((MAX_ARGUMENTS + 1, MAX_ARGUMENTS + 1), dtype=np.int64)
    masks = np.zeros((MAX_ARGUMENTS + 1, MAX_ARGUMENTS + 1, 252), dtype=np.int64)
    for arguments, operators in SHAPES:
        choices = [sum(1 << place for place in chosen) for chosen in combinations(range(arguments), operators)]
        counts[arguments, operators] = len(choices)
        masks[arguments, operators, : len(choices)] = choices
    return counts, masks


_CHOICES, _MASKS = _subsets()
_ARGUMENTS = np.array([arguments for arguments, _ in SHAPES], dtype=np.int64)
_OPERATORS = np.array([operators for _, operators in SHAPES], dtype=np.int64)


def _thresholds(weights: np.ndarray) -> np.ndarray:
    """Cumulative weights of each row as 32-bit thresholds: float64 ``(R, N)`` → uint32 ``(R, N)``.

    A draw picks the first entry whose threshold exceeds it, see :func:`_pick`.
    """
    cumulative = np.cumsum(weights, axis=1)
    total = cumulative[:, -1:]
    scaled = np.floor(cumulative / np.where(total > 0, total, 1.0) * float(_TOP + 1))
    # From the last possible entry on everything is picked: rounding must leave no gap above it.
    scaled[cumulative >= total] = _TOP
    return np.minimum(scaled, _TOP).astype(np.uint32)


def _pick(table: np.ndarray, offset: np.ndarray, width: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """For each draw the place, from ``offset``, of the first threshold that exceeds it, among the next ``width`` ones: int64."""
    draws = np.minimum(draws, _TOP - 1)
    low, size = offset.copy(), np.asarray(width).copy()
    # Branchless bisection: `size` thresholds from `low` on still hold the answer, and all rows do as many steps as the widest.
    for _ in range(int(size.max(initial=1) - 1).bit_length()):
        half = size >> 1
        low += np.where(table[low + half - (half > 0)] <= draws, half, 0)
        size -= half
    return low - offset


class _LengthPool:
    """Conditional length distributions of the first of k operators of one depth with s tokens together, made when first met."""

    def __init__(self, operators: np.ndarray) -> None:
        self._operators = operators
        self._offset = np.full(operators.shape, -1, dtype=np.int64)
        self._pool = np.empty(0, dtype=np.uint32)
        self._used = 0

    def draw(self, depth: int, count: np.ndarray, total: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """Lengths of the first of ``count`` ≥ 2 operators with ``total`` tokens together: int64 ``(K,)``."""
        offset = self._offset[depth, count, total]
        missing = offset < 0
        if missing.any():
            codes = np.unique((total * (MAX_ARGUMENTS + 1) + count)[missing])
            if self._used + int((codes // (MAX_ARGUMENTS + 1) + 1).sum()) > _POOL_ENTRIES:
                # Start again with what this call needs; whatever else comes up is made anew.
                self._offset.fill(-1)
                self._used = 0
                codes = np.unique(total * (MAX_ARGUMENTS + 1) + count)
            self._add(depth, codes % (MAX_ARGUMENTS + 1), codes // (MAX_ARGUMENTS + 1))
            offset = self._offset[depth, count, total]
        return _pick(self._pool, offset, total + 1, draws)

    def _add(self, depth: int, counts: np.ndarray, totals: np.ndarray) -> None:
        needed = self._used + int((totals + 1).sum())
        if needed > len(self._pool):
            grown = np.empty(max(needed, min(2 * len(self._pool), _POOL_ENTRIES)), dtype=np.uint32)
            grown[: self._used] = self._pool[: self._used]
            self._pool = grown
        first = self._operators[depth, 1]
        # Totals ascend, so a block of them is as wide as its last one.
        start = 0
        while start < len(totals):
            stop = start + max(
                1, int(np.sum((np.arange(len(totals) - start) + 1) * (totals[start:] + 1) <= _FILL_ENTRIES))
            )
            total, count = totals[start:stop], counts[start:stop]
            rest = total[:, None] - np.arange(total[-1] + 1)
            possible = rest >= 0
            weights = first[: total[-1] + 1] * self._operators[depth][(count - 1)[:, None], np.maximum(rest, 0)]
            entries = _thresholds(np.where(possible, weights, 0.0))[possible]
            self._pool[self._used : self._used + len(entries)] = entries
            self._offset[depth, count, total] = self._used + np.cumsum(total + 1) - (total + 1)
            self._used += len(entries)
            start = stop


class ConditionalSampler:
    """Draws ListOps rows whose length lies in ``[low, high]``, in proportion to their probability in Long Range Arena's distribution.

    Args:
        low, high: the inclusive range of lengths in tokens.

    Raises:
        ValueError: no tree has a length in the range (2 and 3 are impossible).
    """

    def __init__(self, low: int, high: int) -> None:
        tables = length_tables(high)
        weights = tables.node[1, low : high + 1]
        if not weights.sum() > 0:
            raise ValueError(f"listops: no tree has from {low} to {high} tokens; lengths are 1 or from 4 up")
        self.low, self.high = low, high
        self._lengths = _thresholds(weights[None])[0]
        # (depth, length, shape), one threshold row for every operator that can come up.
        self._shapes = np.stack([_thresholds(shapes.T) for shapes in tables.shapes])
        self._pool = _LengthPool(tables.operators)

    @staticmethod
    def words(high: int) -> int:
        """Random words a row needs: one for each token."""
        return high

    def draw(self, words: np.ndarray) -> Batch:
        """Draw one row for each row of words: uint64 ``(B, high)``.

        The word of a token's position serves what stands there: its low half the length of the node that starts there, its high half
        the digit, or the shape of an operator's arguments; the word under an operator's closing bracket serves which operator it is
        and which arguments are operators. So a row does not depend on the rest of its batch.
        """
        rows = len(words)
        draws = halves(words)
        width = draws.shape[1]
        flat = draws.reshape(-1)
        everything = np.zeros(rows, dtype=np.int64)
        lengths = self.low + _pick(self._lengths, everything, everything + len(self._lengths), draws[:, 0])
        tokens = bounded(draws[:, 1::2], DIGITS).astype(np.uint8)
        tokens_flat = tokens.reshape(-1)

        start = np.flatnonzero(lengths > 1) * self.high
        size = lengths[lengths > 1]
        for depth in range(1, MAX_DEPTH):
            if not len(start):
                break
            end = start + size - 1
            table = self._shapes[depth].reshape(-1)
            shape = _pick(table, size * len(SHAPES), np.full(len(size), len(SHAPES)), flat[2 * start + 1])
            tokens_flat[start] = MIN + bounded(flat[2 * end + 1], len(OPERATORS))
            tokens_flat[end] = CLOSE
            nested = _OPERATORS[shape] > 0
            start, size, shape = self._children(depth + 1, start[nested], size[nested], shape[nested], flat)
        if lengths.min(initial=self.high) < self.high:
            tokens[np.arange(width // 2) >= lengths[:, None]] = 0
        return Batch(tokens, lengths)

    def _children(
        self, depth: int, start: np.ndarray, size: np.ndarray, shape: np.ndarray, draws: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Places and lengths of the operators among the arguments of the given nodes."""
        arguments, operators = _ARGUMENTS[shape], _OPERATORS[shape].copy()
        chosen = bounded(draws[2 * (start + size - 1)], _CHOICES[arguments, operators])
        mask = _MASKS[arguments, operators, chosen]
        tokens_left = size - 2 - (arguments - operators)
        place = start + 1
        starts, sizes = [], []
        for argument in range(int(arguments.max(initial=0))):
            nested = np.flatnonzero((mask >> argument) & 1)
            length = tokens_left[nested]
            several = np.flatnonzero(operators[nested] > 1)
            if len(several):
                which = nested[several]
                drawn = self._pool.draw(depth, operators[which], tokens_left[which], draws[2 * place[which]])
                length[several] = drawn
            starts.append(place[nested])
            sizes.append(length)
            tokens_left[nested] -= length
            operators[nested] -= 1
            place += 1
            place[nested] += length - 1
        return np.concatenate(starts or [start]), np.concatenate(sizes or [size]), shape
