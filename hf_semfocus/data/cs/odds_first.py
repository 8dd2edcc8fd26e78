"""odds_first: the symbols at odd positions, then those at even ones."""

import numpy as np
from typing_extensions import override

from ..core.uniform import UniformWords


class OddsFirst(UniformWords):
    """Odds first (Delétang et al., 2023, context-sensitive): positions 1, 3, 5, …, then 2, 4, 6, …, n output positions.

    Positions count from 1, as in the paper; its reference code starts with positions 2, 4, 6. Inputs are uniform words over 0 and 1.

    Example: ``0 0 1 1 0`` → ``0 1 0 0 1``.
    """

    name = "odds_first"
    level = "cs"
    kind = "token_classification"
    vocabulary = ("0", "1")
    labels = ("0", "1")
    description = "the symbols at positions 1, 3, 5, …, then those at 2, 4, 6, …"
    example = ("0 0 1 1 0", "0 1 0 0 1")

    @override
    def output_length(self, length: int) -> int:
        return length

    @override
    def answer(self, tokens: np.ndarray) -> np.ndarray:
        return np.hstack([tokens[:, 0::2], tokens[:, 1::2]]).astype(np.int64)
