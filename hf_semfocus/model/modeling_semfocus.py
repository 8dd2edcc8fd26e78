"""SemFocus models (DESIGN section 2): embeddings, attention, MLP, block, encoder, heads.

Every ``auto_map`` entry points here, so that configuration and model come from one copy of the code, and the mask
strategies that came with a checkpoint are registered before its configuration is read.

Shapes: B batch, L length, d hidden size, H heads, T head dim (d / H for multihead, d for bilinear).
"""

import difflib
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    MaskedLMOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.modeling_utils import PreTrainedModel
from transformers.utils.generic import ModelOutput, can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from .attention_call import AttentionCall
from .attention_interface import (
    IMPLEMENTATION,
    eager_attention_forward,
    expand_attention_mask,
    extend_attention_mask,
    last_position,
    positions_from_mask,
    semfocus_attention_forward,
    split_attention_mask,
)
from .attention_reference import scores_of
from .attention_sparse import choose_path
from .configuration_semfocus import SemFocusConfig
from .dropout import Dropout, relu_dropped
from .mask_base import MaskStrategy
from .mask_extensions import __doc__ as _extensions  # noqa: F401  # imported for what it registers
from .mask_inputs import compute_dtype
from .mask_state import MaskState

__all__ = [
    "SemFocusConfig",
    "SemFocusForMaskedLM",
    "SemFocusForSequenceClassification",
    "SemFocusForTokenClassification",
    "SemFocusModel",
    "SemFocusPreTrainedModel",
]


class ScoreLinear(nn.Linear):
    """A linear layer whose output makes attention scores; `attention_gain` scales its initial weights."""


class LearnedPositions(nn.Embedding):
    """A trained vector per position."""

    def __init__(self, config: SemFocusConfig) -> None:
        super().__init__(config.max_position_embeddings, config.hidden_size)

    def forward(  # type: ignore[override]
        self, positions_BL: torch.Tensor | None, length: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """``(B or 1, L, d)`` in `dtype`; positions None means 0, 1, …"""
        vectors = self.weight[None, :length] if positions_BL is None else super().forward(positions_BL)
        return vectors.to(dtype)


class GlobalTokens(nn.Embedding):
    """The learned vectors of ``num_global_tokens`` tokens that stand behind every text."""

    def __init__(self, config: SemFocusConfig) -> None:
        # With a weight of its own, Embedding draws none: all later weights stay those of the model without these tokens.
        weight = torch.empty(config.num_global_tokens, config.hidden_size)
        super().__init__(config.num_global_tokens, config.hidden_size, _weight=weight)


class SinusoidalPositions(nn.Module):
    """Fixed sines and cosines of geometric wavelengths, times ``position_std``.

    Source: Vaswani et al. 2017, section 3.5; even columns are sines, odd ones cosines.
    """

    table: torch.Tensor

    def __init__(self, config: SemFocusConfig) -> None:
        super().__init__()
        self.config = config
        # Not saved. Loading leaves such buffers uninitialised, so `_init_weights` fills it again.
        self.register_buffer("table", self.compute_table(), persistent=False)

    def compute_table(self, dtype: torch.dtype = torch.float32, device: torch.device | None = None) -> torch.Tensor:
        """``(max_position_embeddings, d)``."""
        d = self.config.hidden_size
        rates = torch.exp(torch.arange(0, d, 2, dtype=dtype, device=device) * (-math.log(10000.0) / d))
        angles = torch.arange(self.config.max_position_embeddings, dtype=dtype, device=device)[:, None] * rates
        table = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)[:, :d]
        return table * position_std(self.config)

    def forward(self, positions_BL: torch.Tensor | None, length: int, dtype: torch.dtype) -> torch.Tensor:
        """``(B or 1, L, d)`` in `dtype`; positions None means 0, 1, …"""
        # The table is in fp32, also in a model that was loaded in low precision: it is not a loaded weight. Cast to fp64 it
        # would keep its rounding.
        table = self.table if dtype != torch.float64 else self.compute_table(dtype, self.table.device)
        return (table[None, :length] if positions_BL is None else table[positions_BL]).to(dtype)


def position_std(config: SemFocusConfig) -> float:
    """Scale of the position embeddings."""
    return config.embedding_std if config.position_std is None else config.position_std


