"""Semantic focus for Transformers: sparse self-attention, studied for how fast and how well a model learns.

Importing this registers the SemFocus classes with Transformers' Auto classes and makes the names of `register_attention` known, so that
saved models load. It does nothing else.
"""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from hf_semfocus.analysis.initial_attention import choose_attention_gain
from hf_semfocus.integrations.register import apply_attention, register_attention
from hf_semfocus.integrations.saving import resolve_names
from hf_semfocus.model.mask_strategies import (
    MaskContext,
    MaskStrategy,
    list_mask_strategies,
    parameter,
    parse_mask,
    register_mask_strategy,
)
from hf_semfocus.model.modeling_semfocus import (
    SemFocusConfig,
    SemFocusForMaskedLM,
    SemFocusForSequenceClassification,
    SemFocusForTokenClassification,
    SemFocusModel,
)
from hf_semfocus.model.paper import paper_config

# `exist_ok`: the package may be reloaded, or imported after a checkpoint brought a copy of these classes.
AutoConfig.register(SemFocusConfig.model_type, SemFocusConfig, exist_ok=True)
AutoModel.register(SemFocusConfig, SemFocusModel, exist_ok=True)
AutoModelForMaskedLM.register(SemFocusConfig, SemFocusForMaskedLM, exist_ok=True)
AutoModelForSequenceClassification.register(SemFocusConfig, SemFocusForSequenceClassification, exist_ok=True)
AutoModelForTokenClassification.register(SemFocusConfig, SemFocusForTokenClassification, exist_ok=True)
resolve_names(register_attention)


def __getattr__(name: str) -> object:
    """What trains is imported when it is first asked for."""
    if name in ("Comparison", "Experiment", "compare"):
        from hf_semfocus import notebook

        return getattr(notebook, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names too that are not imported yet."""
    return sorted({*globals(), *__all__})


__all__ = [
    "Comparison",
    "Experiment",
    "MaskContext",
    "MaskStrategy",
    "SemFocusConfig",
    "SemFocusForMaskedLM",
    "SemFocusForSequenceClassification",
    "SemFocusForTokenClassification",
    "SemFocusModel",
    "apply_attention",
    "choose_attention_gain",
    "compare",
    "list_mask_strategies",
    "paper_config",
    "parameter",
    "parse_mask",
    "register_attention",
    "register_mask_strategy",
]
