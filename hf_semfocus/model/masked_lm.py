"""The masked-language-model head on the SemFocus encoder: which token stood where a ``[MASK]`` stands."""

from typing import Any

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.modeling_outputs import MaskedLMOutput
from transformers.utils.generic import can_return_tuple

from .base_model import SemFocusModel, SemFocusPreTrainedModel
from .configuration_semfocus import SemFocusConfig


class SemFocusPredictionHead(nn.Module):
    """σ(X W + b), then a layer norm: BERT's transform before the decoder."""

    def __init__(self, config: SemFocusConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_BLd: torch.Tensor) -> torch.Tensor:
        """``(B, L, d)`` → ``(B, L, d)``."""
        return self.norm(self.activation(self.dense(hidden_BLd)))


class SemFocusForMaskedLM(SemFocusPreTrainedModel):
    """One token of the vocabulary per position: encoder, transform, decoder.

    The decoder's weight is the token embedding (``config.tie_word_embeddings``, True by default). Its row of the padding
    token, zero at first, is then trained as an output, as in BERT; padding is never attended to. Tied, the states are
    divided by √d before the decoder: token embeddings are drawn with ``embedding_std`` (1 by default), not with √(1/d).

    Source: Devlin et al. 2019, section 3.1 (task and head); Raffel et al. 2020 (the factor of a tied decoder).

    Example:
        >>> model = SemFocusForMaskedLM(SemFocusConfig(vocab_size=32))
        >>> model(torch.tensor([[4, 5, 3, 4]])).logits.shape
        torch.Size([1, 4, 32])
    """

    _tied_weights_keys = {"decoder.weight": "model.embeddings.tokens.weight"}  # noqa: RUF012  # Transformers' pattern

    def __init__(self, config: SemFocusConfig) -> None:
        super().__init__(config)
        self.model = SemFocusModel(config)
        self.head = SemFocusPredictionHead(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        """The decoder."""
        return self.decoder

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the decoder."""
        self.decoder = new_embeddings  # type: ignore[assignment]

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        """Predict the token of every position.

        Args:
            labels: int ``(B, L)``, token ids; −100 where nothing is to be predicted.

        The other arguments are those of :class:`SemFocusModel`.

        Returns:
            logits ``(B, L, vocab_size)``, and the mean loss over labelled positions where labels are given.
        """
        num_items = kwargs.pop("num_items_in_batch", None)
        kwargs["return_dict"] = True  # the head's own decorator makes the tuple, also where the config asks for one
        outputs = self.model(input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs)
        given = input_ids if inputs_embeds is None else inputs_embeds
        assert given is not None  # the encoder has refused it
        hidden_BLd = self.head(outputs.last_hidden_state[:, : given.shape[1]])
        if self.config.tie_word_embeddings:
            hidden_BLd = hidden_BLd * self.config.hidden_size**-0.5
        logits = self.decoder(hidden_BLd)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=logits.shape[-1], num_items_in_batch=num_items)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )
