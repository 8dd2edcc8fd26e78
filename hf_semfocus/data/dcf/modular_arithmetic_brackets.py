"""modular_arithmetic_brackets: the value of a bracket expression modulo 5."""

from collections.abc import Iterator

import numpy as np
from typing_extensions import override

from ..core.draws import halves
from ..core.task import Batch, Task
from .brackets import SYMBOLS, enumerate_brackets, evaluate, nesting, sample_brackets, skeletons


class ModularArithmeticBrackets(Task):
    """Modular arithmetic with brackets (Delétang et al., 2023, deterministic context-free): the value mod 5.

    Inputs are bracket expressions over the digits 0–4 with + - * and a unary minus before digits, drawn by uniform splits
    (:mod:`.brackets`).

    Example: ``( ( 1 - 3 ) + 4 )`` is 2, the label ``2``.
    """

    name = "modular_arithmetic_brackets"
    level = "dcf"
    vocabulary = SYMBOLS
    labels = ("0", "1", "2", "3", "4")
    description = "the value mod 5 of an expression with brackets, + - * and unary minus"
    example = ("( ( 1 - 3 ) + 4 )", "2")
    has_depth = True

    @override
    def words(self, length: int) -> int:
        return -(-length // 2)

    @override
    def sample(self, words: np.ndarray, length: int) -> np.ndarray:
        tokens = np.empty((len(words), length), dtype=np.uint8)
        sample_brackets(halves(words), length, 3, tokens)
        return tokens

    @override
    def answer(self, tokens: np.ndarray) -> np.ndarray:
        return evaluate(tokens)

    @override
    def depth(self, batch: Batch) -> np.ndarray:
        return nesting(batch.tokens)

    @override
    def support(self, length: int) -> int:
        return sum(shapes * 5**digits for digits, shapes in skeletons(length, 3))

    @override
    def enumerate(self, length: int) -> Iterator[np.ndarray]:
        for expression in enumerate_brackets(length, 3):
            yield np.array([expression], dtype=np.uint8)
