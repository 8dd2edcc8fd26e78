"""Where a mask may keep keys, in a form that attention can use to visit no others."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Structure:
    """The pairs (query position p, key position j) that a mask may keep; it keeps no pair outside.

    A pair is inside if any of these holds; which of the pairs inside are kept is for the strategy itself to say.

    Attributes:
        window: ``|p − j| ≤ window``. None: no window.
        block: with a window, p // block = j // block holds too. None: nothing is known about blocks.
        columns: j lies in one of these ranges.
        rows: p < rows.
        selected: the key is among this many largest scores of the query's valid keys.
        random: (r, seed) pairs: the key is among the r of :class:`Random` with that seed.
    """

    window: int | None = None
    block: int | None = None
    columns: tuple[range, ...] = ()
    rows: int = 0
    selected: int = 0
    random: tuple[tuple[int, int], ...] = ()

    def __or__(self, other: Structure) -> Structure:
        """The pairs that lie in either."""
        windows = [window for window in (self.window, other.window) if window is not None]
        # Blocks bound the union's window only if no other window reaches across them.
        block = self.block if other.window is None else other.block if self.window is None else None
        if self.block == other.block:
            block = self.block
        return Structure(
            window=max(windows, default=None),
            block=block,
            columns=tuple(dict.fromkeys(self.columns + other.columns)),
            rows=max(self.rows, other.rows),
            selected=max(self.selected, other.selected),
            random=tuple(dict.fromkeys(self.random + other.random)),
        )

    def column_positions(self, keys: int) -> list[int]:
        """Positions of all columns below `keys`, ascending, each once."""
        # Cut off first: a range may end far behind the last key.
        return sorted({position for columns in self.columns for position in columns[:keys] if position < keys})
