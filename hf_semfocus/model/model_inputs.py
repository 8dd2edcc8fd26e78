"""What a model is given, checked before it is used: shapes, lengths, masks that hold no number, arguments that would be ignored."""

import difflib
import math
from collections.abc import Mapping
from typing import Any

import torch

from .configuration_semfocus import SemFocusConfig

#: Arguments of other encoders that change their answer. Ours has nothing to do it with, so they are refused, not ignored.
REFUSED = {
    "position_ids": "positions are counted from the first valid token; move the text by padding and attention_mask",
    "head_mask": "it has no mask of heads",
    "past_key_values": "it is an encoder and keeps no cache",
    "encoder_hidden_states": "it has no cross-attention",
    "encoder_attention_mask": "it has no cross-attention",
    "cu_seq_lens_q": "it takes no packed texts; pad them, or give a four-dimensional attention_mask",
    "cu_seq_lens_k": "it takes no packed texts; pad them, or give a four-dimensional attention_mask",
}
KNOWN = (
    "input_ids",
    "attention_mask",
    "inputs_embeds",
    "labels",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
)


def check_arguments(given: Mapping[str, Any]) -> None:
    """Raise for keyword arguments of a forward call that would be ignored and were meant: known ones, and misspelt ones.

    Like Transformers' own encoders ours passes over other arguments, such as the ``token_type_ids`` of a tokenizer.

    Args:
        given: the keyword arguments that the model does not declare; None means not given.

    Raises:
        ValueError: with the argument, and why it is not allowed or which name is nearest.
    """
    for name, value in given.items():
        if name in KNOWN or value is None:
            continue
        if name in REFUSED:
            raise ValueError(f"the model does not support {name}: {REFUSED[name]}")
        nearest = difflib.get_close_matches(name, KNOWN, n=1, cutoff=0.85)
        if nearest:
            raise ValueError(f"the model has no argument {name!r}; did you mean {nearest[0]!r}?")


def check_tokens(input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None, config: SemFocusConfig) -> None:
    """Raise unless there is exactly one of the two, with a shape that fits.

    Args:
        input_ids: int ``(B, L)``.
        inputs_embeds: ``(B, L, hidden_size)``.
        config: of the model.
    """
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError("give exactly one of input_ids and inputs_embeds")
    if input_ids is not None:
        shape = input_ids.shape
        if len(shape) != 2:
            raise ValueError(f"input_ids must have shape (batch, length), got {tuple(shape)}")
        if input_ids.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"input_ids must be int64 or int32, got {input_ids.dtype}")
    else:
        assert inputs_embeds is not None
        shape = inputs_embeds.shape
        if len(shape) != 3 or shape[2] != config.hidden_size:
            width = config.hidden_size
            raise ValueError(f"inputs_embeds must have shape (batch, length, {width}), got {tuple(shape)}")
    if shape[1] == 0:
        raise ValueError("the input has 0 tokens; allowed: at least 1")
    needed, longest = config.padded_length(shape[1]), config.max_position_embeddings
    if needed > longest:
        more = "" if needed == shape[1] else f", {needed} with padding and global tokens"
        raise ValueError(f"the input has {shape[1]} tokens{more}, and max_position_embeddings={longest}")


def check_mask_numbers(attention_mask: torch.Tensor | None) -> None:
    """Raise for a floating-point mask with NaN or +∞, which would make NaN of the answer, or a missing token.

    It looks at the numbers, so it is left out where a model is compiled, exported or traced, or has no numbers.
    """
    if attention_mask is None or not attention_mask.dtype.is_floating_point or attention_mask.is_meta:
        return
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return
    if not bool((attention_mask < math.inf).all()):  # false for NaN too
        what = "NaN" if bool(attention_mask.isnan().any()) else "+inf"
        raise ValueError(f"attention_mask holds {what}; allowed: finite numbers, and -inf where a key is forbidden")
