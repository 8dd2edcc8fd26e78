"""Heads on the SemFocus encoder: sequence and token classification."""

from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import SequenceClassifierOutput, TokenClassifierOutput
from transformers.utils.generic import can_return_tuple

from .base_model import SemFocusModel, SemFocusPreTrainedModel
from .configuration_semfocus import SemFocusConfig
from .pooling import pool, valid_tokens


class SemFocusForSequenceClassification(SemFocusPreTrainedModel):
    """One label (or value, or set of labels) per text: encoder, pooling, dropout, linear classifier.

    Example:
        >>> model = SemFocusForSequenceClassification(SemFocusConfig(num_labels=3))
        >>> model(torch.tensor([[1, 2, 3, 4]])).logits.shape
        torch.Size([1, 3])
    """

    def __init__(self, config: SemFocusConfig) -> None:
        super().__init__(config)
        self.num_labels: int = config.num_labels  # type: ignore[assignment]  # None only before __post_init__
        self.model = SemFocusModel(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, self.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Classify.

        Args:
            labels: int ``(B,)`` (one label), float ``(B,)`` or ``(B, num_labels)`` (regression), or float
                ``(B, num_labels)`` of 0 and 1 (several labels); ``config.problem_type`` decides, or is derived from
                the number of labels and their dtype as in every Transformers model.

        The other arguments are those of :class:`SemFocusModel`.

        Returns:
            logits ``(B, num_labels)``, and the mean loss where labels are given.
        """
        num_items = kwargs.pop("num_items_in_batch", None)
        kwargs["return_dict"] = True  # the head's own decorator makes the tuple, also where the config asks for one
        outputs = self.model(input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs)
        hidden_BLd = outputs.last_hidden_state
        given = input_ids if inputs_embeds is None else inputs_embeds
        assert given is not None  # the encoder has refused it
        if self.config.attend_padding and attention_mask is not None and attention_mask.dim() == 2:
            attention_mask = None
        valid_BL = valid_tokens(attention_mask, *given.shape[:2])
        logits = self.classifier(self.dropout(pool(hidden_BLd, valid_BL, self.config.pooling, given.shape[1])))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
            if num_items is not None:
                # Trainer adds up the losses of accumulated batches, each a share of all their labels.
                loss = loss * (labels.numel() / num_items)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class SemFocusForTokenClassification(SemFocusPreTrainedModel):
    """One label per token: encoder, dropout, linear classifier.

    Example:
        >>> model = SemFocusForTokenClassification(SemFocusConfig(num_labels=3))
        >>> model(torch.tensor([[1, 2, 3, 4]])).logits.shape
        torch.Size([1, 4, 3])
    """

    def __init__(self, config: SemFocusConfig) -> None:
        super().__init__(config)
        self.num_labels: int = config.num_labels  # type: ignore[assignment]  # None only before __post_init__
        self.model = SemFocusModel(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, self.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> TokenClassifierOutput:
        """Classify every token.

        Args:
            labels: int ``(B, L)``; −100 where nothing is to be predicted.

        The other arguments are those of :class:`SemFocusModel`.

        Returns:
            logits ``(B, L, num_labels)``, and the mean loss over labelled tokens where labels are given.
        """
        num_items = kwargs.pop("num_items_in_batch", None)
        kwargs["return_dict"] = True  # the head's own decorator makes the tuple, also where the config asks for one
        outputs = self.model(input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs)
        given = input_ids if inputs_embeds is None else inputs_embeds
        assert given is not None  # the encoder has refused it
        logits = self.classifier(self.dropout(outputs.last_hidden_state[:, : given.shape[1]]))
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, config=self.config, num_items_in_batch=num_items)
        return TokenClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )
