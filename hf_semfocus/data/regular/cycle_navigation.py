"""cycle_navigation: where does a walk on a cycle of five end?"""

import numpy as np
from typing_extensions import override

from ..core.uniform import UniformWords

_STEPS = np.array([0, 1, -1], dtype=np.int8)


class CycleNavigation(UniformWords):
    """Cycle navigation (Delétang et al., 2023, regular): the final position on a cycle of 5, from position 0.

    Inputs are uniform words over STAY, +1 and -1.

    Example: ``+1 -1 STAY -1 -1`` moves by −2 in all, and −2 mod 5 is the label ``3``.
    """

    name = "cycle_navigation"
    level = "regular"
    vocabulary = ("STAY", "+1", "-1")
    labels = ("0", "1", "2", "3", "4")
    description = "the final position of a walk on a cycle of 5 that starts at 0"
    example = ("+1 -1 STAY -1 -1", "3")

    @override
    def answer(self, tokens: np.ndarray) -> np.ndarray:
        return _STEPS[tokens].sum(axis=1, dtype=np.int64) % 5
