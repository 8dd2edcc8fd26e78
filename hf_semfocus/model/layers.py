"""The parts of a SemFocus encoder: embeddings, attention, MLP, block (DESIGN section 2).

Shapes: B batch, L length, d hidden size, H heads, T head dim (d / H for multihead, d for bilinear).
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from .attention_interface import (
    IMPLEMENTATION,
    eager_attention_forward,
    extend_attention_mask,
    last_position,
    positions_from_mask,
    semfocus_attention_forward,
    split_attention_mask,
)
from .attention_reference import compute_dtype, without_autocast
from .attention_sparse import choose_path
from .configuration_semfocus import SemFocusConfig
from .dropout import Dropout, relu_dropped
from .mask_base import MaskStrategy


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
        found = self.weight[None, :length] if positions_BL is None else super().forward(positions_BL)
        return found.to(dtype)


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


class SemFocusAttention(nn.Module):
    """Self-attention under a mask strategy, in the multihead or the bilinear form.

    Attributes:
        mask_strategy: the :class:`MaskStrategy` of this layer.
        mask_state: what the layer learns for its strategy; None for one that learns nothing.
        scale: factor on the scores.
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
        """Queries and keys ``(B, H, L, T)``. In the bilinear form these are X W and X itself."""
        if self.bilinear:
            return self._split(self.score_matrix(hidden_BLd)), hidden_BLd[:, None].expand(-1, self.heads, -1, -1)
        return self._split(self.query(hidden_BLd)), self._split(self.key(hidden_BLd))

    def _project(self, hidden_BLd: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values ``(B, H, L, T)``, in one product where these are three plain linear layers."""
        parts = () if self.bilinear else (self.query, self.key, self.value)
        if not parts or not all(map(_is_plain, parts)):
            return *self.query_key(hidden_BLd), self._split(self.value(hidden_BLd))
        weight = torch.cat([part.weight for part in parts])
        bias = None if self.query.bias is None else torch.cat([part.bias for part in parts])
        query, key, value = F.linear(hidden_BLd, weight, bias).chunk(3, dim=-1)
        return self._split(query), self._split(key), self._split(value)

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
        with without_autocast(query):
            precise = compute_dtype(query.dtype)
            return torch.matmul(query.to(precise), key.to(precise).transpose(-1, -2)) * self.scale

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
        self.masks = [config.mask_of_layer(index) for index in range(config.num_hidden_layers)]
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
        for layer, mask in zip(self.layers, self.masks, strict=True):
            hidden_states = layer(
                hidden_states,
                attention_mask=attention_mask,
                keep=shared.get(mask),
                # Here and not inside, where gradient checkpointing would read it a second time.
                mask_state=layer.attention.read_mask_state(),  # type: ignore[union-attr,operator]
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
        scores = hidden_BLd.new_zeros(()).expand(batch, 1, length, length)
        return {
            mask: mask.kept(scores, attention_mask)
            for mask in dict.fromkeys(self.masks)
            if mask.fixed and choose_path(mask, batch, self.config.num_attention_heads, length, length) == "masked"
        }
