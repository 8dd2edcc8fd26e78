"""solve_equation: the hidden digit of an equation modulo 5."""

from collections.abc import Iterator

import numpy as np
from typing_extensions import override

from ..core.draws import bounded, halves
from ..core.task import Batch, Task
from .brackets import MODULUS, SYMBOLS, enumerate_brackets, evaluate, nesting, sample_brackets, skeletons

_EQUALS = 7
_X = 10


class SolveEquation(Task):
    """Solve equation (Delétang et al., 2023, deterministic context-free): the digit that x stands for.

    A bracket expression of length n−2 with + and − (:mod:`.brackets`), one digit replaced by x, then ``=`` and its value mod 5. The
    hidden digit is found by starting at a uniform position and going right, wrapping, to the first digit. x occurs once and nothing
    multiplies it, so the digit is unique.

    Example: ``( x + 4 ) = 2`` → ``3``, as 3 + 4 is 7, and 7 mod 5 is 2.
    """

    name = "solve_equation"
    level = "dcf"
    # "=" stands where a bracket expression's "*" would, which never occurs here.
    vocabulary = (*SYMBOLS[:_EQUALS], "=", *SYMBOLS[_EQUALS + 1 :], "x")
    labels = ("0", "1", "2", "3", "4")
    description = "the digit x that makes a bracket equation mod 5 true"
    example = ("( x + 4 ) = 2", "3")
    min_length = 3
    has_depth = True

    @override
    def words(self, length: int) -> int:
        return -(-length // 2)

    @override
    def sample(self, words: np.ndarray, length: int) -> np.ndarray:
        draws = halves(words)
        size = length - 2
        tokens = np.empty((len(words), length), dtype=np.uint8)
        sample_brackets(draws, size, 2, tokens)
        tokens[:, size] = _EQUALS
        tokens[:, size + 1] = evaluate(tokens[:, :size])
        start = bounded(draws[:, size], size)
        distance = (np.arange(size) - start[:, None]) % size
        hidden = np.where(tokens[:, :size] < MODULUS, distance, size).argmin(axis=1)
        tokens[np.arange(len(tokens)), hidden] = _X
        return tokens

    @override
    def answer(self, tokens: np.ndarray) -> np.ndarray:
        expression, value = tokens[:, :-2], tokens[:, -1].astype(np.int64)
        at_0 = evaluate(np.where(expression == _X, np.uint8(0), expression))
        at_1 = evaluate(np.where(expression == _X, np.uint8(1), expression))
        # The expression is at_0 + slope · x with slope ±1, its own inverse.
        return (value - at_0) * (at_1 - at_0) % MODULUS

    @override
    def depth(self, batch: Batch) -> np.ndarray:
        return nesting(batch.tokens)

    @override
    def support(self, length: int) -> int:
        # The value is free to be any of 5 for every shape, hidden place and choice of the other digits.
        return sum(shapes * digits * 5**digits for digits, shapes in skeletons(length - 2, 2))

    @override
    def enumerate(self, length: int) -> Iterator[np.ndarray]:
        for expression in enumerate_brackets(length - 2, 2):
            for place, symbol in enumerate(expression):
                # Every equation is met once for each digit under x; the digit 0 stands for all five, and the value takes all five too.
                if symbol == 0:
                    for value in range(MODULUS):
                        equation = (*expression[:place], _X, *expression[place + 1 :], _EQUALS, value)
                        yield np.array([equation], dtype=np.uint8)
