"""binary_multiplication: the product of two binary numbers."""

import numpy as np
from typing_extensions import override

from ..core.task import IGNORED
from .numbers import TwoNumbers, big_endian_values, end_after_last_one

# The product of an n-token input has at most n − 1 binary digits, and an int64 holds 62 with room for a sign.
_EXACT_LENGTH = 63


class BinaryMultiplication(TwoNumbers):
    """Binary multiplication (Delétang et al., 2023, context-sensitive): the product, little-endian, then END.

    Two little-endian numbers around ``*`` (:class:`.numbers.TwoNumbers`); n output positions, those behind END do not count.

    Example: ``0 0 1 * 0 1 1 0 1`` is 4 · 22 → ``0 0 0 1 1 0 1 END``, which is 88.
    """

    name = "binary_multiplication"
    vocabulary = ("0", "1", "*")
    description = "the product of two little-endian binary numbers, then END"
    example = ("0 0 1 * 0 1 1 0 1", "0 0 0 1 1 0 1 END")

    @override
    def output_length(self, length: int) -> int:
        return length

    @override
    def answer(self, tokens: np.ndarray) -> np.ndarray:
        rows, length = tokens.shape
        first, second = self.operands(tokens)
        if length <= _EXACT_LENGTH:
            # Digits from the last position on are 0: a number has at most n − 2 of them.
            product = big_endian_values(first[:, -2::-1]) * big_endian_values(second[:, -2::-1])
            digits = product[:, None] >> np.arange(length) & 1
        else:
            digits = np.zeros((rows, length), dtype=np.int64)
            for row, (left, right) in enumerate(zip(first[:, ::-1].tolist(), second[:, ::-1].tolist(), strict=True)):
                value = int("".join(map(str, left)), 2) * int("".join(map(str, right)), 2)
                text = format(value, "b")[::-1]
                digits[row, : len(text)] = np.frombuffer(text.encode(), dtype=np.uint8) - ord("0")
        return end_after_last_one(digits, IGNORED)