def layer_norm(config: SemFocusConfig, eps: float | None = None) -> nn.LayerNorm:
    """A layer norm of the residual stream; `eps` None: the model's."""
    eps = config.layer_norm_eps if eps is None else eps
    return nn.LayerNorm(config.hidden_size, eps=eps, elementwise_affine=config.norm_elementwise_affine)


class SemFocusEmbeddings(nn.Module):
    """Token plus position embeddings, with the padding and the global tokens that the configuration asks for."""

    def __init__(self, config: SemFocusConfig) -> None:
        super().__init__()
        self.config = config
        padding_idx = None if config.attend_padding else config.pad_token_id
        self.tokens = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=padding_idx)
        self.global_tokens = GlobalTokens(config) if config.num_global_tokens else None
        kinds = {"learned": LearnedPositions, "sinusoidal": SinusoidalPositions}
        kind = kinds.get(config.position_embedding_type)
        self.positions = None if kind is None else kind(config)
        self.dropout = Dropout(config.hidden_dropout)

    def extend(
        self, embedded_BLd: torch.Tensor, attention_mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Append attended padding and global tokens to token embeddings.

        Args:
            embedded_BLd: token embeddings.
            attention_mask: None, or four dimensions as :func:`expand_attention_mask` gives them.

        Returns:
            Embeddings and mask of the longer input, and its positions from the first valid token: int64 ``(B, L')``,
            negative in padding before it, or None for 0, 1, …
        """
        config = self.config
        batch, length = embedded_BLd.shape[:2]
        padding = config.padded_length(length) - config.num_global_tokens - length
        pieces = [embedded_BLd]
        if padding:
            assert config.pad_token_id is not None  # `check` has seen to it
            ids = torch.full((batch, padding), config.pad_token_id, device=embedded_BLd.device)
            pieces.append(self.tokens(ids).to(embedded_BLd.dtype))
        if self.global_tokens is not None:
            pieces.append(self.global_tokens.weight.to(embedded_BLd.dtype).expand(batch, -1, -1))
        positions = None if attention_mask is None else positions_from_mask(attention_mask).expand(batch, length)
        if len(pieces) == 1:
            return embedded_BLd, attention_mask, positions
        if attention_mask is not None:
            assert positions is not None
            more = torch.arange(1, padding + config.num_global_tokens + 1, device=embedded_BLd.device)
            positions = torch.cat([positions, last_position(attention_mask, positions) + more], dim=1)
            attention_mask = extend_attention_mask(attention_mask, len(more))
        return torch.cat(pieces, dim=1), attention_mask, positions

    def forward(self, embedded_BLd: torch.Tensor, positions_BL: torch.Tensor | None) -> torch.Tensor:
        """Scale token embeddings and add positions.

        Args:
            embedded_BLd: token embeddings.
            positions_BL: positions from the first valid token, negative in padding before it; None: 0, 1, …
        """
        if self.config.embedding_scale != 1:
            embedded_BLd = embedded_BLd * self.config.embedding_scale
        if self.positions is not None:
            if positions_BL is not None:
                positions_BL = positions_BL.clamp(min=0)
            embedded_BLd = embedded_BLd + self.positions(positions_BL, embedded_BLd.shape[1], embedded_BLd.dtype)
        return self.dropout(embedded_BLd)


class QKNorm(nn.Module):
    """Divides each query and key by its root mean square over the head dim.

    Scores ``q k / √T`` then lie within ±``initial_scale`` · √T at the start, whatever the weights before it.

    Args:
        head_dim: T.
        initial_scale: factor on the normalised scores at the start.
        learnable: whether factors of each of the T dimensions, shared by the heads, are trained; otherwise `initial_scale`
            stays.
        eps: added to the mean square.

    Example:
        >>> query, key = QKNorm(2)(torch.tensor([[3.0, 4.0]]), torch.tensor([[-30.0, -40.0]]))
        >>> round(query.square().mean().item(), 3), round((query @ key.T).item(), 3)   # opposite, each of length √2
        (1.0, -2.0)
    """

    def __init__(self, head_dim: int, initial_scale: float = 1.0, learnable: bool = True, eps: float = 1e-6) -> None:
        super().__init__()
        if initial_scale <= 0:
            raise ValueError(f"initial_scale is {initial_scale}; allowed: a number > 0")
        self.initial_scale, self.eps = initial_scale, eps
        weight = torch.full((head_dim,), self.initial_weight)
        self.query_weight = nn.Parameter(weight) if learnable else None
        self.key_weight = nn.Parameter(weight.clone()) if learnable else None

    @property
    def initial_weight(self) -> float:
        """What both weights are filled with: √initial_scale."""
        return self.initial_scale**0.5

    def forward(self, query: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries ``(..., Q, T)`` and keys ``(..., K, T)``, normalised in fp32 at least, each in its own dtype."""
        return self._normalised(query, self.query_weight), self._normalised(key, self.key_weight)

    def _normalised(self, vectors: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        precise = vectors.to(compute_dtype(vectors.dtype))
        normal = precise * torch.rsqrt(precise.square().mean(-1, keepdim=True) + self.eps)
        return (normal * (self.initial_weight if weight is None else weight.to(precise.dtype))).to(vectors.dtype)


class SemFocusAttention(nn.Module):
    """Self-attention under a mask strategy, in the multihead or the bilinear form.

    Attributes:
        mask_strategy: the :class:`MaskStrategy` of this layer.
        mask_state: what the layer learns for its strategy; None for one that learns nothing.
        scale: factor on the scores.
        qk_norm: the norm of queries and keys; None where there is none.
    """

    is_causal = False

    def __init__(self, config: SemFocusConfig, layer_index: int) -> None:
        super().__init__()
        self.config = config
        self.mask_strategy = config.mask_of_layer(layer_index)
        self.heads, d = config.num_attention_heads, config.hidden_size
        self.bilinear = config.attention_form == "bilinear"
        self.head_dim = d if self.bilinear else d // self.heads
        self.mask_state = self.mask_strategy.make_state(self.head_dim, self.heads)
        self.attention_dropout = config.attention_dropout
        if config.attention_scale is not None:
            self.scale = float(config.attention_scale)
        else:
            self.scale = 1.0 if self.bilinear else self.head_dim**-0.5
        self.qk_norm = QKNorm(self.head_dim, float(config.qk_norm_scale)) if config.qk_norm else None
        if self.bilinear:
            # Row h·d + j is column j of the paper's W for head h, so score_matrix(x) = x W; `value` likewise. (PEFT takes
            # a module whose name ends in "score" for a classifier: it would train it whole beside any adapter.)
            self.score_matrix = ScoreLinear(d, self.heads * d, bias=False)
            self.value = nn.Linear(d, self.heads * d, bias=False)
        else:
            bias = config.attention_bias is not False
            self.query = ScoreLinear(d, d, bias=bias)
            self.key = ScoreLinear(d, d, bias=bias)
            self.value = nn.Linear(d, d, bias=bias)
            self.output = nn.Linear(d, d, bias=bias)

    def _split(self, tensor_BLx: torch.Tensor) -> torch.Tensor:
        """``(B, L, H·T)`` → ``(B, H, L, T)``."""
        return tensor_BLx.unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)

    def query_key(self, hidden_BLd: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries and keys ``(B, H, L, T)``, after QK-norm where there is one. In the bilinear form these are X W and X itself."""
        if self.bilinear:
            query, key = self._split(self.score_matrix(hidden_BLd)), hidden_BLd[:, None].expand(-1, self.heads, -1, -1)
        else:
            query, key = self._split(self.query(hidden_BLd)), self._split(self.key(hidden_BLd))
        return self._normed(query, key)

    def _normed(self, query: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (query, key) if self.qk_norm is None else self.qk_norm(query, key)

    def _project(self, hidden_BLd: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values ``(B, H, L, T)``, in one product where these are three plain linear layers."""
        parts = () if self.bilinear else (self.query, self.key, self.value)
        if not parts or not all(map(_is_plain, parts)):
            return *self.query_key(hidden_BLd), self._split(self.value(hidden_BLd))
        weight = torch.cat([part.weight for part in parts])
        bias = None if self.query.bias is None else torch.cat([part.bias for part in parts])
        query, key, value = F.linear(hidden_BLd, weight, bias).chunk(3, dim=-1)
        return *self._normed(self._split(query), self._split(key)), self._split(value)

    def read_mask_state(self) -> Any:
        """What the layer's strategy works with in this forward pass; see :meth:`MaskState.read`."""
        return None if self.mask_state is None else self.mask_state.read()

    def scores(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The scaled scores D, before masks and biases.

        Args:
            hidden_states: ``(B, L, d)``, what this layer's forward is given.

        Returns:
            ``(B, H, L, L)`` in fp32 (fp64 for fp64 inputs); rows are queries.
        """
        query, key = self.query_key(hidden_states)
        return scores_of(AttentionCall.checked(query, key, key, self.mask_strategy, scale=self.scale))

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        keep: torch.Tensor | None = None,
        mask_state: Any = None,
        output_attentions: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend.

        Args:
            hidden_states: ``(B, L, d)``.
            attention_mask: None, bool or additive, broadcastable to ``(B, H, L, L)``.
            keep: what the mask keeps, where the encoder knows it already; bool, broadcastable to ``(B, H, L, L)``.
            mask_state: what :meth:`read_mask_state` gave to this pass; None: it is read. A caller that may compute a pass
                twice reads it once.
            output_attentions: also return the weights ``(B, H, L, L)``.
        """
        if mask_state is None:
            mask_state = self.read_mask_state()
        query, key, value = self._project(hidden_states)
        # Not looked up in the registry of Transformers: another copy of this code (a checkpoint's) may own the name.
        eager = self.config._attn_implementation == "eager"
        attend = eager_attention_forward if eager else semfocus_attention_forward
        attended_BLHT, weights = attend(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=self.attention_dropout if self.training else 0.0,
            scaling=self.scale,
            keep=keep,
            mask_state=mask_state,
            normalizer=self.config.normalizer,
            output_attentions=output_attentions,
        )
        if self.mask_state is not None and self.training:
            self._learn(mask_state, query, key, attention_mask)
        if self.bilinear:
            return attended_BLHT.sum(dim=2), weights
        return self.output(attended_BLHT.flatten(2)), weights

    @torch.no_grad()
    def _learn(
        self, mask_state: Any, query: torch.Tensor, key: torch.Tensor, attention_mask: torch.Tensor | None
    ) -> None:
        """Let the state take in this pass. A position that no query may see is padding."""
        assert self.mask_state is not None
        valid, _ = split_attention_mask(attention_mask)
        real_BL = None if valid is None else valid.flatten(1, 2).any(dim=1)
        self.mask_state.learn(mask_state, query, key, real_BL)


def _is_plain(layer: nn.Module) -> bool:
    """Whether calling a linear layer is its product and nothing else: no adapter, hook or quantised weight."""
    return (
        type(layer) in (nn.Linear, ScoreLinear)
        and type(layer.weight) is nn.Parameter
        and not (
            layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
        )
        and "forward" not in layer.__dict__  # accelerate puts its own there
    )


class SemFocusMLP(nn.Module):
    """σ(X P) R."""

    def __init__(self, config: SemFocusConfig) -> None:
        super().__init__()
        bias = config.attention_form == "multihead" if config.mlp_bias is None else config.mlp_bias
        self.expand = nn.Linear(config.hidden_size, config.intermediate_size, bias=bias)
        self.dropout = Dropout(config.mlp_dropout)
        self.activation = ACT2FN[config.hidden_act]
        self.contract = nn.Linear(config.intermediate_size, config.hidden_size, bias=bias)

    def forward(self, hidden_BLd: torch.Tensor) -> torch.Tensor:
        """``(B, L, d)`` → ``(B, L, d)``."""
        expanded = self.expand(hidden_BLd)
        if self.training and self.dropout.p and type(self.activation) is nn.ReLU:
            return self.contract(relu_dropped(expanded, self.dropout.p))
        return self.contract(self.activation(self.dropout(expanded)))


class SemFocusLayer(GradientCheckpointingLayer):
    """One block. Post-norm (the paper): X̃ = LN(X + attention(X)), LN(X̃ + MLP(X̃)); pre-norm: the norms come first."""

    def __init__(self, config: SemFocusConfig, layer_index: int) -> None:
        super().__init__()
        self.post_norm = config.norm_position == "post"
        self.attention = SemFocusAttention(config, layer_index)
        self.attention_norm = layer_norm(config, config.first_norm_eps if layer_index == 0 else None)
        self.mlp = SemFocusMLP(config)
        self.mlp_norm = layer_norm(config)
        self.dropout = Dropout(config.hidden_dropout)

    def forward(self, hidden_states: torch.Tensor, **attention_arguments: Any) -> torch.Tensor:
        """``(B, L, d)`` → ``(B, L, d)``; the other arguments are those of :class:`SemFocusAttention`."""
        if self.post_norm:
            attended, _ = self.attention(hidden_states, **attention_arguments)
            hidden_states = self.attention_norm(self.dropout.add(hidden_states, attended))
            return self.mlp_norm(self.dropout.add(hidden_states, self.mlp(hidden_states)))
        attended, _ = self.attention(self.attention_norm(hidden_states), **attention_arguments)
        hidden_states = self.dropout.add(hidden_states, attended)
        return self.dropout.add(hidden_states, self.mlp(self.mlp_norm(hidden_states)))


class SemFocusEncoder(nn.Module):
    """The stack of blocks, and the last norm where there is one."""

    def __init__(self, config: SemFocusConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(SemFocusLayer(config, index) for index in range(config.num_hidden_layers))
        wanted = config.norm_position == "pre" if config.final_norm is None else config.final_norm
        self.final_norm = layer_norm(config) if wanted else nn.Identity()

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        output_attentions: bool = False,
    ) -> torch.Tensor:
        """``(B, L, d)`` → ``(B, L, d)``; arguments as in :class:`SemFocusAttention`."""
        shared = {}
        if self.config._attn_implementation == IMPLEMENTATION:
            shared = self._shared_keeps(hidden_states, attention_mask)
        for layer in self.layers:
            attention: Any = layer.attention
            hidden_states = layer(
                hidden_states,
                attention_mask=attention_mask,
                keep=shared.get(attention.mask_strategy),
                # Here and not inside, where gradient checkpointing would read it a second time.
                mask_state=attention.read_mask_state(),
                output_attentions=output_attentions,
            )
        return self.final_norm(hidden_states)

    def _shared_keeps(
        self, hidden_BLd: torch.Tensor, attention_mask: torch.Tensor | None
    ) -> dict[MaskStrategy, torch.Tensor]:
        """What each mask that is fixed by positions keeps: the same in all layers, so it is computed once."""
        if attention_mask is not None and attention_mask.dtype != torch.bool:
            return {}
        batch, length = hidden_BLd.shape[:2]
        # Only its shape and device are looked at.
        shapes = batch, self.config.num_attention_heads, length, length
        scores = hidden_BLd.new_zeros(()).expand(shapes)
        masks: list[Any] = [layer.attention.mask_strategy for layer in self.layers]  # type: ignore[union-attr]
        return {
            mask: mask.kept(scores, attention_mask)
            for mask in dict.fromkeys(masks)
            if mask.fixed and choose_path(mask, *shapes, normalizer=self.config.normalizer) == "masked"
        }


#: Arguments of other encoders that change their answer. Ours has nothing to do it with, so they are refused, not ignored.
REFUSED = {
    "position_ids": "positions are counted from the first valid token; move the text by padding and attention_mask",
    "head_mask": "it has no mask of heads",
    **dict.fromkeys(("cache", "past_key_values"), "it is an encoder and keeps no cache"),
    **dict.fromkeys(("encoder_hidden_states", "encoder_attention_mask"), "it has no cross-attention"),
    **dict.fromkeys(
        ("cu_seq_lens_q", "cu_seq_lens_k"),
        "it takes no packed texts; pad them, or give a four-dimensional attention_mask",
    ),
}
KNOWN = (
    "input_ids", "attention_mask", "inputs_embeds", "labels", "output_attentions", "output_hidden_states", "return_dict",
)  # fmt: skip


def check_arguments(given: dict[str, Any]) -> None:
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

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        # Transformers reads it off the source: an attention class beside its own lookup in the registry.
        return True

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

    def seen_mask(self, attention_mask: torch.Tensor | None) -> torch.Tensor | None:
        """The mask that counts: where padding is attended to, a two-dimensional one does not."""
        padding = self.config.attend_padding and attention_mask is not None and attention_mask.dim() == 2
        return None if padding else attention_mask

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
        attention_mask = expand_attention_mask(self.seen_mask(attention_mask), *inputs_embeds.shape[:2])
        inputs_embeds, attention_mask, positions = self.embeddings.extend(inputs_embeds, attention_mask)
        hidden_states = self.encoder(
            self.embeddings(inputs_embeds, positions),
            attention_mask=attention_mask,
            # The same expression decides in `capture_outputs` whether the weights are recorded.
            output_attentions=bool(kwargs.get("output_attentions", self.config.output_attentions)),
        )
        return BaseModelOutput(last_hidden_state=hidden_states)


def valid_tokens(attention_mask: torch.Tensor | None, batch: int, length: int) -> torch.Tensor | None:
    """Which tokens any query may see.

    Args:
        attention_mask: any form that :func:`expand_attention_mask` takes.

    Returns:
        bool ``(B, L)``, or None when there is no mask: all tokens.
    """
    valid, _ = split_attention_mask(expand_attention_mask(attention_mask, batch, length))
    if valid is None:
        return None
    return valid.flatten(1, 2).any(dim=1).expand(batch, length)


def pool(hidden_BLd: torch.Tensor, valid_BL: torch.Tensor | None, how: str, length: int | None = None) -> torch.Tensor:
    """One vector per text.

    Args:
        hidden_BLd: token states, ``(B, L + n, d)``.
        valid_BL: bool, of the L tokens that were given; None: all are valid.
        how: ``"mean"`` over valid tokens (0 if there is none) and over what the model appended, ``"cls"`` the first
            valid token, ``"last"`` the last one.
        length: L; None: all states are of given tokens.

    Returns:
        ``(B, d)``.

    Example:
        >>> states = torch.tensor([[[1.0], [3.0], [9.0]]])
        >>> pool(states, torch.tensor([[True, True, False]]), "mean").item()
        2.0
    """
    if length is not None and length < hidden_BLd.shape[1]:
        if how != "mean":
            hidden_BLd = hidden_BLd[:, :length]
        elif valid_BL is not None:
            valid_BL = torch.nn.functional.pad(valid_BL, (0, hidden_BLd.shape[1] - length), value=True)
    if valid_BL is None:
        if how == "mean":
            return hidden_BLd.mean(dim=1)
        return hidden_BLd[:, 0 if how == "cls" else -1]
    if how == "mean":
        count = valid_BL.sum(dim=1, keepdim=True).clamp(min=1)
        return hidden_BLd.masked_fill(~valid_BL[..., None], 0).sum(dim=1) / count
    marks = valid_BL.to(torch.uint8)
    index = marks.argmax(dim=1) if how == "cls" else marks.shape[1] - 1 - marks.flip(1).argmax(dim=1)
    return hidden_BLd.gather(1, index[:, None, None].expand(-1, 1, hidden_BLd.shape[-1])).squeeze(1)


class _SemFocusHead(SemFocusPreTrainedModel):
    """An encoder, and what makes logits of its states, and a loss of logits and labels."""

    output_type: type[ModelOutput]

    def _logits(self, hidden_BLd: torch.Tensor, attention_mask: torch.Tensor | None, length: int) -> torch.Tensor:
        raise NotImplementedError

    def _loss(self, logits: torch.Tensor, labels: torch.Tensor, num_items: Any) -> torch.Tensor:
        return self.loss_function(logits=logits, labels=labels, config=self.config, num_items_in_batch=num_items)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> ModelOutput:
        """Predict.

        Args:
            labels: what the class says; None: no loss.

        The other arguments are those of :class:`SemFocusModel`.

        Returns:
            The logits that the class says, and the mean loss over what is labelled where labels are given.
        """
        num_items = kwargs.pop("num_items_in_batch", None)
        kwargs["return_dict"] = True  # this decorator makes the tuple, also where the config asks for one
        outputs = self.model(input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs)
        given = input_ids if inputs_embeds is None else inputs_embeds
        assert given is not None  # the encoder has refused it
        logits = self._logits(outputs.last_hidden_state, attention_mask, given.shape[1])
        loss = None if labels is None else self._loss(logits, labels, num_items)
        return self.output_type(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class _SemFocusClassifier(_SemFocusHead):
    """Encoder, dropout and linear classifier."""

    def __init__(self, config: SemFocusConfig) -> None:
        super().__init__(config)
        self.num_labels: int = config.num_labels  # type: ignore[assignment]  # None only before __post_init__
        self.model = SemFocusModel(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, self.num_labels)
        self.post_init()


class SemFocusForSequenceClassification(_SemFocusClassifier):
    """One label (or value, or set of labels) per text: encoder, pooling, dropout, linear classifier.

    Logits are ``(B, num_labels)``. Labels are int ``(B,)`` (one label), float ``(B,)`` or ``(B, num_labels)`` (regression), or float
    ``(B, num_labels)`` of 0 and 1 (several labels); ``config.problem_type`` decides, or is derived from the number of labels and
    their dtype as in every Transformers model.

    Example:
        >>> model = SemFocusForSequenceClassification(SemFocusConfig(num_labels=3))
        >>> model(torch.tensor([[1, 2, 3, 4]])).logits.shape
        torch.Size([1, 3])
    """

    output_type = SequenceClassifierOutput

    def _logits(self, hidden_BLd: torch.Tensor, attention_mask: torch.Tensor | None, length: int) -> torch.Tensor:
        valid_BL = valid_tokens(self.model.seen_mask(attention_mask), hidden_BLd.shape[0], length)
        return self.classifier(self.dropout(pool(hidden_BLd, valid_BL, self.config.pooling, length)))

    def _loss(self, logits: torch.Tensor, labels: torch.Tensor, num_items: Any) -> torch.Tensor:
        loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        # Trainer adds up the losses of accumulated batches, each a share of all their labels.
        if num_items is not None and self.config.problem_type == "single_label_classification":
            # Labels of −100 are not among those that Trainer counts; a batch without any other adds 0.
            return F.cross_entropy(logits, labels.view(-1), reduction="sum") / num_items
        return loss if num_items is None else loss * (labels.numel() / num_items)


class SemFocusForTokenClassification(_SemFocusClassifier):
    """One label per token: encoder, dropout, linear classifier.

    Logits are ``(B, L, num_labels)``. Labels are int ``(B, L)``; −100 where nothing is to be predicted.

    Example:
        >>> model = SemFocusForTokenClassification(SemFocusConfig(num_labels=3))
        >>> model(torch.tensor([[1, 2, 3, 4]])).logits.shape
        torch.Size([1, 4, 3])
    """

    output_type = TokenClassifierOutput

    def _logits(self, hidden_BLd: torch.Tensor, attention_mask: torch.Tensor | None, length: int) -> torch.Tensor:
        return self.classifier(self.dropout(hidden_BLd[:, :length]))


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


class SemFocusForMaskedLM(_SemFocusHead):
    """One token of the vocabulary per position: encoder, transform, decoder.

    Logits are ``(B, L, vocab_size)``. Labels are int ``(B, L)``, token ids; −100 where nothing is to be predicted.

    The decoder's weight is the token embedding (``config.tie_word_embeddings``, True by default). Its row of the padding
    token, zero at first, is then trained as an output, as in BERT; padding is never attended to. Tied, the states are
    divided by √d before the decoder: token embeddings are drawn with ``embedding_std`` (1 by default), not with √(1/d).

    Source: Devlin et al. 2019, section 3.1 (task and head); Raffel et al. 2020 (the factor of a tied decoder).

    Example:
        >>> model = SemFocusForMaskedLM(SemFocusConfig(vocab_size=32))
        >>> model(torch.tensor([[4, 5, 3, 4]])).logits.shape
        torch.Size([1, 4, 32])
    """

    output_type = MaskedLMOutput
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

    def _logits(self, hidden_BLd: torch.Tensor, attention_mask: torch.Tensor | None, length: int) -> torch.Tensor:
        hidden_BLd = self.head(hidden_BLd[:, :length])
        return self.decoder(
            hidden_BLd * self.config.hidden_size**-0.5 if self.config.tie_word_embeddings else hidden_BLd
        )

    def _loss(self, logits: torch.Tensor, labels: torch.Tensor, num_items: Any) -> torch.Tensor:
        return self.loss_function(logits, labels, vocab_size=logits.shape[-1], num_items_in_batch=num_items)
