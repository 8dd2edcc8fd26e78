"""Binary numbers as rows of digits: drawing, reading, and the two-number inputs of addition and multiplication."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from typing_extensions import override

from ..core.draws import bit_words, bits, bounded, halves
from ..core.task import Task, all_words, rows_by_length

ZERO, ONE, OPERATOR = 0, 1, 2
END = 2
_SMALL_BITS = 32


def nonzero_words(size: int) -> int:
    """Words that :func:`nonzero_number` needs."""
    return bit_words(size)


def nonzero_number(words: np.ndarray, size: int) -> np.ndarray:
    """Binary digits of a number uniform in 1..2^size−1: uint64 ``(B, W)`` → uint8 ``(B, size)``.

    Up to 32 digits the number is drawn as such. Above, digits are drawn, and 0 (probability below 2**-32) becomes the number whose
    digits are all 1.
    """
    if size <= _SMALL_BITS:
        # The high half of a 64 × 32-bit product, in two steps that fit 64 bits.
        bound = np.uint64(2**size - 1)
        low = (words[:, 0] & np.uint64(0xFFFFFFFF)) * bound
        value = (((words[:, 0] >> np.uint64(32)) * bound + (low >> np.uint64(32))) >> np.uint64(32)) + np.uint64(1)
        return bits(value[:, None], size)
    out = bits(words, size)
    out[~out.any(axis=1)] = 1
    return out


def big_endian_values(digits: np.ndarray) -> np.ndarray:
    """Values of rows of up to 62 binary digits, the most significant first: uint8 ``(B, N)`` → int64 ``(B,)``."""
    return digits.astype(np.int64) @ (np.int64(1) << np.arange(digits.shape[1] - 1, -1, -1, dtype=np.int64))


class TwoNumbers(Task):
    """Base of binary addition and multiplication: two little-endian numbers around an operator.

    The first number's size is uniform in 1..n−2 and the second takes the rest. Each number is uniform in 1..2^size−1 and written with
    exactly ``size`` digits, so the most significant ones, on the right, may be 0.
    """

    level = "cs"
    kind = "token_classification"
    labels = ("0", "1", "END")
    min_length = 3

    @override
    def words(self, length: int) -> int:
        return 1 + 2 * nonzero_words(length - 2)

    @override
    def sample(self, words: np.ndarray, length: int) -> np.ndarray:
        size = 1 + bounded(halves(words[:, :1])[:, 0], length - 2)
        tokens = np.full((len(words), length), OPERATOR, dtype=np.uint8)
        first, second = words[:, 1 : 1 + nonzero_words(length - 2)], words[:, 1 + nonzero_words(length - 2) :]
        for rows, left in rows_by_length(size):
            right = length - 1 - left
            tokens[rows, :left] = nonzero_number(first[rows], left)
            tokens[rows, left + 1 :] = nonzero_number(second[rows], right)
        return tokens

    def operands(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Both numbers of each row as little-endian digits, filled up with 0: two uint8 arrays ``(B, N)``."""
        length = tokens.shape[1]
        at = (tokens == OPERATOR).argmax(axis=1)[:, None]
        position = np.arange(length)
        first = np.where(position < at, tokens, 0).astype(np.uint8)
        source = np.minimum(at + 1 + position, length - 1)
        second = np.where(at + 1 + position < length, np.take_along_axis(tokens, source, axis=1), 0).astype(np.uint8)
        return first, second

    @override
    def support(self, length: int) -> int:
        return sum((2**left - 1) * (2 ** (length - 1 - left) - 1) for left in range(1, length - 1))

    @override
    def enumerate(self, length: int) -> Iterator[np.ndarray]:
        for left in range(1, length - 1):
            for first in all_words(2, left):
                for row in first[first.any(axis=1)]:
                    for second in all_words(2, length - 1 - left):
                        second = second[second.any(axis=1)]
                        head = np.broadcast_to(np.append(row, OPERATOR).astype(np.uint8), (len(second), left + 1))
                        yield np.hstack([head, second])


def end_after_last_one(digits: np.ndarray, ignored: int) -> np.ndarray:
    """Little-endian digits without trailing zeros, then END, then ignored positions: int64 of the digits' shape.

    The last column must be 0 in every row, so that END has a place; the number is at least 1.
    """
    rows, width = digits.shape
    end = width - (digits[:, ::-1] != 0).argmax(axis=1)
    out = np.where(np.arange(width) < end[:, None], digits.astype(np.int64), ignored)
    out[np.arange(rows), end] = END
    return out
