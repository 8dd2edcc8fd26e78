"""compute_sqrt: the floor square root of a binary number."""

import math
from collections.abc import Iterator

import numpy as np
from typing_extensions import override

from ..core.task import Task, all_words
from .numbers import big_endian_values, nonzero_number, nonzero_words

# Below 2**52 a float64 holds the number exactly and its square root errs by less than one.
_EXACT_BITS = 52


class ComputeSqrt(Task):
    """Compute square root (Delétang et al., 2023, context-sensitive): ⌊√x⌋ with ceil(n/2) binary digits, big-endian.

    The input is a number, uniform in 1..2^n−1, with n binary digits, big-endian.

    Example: ``1 0 0 1 0 1`` is 37 → ``1 1 0``, which is 6.
    """

    name = "compute_sqrt"
    level = "cs"
    kind = "token_classification"
    vocabulary = ("0", "1")
    labels = ("0", "1")
    description = "the floor square root of a big-endian binary number"
    example = ("1 0 0 1 0 1", "1 1 0")

    @override
    def words(self, length: int) -> int:
        return nonzero_words(length)

    @override
    def sample(self, words: np.ndarray, length: int) -> np.ndarray:
        # The digits of a uniform number have no preferred end.
        return nonzero_number(words, length)

    @override
    def output_length(self, length: int) -> int:
        return -(-length // 2)

    @override
    def answer(self, tokens: np.ndarray) -> np.ndarray:
        length = tokens.shape[1]
        digits = self.output_length(length)
        if length > _EXACT_BITS:
            roots = [math.isqrt(int("".join(map(str, row)), 2)) for row in tokens.tolist()]
            text = "".join(format(root, f"0{digits}b") for root in roots)
            return (np.frombuffer(text.encode(), dtype=np.uint8).reshape(len(tokens), digits) - ord("0")).astype(
                np.int64
            )
        value = big_endian_values(tokens)
        root = np.sqrt(value.astype(np.float64)).astype(np.int64)
        root -= root * root > value
        root += (root + 1) * (root + 1) <= value
        return root[:, None] >> np.arange(digits - 1, -1, -1) & 1

    @override
    def support(self, length: int) -> int:
        return 2**length - 1

    @override
    def enumerate(self, length: int) -> Iterator[np.ndarray]:
        for tokens in all_words(2, length):
            yield tokens[tokens.any(axis=1)]
