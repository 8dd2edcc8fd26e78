"""binary_addition: the sum of two binary numbers."""

import numpy as np
from typing_extensions import override

from ..core.task import IGNORED
from .numbers import TwoNumbers, end_after_last_one


class BinaryAddition(TwoNumbers):
    """Binary addition (Delétang et al., 2023, context-sensitive): the sum, little-endian without trailing zeros, then END.

    Two little-endian numbers around ``+`` (:class:`.numbers.TwoNumbers`); n+1 output positions, those behind END do not count.

    Example: ``0 0 1 + 0 1 1 0 1`` is 4 + 22 → ``0 1 0 1 1 END``, which is 26.
    """

    name = "binary_addition"
    vocabulary = ("0", "1", "+")
    description = "the sum of two little-endian binary numbers, then END"
    example = ("0 0 1 + 0 1 1 0 1", "0 1 0 1 1 END")

    @override
    def output_length(self, length: int) -> int:
        return length + 1

    @override
    def answer(self, tokens: np.ndarray) -> np.ndarray:
        rows, length = tokens.shape
        first, second = self.operands(tokens)
        columns = np.ascontiguousarray((first + second).T)
        out = np.zeros((length + 1, rows), dtype=np.uint8)
        carry = np.zeros(rows, dtype=np.uint8)
        for position in range(length):
            total = columns[position] + carry
            out[position] = total & 1
            carry = total >> 1
        return end_after_last_one(out.T, IGNORED)
