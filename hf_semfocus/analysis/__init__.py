"""The theory's quantities (DESIGN §2), one file each: pure functions on tensors, and what collects the tensors."""

from .aggregate import aggregate
from .capture import LayerScores, capture_scores, probe_dispersion
from .dispersion import dispersion
from .probe import gradient_norm, probe_quantities
from .reach import Reach, reach
from .separation import separation
from .stability import improvement, log_stability

__all__ = [
    "LayerScores",
    "Reach",
    "aggregate",
    "capture_scores",
    "dispersion",
    "gradient_norm",
    "improvement",
    "log_stability",
    "probe_dispersion",
    "probe_quantities",
    "reach",
    "separation",
]
