"""The theory's quantities (DESIGN §2), one file each: pure functions on tensors, and what collects the tensors."""

from .aggregate import aggregate
from .analyze import analyze, with_mask
from .bounds import is_vacuous, loose_bound, sharp_bound
from .capture import LayerScores, capture_scores
from .dispersion import dispersion
from .initial_attention import InitialAttention, choose_attention_gain, initial_attention
from .lipschitz import Lipschitz, lipschitz
from .mask_stability import MaskStability, mask_stability
from .probe import gradient_norm, probe_dispersion, probe_quantities
from .quantities import QUANTITIES, improvement
from .queries_per_key import queries_per_key
from .reach import Reach, reach
from .separation import separation
from .stability import log_stability
from .trajectory import Place, path, place, trajectory

__all__ = [
    "QUANTITIES",
    "InitialAttention",
    "LayerScores",
    "Lipschitz",
    "MaskStability",
    "Place",
    "Reach",
    "aggregate",
    "analyze",
    "capture_scores",
    "choose_attention_gain",
    "dispersion",
    "gradient_norm",
    "improvement",
    "initial_attention",
    "is_vacuous",
    "lipschitz",
    "log_stability",
    "loose_bound",
    "mask_stability",
    "path",
    "place",
    "probe_dispersion",
    "probe_quantities",
    "queries_per_key",
    "reach",
    "separation",
    "sharp_bound",
    "trajectory",
    "with_mask",
]
