"""parity_check: is the number of 1s odd?"""

import numpy as np
from typing_extensions import override

from ..core.uniform import UniformWords


class ParityCheck(UniformWords):
    """Parity check (Delétang et al., 2023, regular): whether the number of 1s is odd.

    Inputs are uniform words over 0 and 1.

    Example: ``1 0 1 0 1 0 0`` has three 1s, so the label is ``1``.
    """

    name = "parity_check"
    level = "regular"
    vocabulary = ("0", "1")
    labels = ("0", "1")
    description = "whether the number of 1s is odd (0 even, 1 odd)"
    example = ("1 0 1 0 1 0 0", "1")

    @override
    def answer(self, tokens: np.ndarray) -> np.ndarray:
        return np.bitwise_xor.reduce(tokens, axis=1).astype(np.int64)
