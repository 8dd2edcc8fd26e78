"""The theory's quantities (DESIGN §2), one file each: pure functions on tensors, and what collects the tensors."""

from .aggregate import aggregate
from .analyze import analyze, with_mask
from .bounds import is_vacuous, loose_bound, sharp_bound
from .capture import LayerScores, capture_scores
from .conditions import at_percentiles, lambda_w, lambda_x
from .dispersion import dispersion
from .initial_attention import InitialAttention, choose_attention_gain, initial_attention
from .lipschitz import Lipschitz, lipschitz
from .loss_slice import LossSlice, loss_slice
from .mask_stability import MaskStability, mask_stability
from .norms import norms
from .paper_table import PAPER_TABLE, beside_paper
from .probe import gradient_norm, probe_dispersion, probe_quantities
from .quantities import QUANTITIES, improvement
from .queries_per_key import queries_per_key
from .reach import Reach, reach
from .separation import separation
from .stability import log_stability
from .trajectory import Snapshot, path, snapshot, trajectory

__all__ = [
    "PAPER_TABLE",
    "QUANTITIES",
    "InitialAttention",
    "LayerScores",
    "Lipschitz",
    "LossSlice",
    "MaskStability",
    "Reach",
    "Snapshot",
    "aggregate",
    "analyze",
    "at_percentiles",
    "beside_paper",
    "capture_scores",
    "choose_attention_gain",
    "dispersion",
    "gradient_norm",
    "improvement",
    "initial_attention",
    "is_vacuous",
    "lambda_w",
    "lambda_x",
    "lipschitz",
    "log_stability",
    "loose_bound",
    "loss_slice",
    "mask_stability",
    "norms",
    "path",
    "probe_dispersion",
    "probe_quantities",
    "queries_per_key",
    "reach",
    "separation",
    "sharp_bound",
    "snapshot",
    "trajectory",
    "with_mask",
]
