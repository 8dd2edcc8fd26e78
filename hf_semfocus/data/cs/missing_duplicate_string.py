"""missing_duplicate_string: the hidden symbol of a word written twice."""

from collections.abc import Iterator

import numpy as np
from typing_extensions import override

from ..core.draws import bit_words, bits, bounded, halves
from ..core.task import Task, all_words

_HIDDEN, _DOT = 2, 3


class MissingDuplicateString(Task):
    """Missing duplicate string (Delétang et al., 2023, context-sensitive): the symbol hidden as ``_``.

    A uniform word of n//2 symbols twice, one of the 2·(n//2) positions hidden, uniformly; one ``.`` at the end if n is odd.

    Example: ``0 1 1 0 0 1 _ 0`` → ``1``, the third symbol of the word.
    """

    name = "missing_duplicate_string"
    level = "cs"
    vocabulary = ("0", "1", "_", ".")
    labels = ("0", "1")
    description = "the symbol hidden as _ in a word written twice"
    example = ("0 1 1 0 0 1 _ 0", "1")
    min_length = 2

    @override
    def words(self, length: int) -> int:
        return 1 + bit_words(length // 2)

    @override
    def sample(self, words: np.ndarray, length: int) -> np.ndarray:
        half = length // 2
        tokens = np.full((len(words), length), _DOT, dtype=np.uint8)
        word = bits(words[:, 1:], half)
        tokens[:, :half] = word
        tokens[:, half : 2 * half] = word
        tokens[np.arange(len(words)), bounded(halves(words[:, :1])[:, 0], 2 * half)] = _HIDDEN
        return tokens

    @override
    def answer(self, tokens: np.ndarray) -> np.ndarray:
        half = tokens.shape[1] // 2
        hidden = (tokens == _HIDDEN).argmax(axis=1)
        other = np.where(hidden < half, hidden + half, hidden - half)
        return tokens[np.arange(len(tokens)), other].astype(np.int64)

    @override
    def support(self, length: int) -> int:
        return 2 ** (length // 2) * 2 * (length // 2)

    @override
    def enumerate(self, length: int) -> Iterator[np.ndarray]:
        half = length // 2
        for word in all_words(2, half):
            for hidden in range(2 * half):
                tokens = np.full((len(word), length), _DOT, dtype=np.uint8)
                tokens[:, : 2 * half] = np.hstack([word, word])
                tokens[:, hidden] = _HIDDEN
                yield tokens
