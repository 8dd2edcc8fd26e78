"""bucket_sort: the digits in ascending order."""

import numpy as np
from typing_extensions import override

from ..core.uniform import UniformWords


class BucketSort(UniformWords):
    """Bucket sort (Delétang et al., 2023, context-sensitive): the input sorted, n output positions.

    Inputs are uniform words over the digits 0–4.

    Example: ``1 0 2 0`` → ``0 0 1 2``.
    """

    name = "bucket_sort"
    level = "cs"
    kind = "token_classification"
    vocabulary = ("0", "1", "2", "3", "4")
    labels = ("0", "1", "2", "3", "4")
    description = "the digits in ascending order"
    example = ("1 0 2 0", "0 0 1 2")

    @override
    def output_length(self, length: int) -> int:
        return length

    @override
    def answer(self, tokens: np.ndarray) -> np.ndarray:
        # Counting sort: the digit at a place is how many of the digits 0–3 have all their copies before it.
        place = np.arange(tokens.shape[1])
        out = np.zeros(tokens.shape, dtype=np.uint8)
        for digit in range(4):
            out += place >= (tokens <= digit).sum(axis=1)[:, None]
        return out.astype(np.int64)
