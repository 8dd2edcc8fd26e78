"""Tasks whose inputs are uniform words over an alphabet: sampling, counting and listing them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from typing_extensions import override

from .draws import bit_words, bits, bounded, digit_words, digits, halves
from .task import Task, all_words


class UniformWords(Task):
    """Base of the tasks whose input is a uniform word over the whole vocabulary."""

    @override
    def words(self, length: int) -> int:
        alphabet = len(self.vocabulary)
        if alphabet not in (2, 3, 5):
            return -(-length // 2)
        return bit_words(length) if alphabet == 2 else digit_words(alphabet, length)

    @override
    def sample(self, words: np.ndarray, length: int) -> np.ndarray:
        alphabet = len(self.vocabulary)
        if alphabet not in (2, 3, 5):
            return bounded(halves(words)[:, :length], alphabet).astype(np.uint8)
        return bits(words, length) if alphabet == 2 else digits(words, alphabet, length)

    @override
    def support(self, length: int) -> int:
        return len(self.vocabulary) ** length

    @override
    def enumerate(self, length: int) -> Iterator[np.ndarray]:
        return all_words(len(self.vocabulary), length)
