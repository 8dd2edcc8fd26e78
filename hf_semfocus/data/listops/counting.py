"""Exact length probabilities of Long Range Arena's ListOps trees, by depth and number of arguments.

With ``p_d(l)`` the probability that a subtree whose root has depth d has l tokens: ``p_10(1) = 1``, and for d < 10
``p_d(1) = 3/4``, ``p_d(l) = 1/4 · 1/9 · Σ_m P(m subtrees of depth d+1 have l−2 tokens)`` for m from 2 to 10. The m subtrees are split
into those that are digits (one token each) and k that are operators, so only the operators' lengths are ever convolved.
"""

from __future__ import annotations

from functools import lru_cache
from math import comb

import numpy as np

from .grammar import MAX_ARGUMENTS, MAX_DEPTH, MIN_ARGUMENTS, OPERATOR_PROBABILITY

_ARGUMENT_COUNTS = range(MIN_ARGUMENTS, MAX_ARGUMENTS + 1)
# Every (arguments, operators among them) that a node can have.
SHAPES = tuple((arguments, operators) for arguments in _ARGUMENT_COUNTS for operators in range(arguments + 1))


class LengthTables:
    """Length probabilities up to ``longest`` tokens. Arrays are indexed by depth first; index 0 of a depth axis is unused.

    Attributes:
        node: float64 ``(12, longest + 1)``, ``node[d, l] = p_d(l)``.
        operators: float64 ``(12, 11, longest + 1)``, ``operators[d, k, s]``: the probability that k given nodes of depth d all are
            operators and have s tokens together.
        shapes: float64 ``(12, 63, longest + 1)``, ``shapes[d, j, l]``: the probability that a node of depth d is an operator with the
            arguments of ``SHAPES[j]`` and has l tokens.
    """

    def __init__(self, longest: int) -> None:
        self.longest = longest
        size = longest + 1
        self.node = np.zeros((MAX_DEPTH + 2, size))
        self.operators = np.zeros((MAX_DEPTH + 2, MAX_ARGUMENTS + 1, size))
        self.shapes = np.zeros((MAX_DEPTH + 2, len(SHAPES), size))
        for depth in range(MAX_DEPTH, 0, -1):
            self._fill(depth)

    def _fill(self, depth: int) -> None:
        operator = np.zeros(self.longest + 1)
        digit = 1.0
        if depth < MAX_DEPTH:
            digit = 1 - OPERATOR_PROBABILITY
            below = depth + 1
            below_digit = 1.0 if below == MAX_DEPTH else 1 - OPERATOR_PROBABILITY
            for index, (arguments, operators) in enumerate(SHAPES):
                digits = arguments - operators
                weight = (
                    OPERATOR_PROBABILITY / len(_ARGUMENT_COUNTS) * comb(arguments, operators) * below_digit**digits
                )
                # Two tokens for the node's own brackets, one for each digit.
                room = self.longest + 1 - 2 - digits
                if room > 0:
                    self.shapes[depth, index, 2 + digits :] = weight * self.operators[below, operators, :room]
                operator = operator + self.shapes[depth, index]
        self.node[depth] = operator
        if self.longest >= 1:
            self.node[depth, 1] += digit
        powers = self.operators[depth]
        powers[0, 0] = 1.0
        for count in range(1, MAX_ARGUMENTS + 1):
            powers[count] = _convolve(powers[count - 1], operator)


def _convolve(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Linear convolution cut to the inputs' length, by shifted sums: every platform adds in the same order, so rows agree to the bit."""
    out = np.zeros_like(left)
    for shift in np.flatnonzero(left).tolist():
        out[shift:] += left[shift] * right[: len(right) - shift]
    return out


@lru_cache(maxsize=4)
def length_tables(longest: int) -> LengthTables:
    """The tables for lengths up to ``longest``, kept for the next call."""
    return LengthTables(longest)
