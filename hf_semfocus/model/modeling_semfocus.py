"""SemFocus models under the names that checkpoints refer to.

Every ``auto_map`` entry points here, so that configuration and model come from one copy of the code, and the mask
strategies that came with a checkpoint are registered before its configuration is read.
"""

from .base_model import SemFocusModel, SemFocusPreTrainedModel
from .configuration_semfocus import SemFocusConfig
from .heads import SemFocusForSequenceClassification, SemFocusForTokenClassification
from .mask_extensions import __doc__ as _  # noqa: F401  # imported for what it registers
from .masked_lm import SemFocusForMaskedLM

__all__ = [
    "SemFocusConfig",
    "SemFocusForMaskedLM",
    "SemFocusForSequenceClassification",
    "SemFocusForTokenClassification",
    "SemFocusModel",
    "SemFocusPreTrainedModel",
]
