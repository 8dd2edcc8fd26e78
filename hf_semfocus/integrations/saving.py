"""The choice of a sparse attention survives saving and loading of any Transformers model.

Transformers reads ``attn_implementation`` from config.json, and refuses a name that nobody has registered; it never writes
it. A model that was saved would quietly be dense after it is loaded. Here configurations write it when it is ours.
"""

import functools
from collections.abc import Callable
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..model.attention_interface import IMPLEMENTATION

PREFIX = f"{IMPLEMENTATION}:"
CONFIG_KEY = "attn_implementation"
_MARK = "_writes_semfocus_attention"


def write_choices() -> None:
    """From now on, configurations write the name of a sparse attention into what they save. Doing it twice is once.

    ``PreTrainedConfig.to_dict`` is wrapped, because nothing else of ours is called between loading a model and saving it
    again: what a configuration writes is then what the model uses, whether it was set when the model was made, loaded, or
    later. Configurations without a sparse attention write what they always did.
    """
    original = PreTrainedConfig.to_dict
    if getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def to_dict(self: PreTrainedConfig) -> dict[str, Any]:
        output = original(self)
        chosen = chosen_attention(self)
        if chosen is not None:
            output[CONFIG_KEY] = chosen
        return output

    setattr(to_dict, _MARK, True)
    PreTrainedConfig.to_dict = to_dict  # type: ignore[method-assign]


def resolve_names(register: Callable[[str], str]) -> None:
    """From now on, a model that asks for one of our attentions by its name gets it. Doing it twice is once.

    A model that was saved with one loads after ``import hf_semfocus``, whoever registered what. Transformers looks a name up in
    ``PreTrainedModel.get_correct_attn_implementation``, and nothing of ours is called before; so it is wrapped, like ``to_dict`` above.

    Args:
        register: makes the attention of a mask known, :func:`register_attention`.
    """
    write_choices()
    original = PreTrainedModel.get_correct_attn_implementation
    if getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def get_correct_attn_implementation(
        self: PreTrainedModel, requested_attention: str | None, *args, **options
    ) -> str:
        if is_ours(requested_attention) and requested_attention not in ALL_ATTENTION_FUNCTIONS:
            register(str(requested_attention).removeprefix(PREFIX))
        return original(self, requested_attention, *args, **options)

    setattr(get_correct_attn_implementation, _MARK, True)
    PreTrainedModel.get_correct_attn_implementation = get_correct_attn_implementation  # type: ignore[method-assign]


def chosen_attention(config: PreTrainedConfig) -> str | dict[str, Any] | None:
    """What config.json has to say so that a model is loaded with the sparse attention that it has.

    Args:
        config: of any model.

    Returns:
        A name if the model and all its parts use it; names by part (``""``: the model itself) if only some do, in the form
        that ``attn_implementation=`` takes; None if none does.
    """
    of_model = config._attn_implementation if is_ours(config._attn_implementation) else None
    parts = {
        key: chosen_attention(part)
        for key in config.sub_configs
        if isinstance(part := getattr(config, key, None), PreTrainedConfig)
    }
    if all(part == of_model for part in parts.values()):
        return of_model
    return ({} if of_model is None else {"": of_model}) | {
        key: part for key, part in parts.items() if part is not None
    }


def is_ours(implementation: str | None) -> bool:
    """Whether an attention implementation is one of :func:`register_attention`."""
    return isinstance(implementation, str) and implementation.startswith(PREFIX)
