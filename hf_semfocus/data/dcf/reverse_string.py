"""reverse_string: the word backwards."""

import numpy as np
from typing_extensions import override

from ..core.uniform import UniformWords


class ReverseString(UniformWords):
    """Reverse string (Delétang et al., 2023, deterministic context-free): the input backwards, n output positions.

    Inputs are uniform words over 0 and 1.

    Example: ``0 1 1`` → ``1 1 0``.
    """

    name = "reverse_string"
    level = "dcf"
    kind = "token_classification"
    vocabulary = ("0", "1")
    labels = ("0", "1")
    description = "the input backwards"
    example = ("0 1 1", "1 1 0")

    @override
    def output_length(self, length: int) -> int:
        return length

    @override
    def answer(self, tokens: np.ndarray) -> np.ndarray:
        return tokens[:, ::-1].astype(np.int64)
