"""listops: the value of a nested list of MIN, MAX, MED and SM."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache

import numpy as np
from typing_extensions import override

from ..core.task import Batch, Task
from . import grammar
from .counting import length_tables
from .sampler import ConditionalSampler

_COUNTED_LENGTH = 24


@lru_cache(maxsize=4)
def _sampler(low: int, high: int) -> ConditionalSampler:
    return ConditionalSampler(low, high)


class ListOps(Task):
    """ListOps of Long Range Arena (Nangia and Bowman, 2018; Tay et al., 2021): the value, a digit, of a nested list of operators.

    Trees have Long Range Arena's distribution (:mod:`.grammar`) conditioned on the inclusive range of lengths, counted in tokens:
    ``[MIN``, ``[MAX``, ``[MED``, ``[SM``, ``]`` and digits. MED of an even number of arguments is the mean of the middle two,
    truncated; SM is the sum modulo 10.

    Example: ``[MAX 2 9 [MIN 4 7 ] 0 ]`` → ``9``.
    """

    name = "listops"
    level = "listops"
    vocabulary = grammar.SYMBOLS
    labels = tuple(map(str, range(10)))
    description = "the value of nested MIN, MAX, MED (median) and SM (sum mod 10) lists"
    example = ("[MAX 2 9 [MIN 4 7 ] 0 ]", "9")
    default_length = (500, 600)
    has_depth = True

    @override
    def lengths(self, low: int, high: int) -> list[int]:
        node = length_tables(high).node[1]
        possible = [length for length in range(low, high + 1) if node[length] > 0]
        if not possible:
            raise ValueError(f"listops: no tree has from {low} to {high} tokens; lengths are 1 or from 4 up")
        return possible

    @override
    def words(self, length: int) -> int:
        return length

    @override
    def range_words(self, low: int, high: int) -> int:
        return high

    @override
    def sample(self, words: np.ndarray, length: int) -> np.ndarray:
        return _sampler(length, length).draw(words).tokens

    @override
    def draw(self, words: np.ndarray, low: int, high: int) -> Batch:
        return _sampler(low, high).draw(words)

    @override
    def answer(self, tokens: np.ndarray) -> np.ndarray:
        return grammar.evaluate(tokens, np.full(len(tokens), tokens.shape[1], dtype=np.int64))

    @override
    def answer_batch(self, batch: Batch) -> np.ndarray:
        return grammar.evaluate(batch.tokens, batch.lengths)

    @override
    def depth(self, batch: Batch) -> np.ndarray:
        return grammar.tree_depth(batch.tokens, batch.lengths)

    @override
    def support(self, length: int) -> int:
        return _count(length, 1)

    @override
    def support_floor(self, length: int) -> int:
        # An operator has at least two arguments, so more than a third of a tree's tokens are digits, each free to be any of ten.
        return 10 ** (length // 3) if length > _COUNTED_LENGTH else self.support(length)

    @override
    def enumerate(self, length: int) -> Iterator[np.ndarray]:
        for row in _trees(length, 1):
            yield np.array([row], dtype=np.uint8)


@cache
def _count(length: int, depth: int) -> int:
    """How many trees with a root of this depth have this length."""
    if length == 1:
        return grammar.DIGITS
    if length < 4 or depth >= grammar.MAX_DEPTH:
        return 0
    return len(grammar.OPERATORS) * sum(
        _count_lists(length - 2, depth + 1, arguments)
        for arguments in range(grammar.MIN_ARGUMENTS, grammar.MAX_ARGUMENTS + 1)
    )


@cache
def _count_lists(length: int, depth: int, arguments: int) -> int:
    if arguments == 0:
        return int(length == 0)
    return sum(
        _count(first, depth) * _count_lists(length - first, depth, arguments - 1)
        for first in range(1, length - arguments + 2)
    )


def _trees(length: int, depth: int) -> Iterator[tuple[int, ...]]:
    if length == 1:
        yield from ((digit,) for digit in range(grammar.DIGITS))
    elif length >= 4 and depth < grammar.MAX_DEPTH:
        for arguments in range(grammar.MIN_ARGUMENTS, grammar.MAX_ARGUMENTS + 1):
            for inner in _lists(length - 2, depth + 1, arguments):
                for operator in range(grammar.MIN, grammar.CLOSE):
                    yield (operator, *inner, grammar.CLOSE)


def _lists(length: int, depth: int, arguments: int) -> Iterator[tuple[int, ...]]:
    if arguments == 0:
        if length == 0:
            yield ()
        return
    for first in range(1, length - arguments + 2):
        for head in _trees(first, depth):
            for tail in _lists(length - first, depth, arguments - 1):
                yield (*head, *tail)
