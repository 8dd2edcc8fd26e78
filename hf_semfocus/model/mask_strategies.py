"""All mask strategies under one name. Importing this registers those that come with the package."""

from .mask_base import MaskStrategy
from .mask_clusters import Cluster
from .mask_hashes import LSH
from .mask_inputs import MaskContext, first_valid_key
from .mask_parameters import parameter
from .mask_positions import Banded, Block, Full, Global, Random, Redraw, Sink, Strided
from .mask_registry import (
    MaskUnion,
    list_mask_strategies,
    mask_parts,
    mask_strategy_class,
    parse_mask,
    register_mask_strategy,
)
from .mask_scores import BotK, TopK, TopP
from .mask_state import MaskState
from .mask_structure import Structure

__all__ = [
    "LSH",
    "Banded",
    "Block",
    "BotK",
    "Cluster",
    "Full",
    "Global",
    "MaskContext",
    "MaskState",
    "MaskStrategy",
    "MaskUnion",
    "Random",
    "Redraw",
    "Sink",
    "Strided",
    "Structure",
    "TopK",
    "TopP",
    "first_valid_key",
    "list_mask_strategies",
    "mask_parts",
    "mask_strategy_class",
    "parameter",
    "parse_mask",
    "register_mask_strategy",
]
