"""modular_arithmetic: the value of a flat expression modulo 5."""

from collections.abc import Iterator

import numpy as np
from typing_extensions import override

from ..core.draws import digit_words, digits
from ..core.task import Task, all_words

_PLUS, _MINUS, _TIMES = 5, 6, 7
# Five is a small modulus: products and sums are looked up, so that the arithmetic stays in bytes.
_PRODUCT = (np.arange(5)[:, None] * np.arange(5) % 5).astype(np.uint8)


class ModularArithmetic(Task):
    """Modular arithmetic without brackets (Delétang et al., 2023, regular): the value mod 5; ``*`` binds tighter.

    Digits 0–4 and operators alternate, each uniform. The length is odd: an even length is lowered by one, and the ``length`` column
    holds the real one.

    Example: ``1 + 2 * 3`` is 7, so the label is ``2``.
    """

    name = "modular_arithmetic"
    level = "regular"
    vocabulary = ("0", "1", "2", "3", "4", "+", "-", "*")
    labels = ("0", "1", "2", "3", "4")
    description = "the value mod 5 of digits joined by + - *, where * binds tighter"
    example = ("1 + 2 * 3", "2")

    @override
    def lengths(self, low: int, high: int) -> list[int]:
        odd = [length for length in range(low, high + 1) if length % 2]
        return odd or [low - 1]

    @override
    def words(self, length: int) -> int:
        return digit_words(5, (length + 1) // 2) + digit_words(3, length // 2)

    @override
    def sample(self, words: np.ndarray, length: int) -> np.ndarray:
        operands = (length + 1) // 2
        tokens = np.empty((len(words), length), dtype=np.uint8)
        tokens[:, 0::2] = digits(words, 5, operands)
        tokens[:, 1::2] = digits(words[:, digit_words(5, operands) :], 3, length // 2) + _PLUS
        return tokens

    @override
    def answer(self, tokens: np.ndarray) -> np.ndarray:
        by_position = np.ascontiguousarray(tokens.T)
        total = np.zeros(len(tokens), dtype=np.uint8)
        negative = np.zeros(len(tokens), dtype=bool)
        term = by_position[0]
        for operator, operand in zip(by_position[1::2], by_position[2::2], strict=True):
            times = operator == _TIMES
            closed = total + np.where(negative, 5 - term, term)
            total = np.where(times, total, closed % 5)
            negative = np.where(times, negative, operator == _MINUS)
            term = np.where(times, _PRODUCT[term, operand], operand)
        return ((total + np.where(negative, 5 - term, term)) % 5).astype(np.int64)

    @override
    def support(self, length: int) -> int:
        return 5 ** ((length + 1) // 2) * 3 ** (length // 2)

    @override
    def enumerate(self, length: int) -> Iterator[np.ndarray]:
        for operators in all_words(3, length // 2):
            for row in operators:
                for operands in all_words(5, (length + 1) // 2):
                    tokens = np.empty((len(operands), length), dtype=np.uint8)
                    tokens[:, 0::2] = operands
                    tokens[:, 1::2] = row + _PLUS
                    yield tokens
