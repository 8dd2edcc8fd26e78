"""duplicate_string: the word twice."""

import numpy as np
from typing_extensions import override

from ..core.uniform import UniformWords


class DuplicateString(UniformWords):
    """Duplicate string (Delétang et al., 2023, context-sensitive): the input twice, 2n output positions.

    Inputs are uniform words over 0 and 1.

    Example: ``0 1 1`` → ``0 1 1 0 1 1``.
    """

    name = "duplicate_string"
    level = "cs"
    kind = "token_classification"
    vocabulary = ("0", "1")
    labels = ("0", "1")
    description = "the input twice"
    example = ("0 1 1", "0 1 1 0 1 1")

    @override
    def output_length(self, length: int) -> int:
        return 2 * length

    @override
    def answer(self, tokens: np.ndarray) -> np.ndarray:
        return np.hstack([tokens, tokens]).astype(np.int64)
