"""even_pairs: is the number of unequal neighbours odd?"""

import numpy as np
from typing_extensions import override

from ..core.uniform import UniformWords


class EvenPairs(UniformWords):
    """Even pairs (Delétang et al., 2023, regular): the parity of the number of neighbours ``01`` and ``10``.

    Inputs are uniform words over 0 and 1. Label 0 means an even number of unequal neighbours, 1 an odd number.

    Example: ``0 0 1 1 1 0`` has the unequal neighbours 01 and 10, two of them, so the label is ``0``.
    """

    name = "even_pairs"
    level = "regular"
    vocabulary = ("0", "1")
    labels = ("0", "1")
    description = "whether the first and the last bit differ (1 yes, 0 no)"
    example = ("0 0 1 1 1 0", "0")

    @override
    def answer(self, tokens: np.ndarray) -> np.ndarray:
        # Every unequal pair flips the symbol, so the parity of their number is whether the ends differ.
        return (tokens[:, 0] != tokens[:, -1]).astype(np.int64)
