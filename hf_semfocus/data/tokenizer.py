"""Tokenizers of the tasks: whole symbols, single spaces, nothing lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .core.encoding import CLS, MASK, PAD, UNK, token_table
from .options import check_pooling
from .tasks import get_task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def build_tokenizer(name: str, pooling: str = "mean", answer: str | None = None) -> PreTrainedTokenizerFast:
    """The tokenizer of a task.

    Ids are ``[PAD]`` 0, ``[UNK]`` 1, ``[CLS]`` 2, ``[MASK]`` 3, then ``[Q]`` (sequence-output tasks only: an ordinary token that a user
    types once for each output position), then the task's symbols. Padding is on the right. No special token is added, but with
    ``pooling="cls"`` a ``[CLS]`` in front.

    Args:
        name: a task's name.
        pooling: ``"mean"``, ``"last"`` or ``"cls"``.
        answer: the kind of answer, see :func:`~.loading.load_task`; with one label a row there is no ``[Q]``.

    Returns:
        A ``PreTrainedTokenizerFast`` that gives ``input_ids`` and ``attention_mask`` and whose ``decode`` restores the text.

    Raises:
        ValueError: unknown task or pooling.

    Example:
        >>> build_tokenizer("parity_check")("1 0 1")["input_ids"]
        [5, 4, 5]
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    task = get_task(name, answer)
    check_pooling(pooling)
    vocabulary = {token: number for number, token in enumerate(token_table(task))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if pooling == "cls":
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{CLS} $A", pair=f"{CLS} $A $B", special_tokens=[(CLS, vocabulary[CLS])]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNK,
        cls_token=CLS,
        mask_token=MASK,
        padding_side="right",
        truncation_side="right",
        model_input_names=["input_ids", "attention_mask"],
        # Cleaning up would join the "." and "]" of our texts to the symbol before them.
        clean_up_tokenization_spaces=False,
    )
