"""A 64-bit hash of an input's tokens: it decides which split an input may belong to, and whether two inputs are the same."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

_A, _B = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_STEP = 0x9E3779B97F4A7C15
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
_EIGHTHS = np.uint64(61)

# Eighths of the hash space, in the proportion of the default sizes (5,000 : 1,000 : 2,000). Splits for longer inputs share the test
# split's part, so that nothing a model trains on, at any length or seed, is ever tested.
SHARES = {"train": (0, 5), "validation": (5, 6), "test": (6, 8)}


def share_of(split: str) -> tuple[int, int]:
    """The eighths ``[first, last)`` of the hash space that a split owns: ``share_of("validation") == (5, 6)``."""
    return SHARES.get(split, SHARES["test"])


def _mix(value: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014), in place."""
    value ^= value >> _SHIFTS[0]
    value *= _A
    value ^= value >> _SHIFTS[1]
    value *= _B
    value ^= value >> _SHIFTS[2]
    return value


@lru_cache(maxsize=64)
def _position_constants(chunks: int) -> np.ndarray:
    return np.array([(_STEP * (index + 1)) & 0xFFFFFFFFFFFFFFFF for index in range(chunks)], dtype=np.uint64)


def hash_tokens(tokens: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Hash the tokens of each row; neither the seed nor the padding enters.

    Two different inputs collide with probability 2**-64 and would then count as one, which costs nothing but that one input.

    Args:
        tokens: uint8 ``(B, N)``, symbol numbers; whatever stands behind a row's length is ignored.
        lengths: int64 ``(B,)``.

    Returns:
        uint64 ``(B,)``.
    """
    rows, width = tokens.shape
    chunks = -(-width // 8)
    padded = np.zeros((rows, chunks * 8), dtype=np.uint8)
    # Symbols count from 1, so that no symbol looks like the padding.
    np.add(tokens, 1, out=padded[:, :width])
    if rows and lengths.min() < width:
        padded[:, :width][np.arange(width) >= lengths[:, None]] = 0
    values = padded.view("<u8").astype(np.uint64, copy=False)
    empty = values == 0
    mixed = _mix(values + _position_constants(chunks))
    if empty.any():
        mixed[empty] = 0
    return _mix(mixed.sum(axis=1, dtype=np.uint64) + lengths.astype(np.uint64) * np.uint64(_STEP))


def in_share(hashes: np.ndarray, share: tuple[int, int]) -> np.ndarray:
    """Which hashes lie in the eighths ``[first, last)``: bool array of the hashes' shape."""
    eighth = hashes >> _EIGHTHS
    return (eighth >= np.uint64(share[0])) & (eighth < np.uint64(share[1]))
