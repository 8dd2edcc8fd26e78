"""Uniform bits, digits and bounded integers from 64-bit random words, the same on every platform.

All draws use integer arithmetic: ``floor(u * bound / 2**b)`` of b random bits. A value's probability is off by less than 2**-28,
which no feasible number of examples could show.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

_GROUP = 4
# 54 bits leave ten bits of headroom, enough for base**4 up to base 5.
_FRACTION_BITS = np.uint64(54)
_FRACTION_MASK = np.uint64((1 << 54) - 1)
_DIGITS_A_WORD = {3: 16, 5: 8}


def bit_words(count: int) -> int:
    """Words that :func:`bits` needs for ``count`` bits."""
    return max(1, -(-count // 64))


def bits(words: np.ndarray, count: int) -> np.ndarray:
    """The first ``count`` random bits of each row: uint64 ``(B, W)`` → uint8 ``(B, count)`` of 0 and 1."""
    as_bytes = np.ascontiguousarray(words[:, : bit_words(count)], dtype="<u8").view(np.uint8)
    return np.unpackbits(as_bytes, axis=1, count=count, bitorder="little")


def digit_words(base: int, count: int) -> int:
    """Words that :func:`digits` needs for ``count`` digits of a base (3 or 5)."""
    return max(1, -(-count // _DIGITS_A_WORD[base]))


@lru_cache(maxsize=4)
def _groups(base: int) -> np.ndarray:
    """Every group of four digits as the four bytes of one uint32, indexed by the group's value."""
    values = np.arange(base**_GROUP)
    table = np.stack([values // base**power % base for power in reversed(range(_GROUP))], axis=1)
    return np.ascontiguousarray(table.astype(np.uint8)).view(np.uint32)[:, 0]


def digits(words: np.ndarray, base: int, count: int) -> np.ndarray:
    """``count`` uniform digits in ``[0, base)`` a row, for base 3 or 5.

    The top 54 bits of a word are a binary fraction; multiplying it by ``base**4`` moves the next four digits in front of the point.

    Args:
        words: uint64 ``(B, W)`` with ``W >= digit_words(base, count)``.
        base: 3 or 5.
        count: digits a row.

    Returns:
        uint8 array ``(B, count)``.
    """
    used = digit_words(base, count)
    groups_a_word = _DIGITS_A_WORD[base] // _GROUP
    fraction = words[:, :used] >> np.uint64(10)
    factor = np.uint64(base**_GROUP)
    table = _groups(base)
    out = np.empty((len(words), used, groups_a_word), dtype=np.uint32)
    for group in range(groups_a_word):
        fraction = fraction * factor
        out[:, :, group] = table[(fraction >> _FRACTION_BITS).astype(np.intp)]
        fraction &= _FRACTION_MASK
    return out.view(np.uint8).reshape(len(words), -1)[:, :count]


def halves(words: np.ndarray) -> np.ndarray:
    """Two 32-bit draws of each word, low half first: uint64 ``(B, W)`` → uint32 ``(B, 2 W)``."""
    return np.ascontiguousarray(words, dtype="<u8").view("<u4")


def bounded(draws: np.ndarray, bound: np.ndarray | int) -> np.ndarray:
    """Uniform integers in ``[0, bound)`` from 32-bit draws, bounds up to 2**16: int64 array of the draws' shape."""
    return ((draws.astype(np.uint64) * np.asarray(bound).astype(np.uint64)) >> np.uint64(32)).astype(np.int64)
