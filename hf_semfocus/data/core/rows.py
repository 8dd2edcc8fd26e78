"""The rows of a split: which candidate of its own stream each row takes, so that splits are disjoint and rows differ."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from .hashing import hash_tokens, in_share, share_of
from .philox import RowStream, stream_key
from .task import GENERATOR_VERSION, Batch, Task

# Rows worked on at a time; it changes nothing but speed and memory.
BATCH_ROWS = 8192
# A batch of long inputs is kept to about this many tokens.
_BATCH_TOKENS = 1 << 21
# A row that finds nothing new in this many candidates gives up with an error: by then what is left is too rare to be drawn.
_MAX_CANDIDATES = 1 << 22
_GRID = 1024
# Rows whose input a lower row holds move on together at first; a few that go on clashing are then settled one by one.
_PARALLEL_TURNS = 8
_MANY_CONFLICTS = 64


class SplitRows:
    """The rows of one split of one task.

    Row i takes the first candidate of its own stream that lies in the split's share of the hash space and that no lower row holds.
    It depends on the task, its options, the seed, the split's name and i, and on nothing else.

    Args:
        task: the task.
        low, high: the inclusive range of input lengths.
        split: the split's name.
        size: how many rows.
        seed: the data's seed.
        allow_duplicates: leave out the condition on lower rows.

    Raises:
        ValueError: the split's share holds fewer different inputs than rows are asked for.
    """

    def __init__(
        self, task: Task, low: int, high: int, split: str, size: int, seed: int, allow_duplicates: bool = False
    ) -> None:
        self.task, self.low, self.high = task, low, high
        self.split, self.size, self.allow_duplicates = split, size, allow_duplicates
        self.share = share_of(split)
        key = stream_key(GENERATOR_VERSION, task.name, low, high, seed, split)
        self._stream = RowStream(key, task.range_words(low, high))
        self.batch_rows = max(64, min(BATCH_ROWS, _BATCH_TOKENS // max(high, 1)))
        self._held: set[int] = set()
        self._check_enough()

    def candidates(self, rows: np.ndarray, candidates: np.ndarray | int) -> Batch:
        """Given candidates of given rows, whether or not the split takes them."""
        return self.task.draw(self._stream.words(rows, candidates), self.low, self.high)

    def batches(self) -> Iterator[tuple[np.ndarray, Batch]]:
        """All rows in order: ``(candidate numbers int64 (B,), inputs)`` for each run of rows."""
        self._held = set()
        for start in range(0, self.size, self.batch_rows):
            rows = np.arange(start, min(self.size, start + self.batch_rows), dtype=np.int64)
            yield self._settle(rows)

    def settled(self) -> np.ndarray:
        """The candidate number of every row, int32 ``(size,)``: with it any row can be made alone."""
        parts = [taken.astype(np.int32) for taken, _ in self.batches()]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)

    # --- settling one batch ----------------------------------------------------------------------------------------------------

    def _settle(self, rows: np.ndarray) -> tuple[np.ndarray, Batch]:
        state = _Rows(rows, self.high)
        self._advance(state, np.arange(len(rows)), lambda hashes: np.zeros(len(hashes), dtype=bool))
        if not self.allow_duplicates:
            for turn in itertools.count():
                conflicts = self._conflicts(state.hashes)
                if not len(conflicts):
                    break
                # A row only ever leaves an input because a lower row holds it, and then some lower row goes on holding it. So moving
                # all conflicting rows at once ends where settling them one by one would.
                if turn < _PARALLEL_TURNS or len(conflicts) > _MANY_CONFLICTS:
                    self._advance(state, conflicts, self._is_held)
                else:
                    # Little is left to draw. All rows below the first conflict are final: what they hold can be skipped in one go.
                    conflicts = conflicts[:1]
                    self._advance(state, conflicts, self._held_below(state.hashes[: conflicts[0]]))
            self._held.update(state.hashes.tolist())
        width = int(state.lengths.max(initial=0))
        return state.taken, Batch(state.tokens[:, :width], state.lengths)

    def _is_held(self, hashes: np.ndarray) -> np.ndarray:
        held = self._held
        if held.isdisjoint(hashes.tolist()):
            return np.zeros(len(hashes), dtype=bool)
        return np.fromiter((value in held for value in hashes.tolist()), dtype=bool, count=len(hashes))

    def _held_below(self, lower: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        return lambda hashes: self._is_held(hashes) | np.isin(hashes, lower)

    def _conflicts(self, hashes: np.ndarray) -> np.ndarray:
        """Places in the batch whose input a lower row holds, ascending."""
        if len(np.unique(hashes)) == len(hashes) and self._held.isdisjoint(hashes.tolist()):
            return np.empty(0, dtype=np.int64)
        first = np.unique(hashes, return_index=True)[1]
        conflict = self._is_held(hashes)
        repeated = np.ones(len(hashes), dtype=bool)
        repeated[first] = False
        return np.flatnonzero(conflict | repeated)

    def _advance(self, state: _Rows, which: np.ndarray, held: Callable[[np.ndarray], np.ndarray]) -> None:
        """Move the given places to their next candidate in the split's share that is not held."""
        following = state.taken[which] + 1
        reach = 2
        while len(which):
            if following.max() > _MAX_CANDIDATES:
                raise ValueError(self._exhausted(int(state.rows[which[0]])))
            # Few rows left: look at several candidates of each in one call, the more the longer none is found.
            ahead = max(1, min(reach, _GRID // len(which)))
            reach *= 2
            rows = np.repeat(state.rows[which], ahead)
            if ahead == 1 and (following == following[0]).all():
                numbers, batch = following, self.candidates(rows, int(following[0]))
            else:
                numbers = (following[:, None] + np.arange(ahead)).reshape(-1)
                batch = self.candidates(rows, numbers)
            hashes = hash_tokens(batch.tokens, batch.lengths)
            good = in_share(hashes, self.share)
            good[good] = ~held(hashes[good])
            good = good.reshape(-1, ahead)
            found = good.any(axis=1)
            source = (np.arange(len(which)) * ahead + good.argmax(axis=1))[found]
            target = which[found]
            state.taken[target] = numbers[source]
            state.hashes[target] = hashes[source]
            state.lengths[target] = batch.lengths[source]
            state.tokens[target, : batch.tokens.shape[1]] = batch.tokens[source]
            which, following = which[~found], following[~found] + ahead

    # --- too few inputs --------------------------------------------------------------------------------------------------------

    def available(self) -> int:
        """The exact number of different inputs in the split's share, by listing them all: for small inputs only."""
        count = 0
        for length in self.task.lengths(self.low, self.high):
            for tokens in self.task.enumerate(length):
                hashes = hash_tokens(tokens, np.full(len(tokens), length, dtype=np.int64))
                count += int(in_share(hashes, self.share).sum())
        return count

    def _check_enough(self) -> None:
        # The share is a hash's, so it holds its eighths of the inputs up to a few standard deviations: where there are many times more
        # inputs than rows, nothing need be listed.
        eighths = self.share[1] - self.share[0]
        needed = 1 if self.allow_duplicates else self.size
        enough = 8 * (2 * needed + 64) // eighths
        support = 0
        for length in self.task.lengths(self.low, self.high):
            support += self.task.support_floor(length)
            if support >= enough:
                return
        available = self.available()
        if available < needed and self.allow_duplicates:
            raise ValueError(
                f"{self.task.name}: the {self.split} split asks for examples of {self._length_text()}, but none of these inputs lies "
                "in its share; use longer inputs"
            )
        if available < needed:
            raise ValueError(
                f"{self.task.name}: the {self.split} split asks for {self.size} different examples of {self._length_text()}, but only "
                f"{available} exist in its share; ask for at most {available}, use longer inputs, or let inputs occur twice "
                "(allow_duplicates)"
            )

    def _exhausted(self, row: int) -> str:
        return (
            f"{self.task.name}: row {row} of the {self.split} split found no new example of {self._length_text()} in {_MAX_CANDIDATES} "
            f"draws; ask for fewer than {row + 1}, use longer inputs"
            + ("" if self.allow_duplicates else ", or let inputs occur twice (allow_duplicates)")
        )

    def _length_text(self) -> str:
        return f"length {self.low}" if self.low == self.high else f"length {self.low} to {self.high}"


class _Rows:
    """The rows of one batch while they are settled: the candidate each has taken (−1: none yet), its hash and its tokens."""

    def __init__(self, rows: np.ndarray, width: int) -> None:
        self.rows = rows
        self.taken = np.full(len(rows), -1, dtype=np.int64)
        self.hashes = np.zeros(len(rows), dtype=np.uint64)
        self.lengths = np.zeros(len(rows), dtype=np.int64)
        self.tokens = np.zeros((len(rows), width), dtype=np.uint8)
