"""The SemFocus encoder as a Transformers model: initialisation, masks, outputs."""

from typing import Any

import torch
from torch import nn
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutput
from transformers.modeling_utils import PreTrainedModel
from transformers.utils.output_capturing import capture_outputs

from .attention_interface import IMPLEMENTATION, expand_attention_mask
from .configuration_semfocus import SemFocusConfig
from .layers import (
    GlobalTokens,
    LearnedPositions,
    ScoreLinear,
    SemFocusAttention,
    SemFocusEmbeddings,
    SemFocusEncoder,
    SemFocusLayer,
    SinusoidalPositions,
    position_std,
)
from .mask_state import MaskState
from .model_inputs import check_arguments, check_mask_numbers, check_tokens
from .qk_norm import QKNorm


class SemFocusPreTrainedModel(PreTrainedModel):
    """What all SemFocus models share. Attention implementations: ``"semfocus"`` (the default) and ``"eager"``."""

    config: SemFocusConfig
    config_class = SemFocusConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["SemFocusEmbeddings", "SemFocusLayer"]  # noqa: RUF012  # Transformers' own pattern
    _supports_attention_backend = True
    _can_record_outputs = {"hidden_states": SemFocusLayer, "attentions": SemFocusAttention}  # noqa: RUF012

    def __init__(self, config: SemFocusConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        config.check()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Draw the initial weights of one module (see `weight_gain` and its neighbours in the configuration)."""
        if isinstance(module, nn.Linear):
            bound = module.in_features**-0.5
            if module is getattr(self, "classifier", None) and self.config.classifier_bound is not None:
                init.uniform_(module.weight, -self.config.classifier_bound, self.config.classifier_bound)
                init.zeros_(module.bias)
                return
            gain = self.config.attention_gain if isinstance(module, ScoreLinear) else self.config.weight_gain
            init.uniform_(module.weight, -gain * bound, gain * bound)
            if module.bias is not None:
                init.uniform_(module.bias, -bound, bound)
        elif isinstance(module, LearnedPositions):
            init.normal_(module.weight, std=position_std(self.config))
        elif isinstance(module, GlobalTokens):
            # From a generator of their own, so that all other weights are those of the model without global tokens.
            generator = None
            if not module.weight.is_meta:
                generator = torch.Generator(module.weight.device).manual_seed(torch.initial_seed() ^ 0x676C6F62)
            self._init_token_embeddings(module, generator)
        elif isinstance(module, nn.Embedding):
            self._init_token_embeddings(module)
            # A slice has no "already loaded" mark of its own, hence the check.
            if module.padding_idx is not None and not getattr(module.weight, "_is_hf_initialized", False):
                init.zeros_(module.weight[module.padding_idx])
        elif isinstance(module, nn.LayerNorm) and module.elementwise_affine:
            init.ones_(module.weight)
            init.zeros_(module.bias)
        elif isinstance(module, QKNorm):
            for weight in module.parameters():
                init.constant_(weight, module.initial_weight)
        elif isinstance(module, SinusoidalPositions):
            init.copy_(module.table, module.compute_table())
        elif isinstance(module, MaskState):
            module.reset(init.copy_)

    def _init_token_embeddings(self, module: nn.Embedding, generator: torch.Generator | None = None) -> None:
        bound = self.config.embedding_bound
        if bound is None:
            init.normal_(module.weight, std=self.config.embedding_std, generator=generator)
        else:
            init.uniform_(module.weight, -bound, bound, generator=generator)

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        """The implementation to use; None means ours.

        Raises:
            ValueError: for any other than ``"semfocus"`` and ``"eager"``: it would compute dense attention and ignore
                the mask strategy.
        """
        if requested_attention not in (None, IMPLEMENTATION, "eager"):
            raise ValueError(
                f"attn_implementation={requested_attention!r} would ignore the mask strategies of "
                f"{type(self).__name__}; use {IMPLEMENTATION!r} (the default) or 'eager' (the reference)"
            )
        return requested_attention or IMPLEMENTATION

    def _check_and_adjust_attn_implementation(
        self, attn_implementation: str | None, is_init_check: bool = False, allow_all_kernels: bool = False
    ) -> str:
        # Transformers looks for kernels to download before it asks whether the model supports an implementation.
        return self.get_correct_attn_implementation(attn_implementation, is_init_check)


class SemFocusModel(SemFocusPreTrainedModel):
    """The encoder: embeddings and blocks, ``(B, L)`` token ids → ``(B, L, d)`` states.

    Example:
        >>> model = SemFocusModel(SemFocusConfig(mask="topk:3"))
        >>> model(torch.tensor([[1, 2, 3, 4]])).last_hidden_state.shape
        torch.Size([1, 4, 64])
    """

    def __init__(self, config: SemFocusConfig) -> None:
        super().__init__(config)
        self.embeddings = SemFocusEmbeddings(config)
        self.encoder = SemFocusEncoder(config)
        if any(isinstance(module, MaskState) for module in self.modules()):
            # Running means move by less than bf16 and fp16 can tell. Transformers wants no name that is not there.
            self._keep_in_fp32_modules_strict = {"mask_state"}
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The token embeddings."""
        return self.embeddings.tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the token embeddings."""
        self.embeddings.tokens = value  # type: ignore[assignment]

    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """Encode.

        Args:
            input_ids: int ``(B, L)``.
            attention_mask: None (no padding); ``(B, L)``, non-zero for real tokens; or ``(B or 1, H or 1, L, L)`` bool
                (True: may attend) or additive. See :func:`expand_attention_mask`.
            inputs_embeds: ``(B, L, d)`` instead of `input_ids`; they are scaled, and positions are added to them.
            output_attentions, output_hidden_states, return_dict: as in every Transformers model. Attention weights are
                ``(B, H, L, L)``, and asking for them does not change the states.
                Where the configuration asks for attended padding or global tokens, states and weights hold theirs behind
                the L tokens given.
            kwargs: as Transformers' own encoders do, this one passes over what it does not know, such as
                ``token_type_ids``.

        Raises:
            ValueError: unless exactly one of `input_ids` and `inputs_embeds` is given; if the text has no token, or
                more than ``max_position_embeddings``; if a shape does not fit; if a mask holds NaN or +inf; for
                ``position_ids`` and other arguments that would change another encoder's answer, and for misspelt ones.
        """
        check_arguments(kwargs)
        check_tokens(input_ids, inputs_embeds, self.config)
        check_mask_numbers(attention_mask)
        if inputs_embeds is None:
            inputs_embeds = self.embeddings.tokens(input_ids)
        if self.config.attend_padding and attention_mask is not None and attention_mask.dim() == 2:
            attention_mask = None
        attention_mask = expand_attention_mask(attention_mask, *inputs_embeds.shape[:2])
        inputs_embeds, attention_mask, positions = self.embeddings.extend(inputs_embeds, attention_mask)
        hidden_states = self.encoder(
            self.embeddings(inputs_embeds, positions),
            attention_mask=attention_mask,
            # The same expression decides in `capture_outputs` whether the weights are recorded.
            output_attentions=bool(kwargs.get("output_attentions", self.config.output_attentions)),
        )
        return BaseModelOutput(last_hidden_state=hidden_states)
