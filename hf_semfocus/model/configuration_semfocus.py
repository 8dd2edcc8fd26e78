"""Configuration of SemFocus models: names and numbers only, checked when they are set."""

import difflib
import math
import os
import re
from pathlib import Path
from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers.activations import ACT2FN
from transformers.configuration_utils import PreTrainedConfig

from .mask_strategies import MaskStrategy, parse_mask
from .shipping import complete_auto_map, ship_code

#: Inclusive bounds of the numeric fields.
BOUNDS: dict[str, tuple[float | None, float | None]] = {
    "vocab_size": (1, None),
    "hidden_size": (1, None),
    "intermediate_size": (1, None),
    "num_hidden_layers": (1, None),
    "num_attention_heads": (1, None),
    "max_position_embeddings": (1, None),
    "pad_token_id": (0, None),
    "layer_norm_eps": (0, None),
    "embedding_std": (0, None),
    "position_std": (0, None),
    "attention_gain": (0, None),
    "weight_gain": (0, None),
    "hidden_dropout": (0, 1),
    "attention_dropout": (0, 1),
    "classifier_dropout": (0, 1),
}


@strict
class SemFocusConfig(PreTrainedConfig):
    r"""Configuration of a SemFocus encoder. Every field is optional.

    Args:
        vocab_size: number of token ids.
        hidden_size: width d of the residual stream.
        intermediate_size: width of the MLP (d_mlp of the paper).
        num_hidden_layers: number of blocks.
        num_attention_heads: heads; in the multihead form they divide `hidden_size`.
        hidden_act: activation σ of the MLP, a name in Transformers' registry (``relu``, ``gelu``, ``mish``, …).
        mask: mask specification of every layer, such as ``"topk:5"`` or ``"banded:5+global:1"``.
        layer_masks: one specification per layer; None: `mask` in all layers.
        attention_form: ``"multihead"`` (query, key, value and output projections) or ``"bilinear"`` (the paper's
            form: one d × d score matrix and one d × d value matrix per head, no biases, head outputs summed).
        attention_scale: factor on the scores; None: ``1 / sqrt(head dim)`` for multihead, 1 for bilinear.
        attention_bias: biases in the multihead projections; None: yes for multihead. Bilinear has none.
        mlp_bias: biases in the MLP; None: yes for multihead, no for bilinear (the paper's equation has none).
        norm_position: ``"post"`` (the paper's block) or ``"pre"`` (then a last norm follows the last block).
        position_embedding_type: ``"learned"``, ``"sinusoidal"`` or ``"none"``; positions count from the first valid token.
        max_position_embeddings: longest input; longer ones raise ``ValueError``.
        embedding_std: standard deviation of the initial token embeddings.
        position_std: the same for learned positions, and the factor on sinusoidal ones; None: `embedding_std`.
        attention_gain: factor on the initial bound of the matrices that make scores (W, or query and key).
        weight_gain: factor on the initial bound of all other linear weights. A linear layer with n inputs is drawn as
            ``torch.nn.Linear`` does it: uniform within ±gain/√n, its bias within ±1/√n.
        layer_norm_eps: epsilon of layer norms.
        pooling: what the sequence head reads: ``"mean"`` of valid tokens, the first (``"cls"``) or the ``"last"`` one.
        hidden_dropout: dropout on embeddings and on what attention and MLP add.
        attention_dropout: dropout on attention weights.
        classifier_dropout: dropout before the classifier.
        pad_token_id: id whose embedding is zero and is not trained; None: no such id.
        mask_sources: written when a model is saved: the modules that register the strategies that are not built in.

    Raises:
        ValueError: for impossible values, at construction and at assignment.

    Example:
        >>> SemFocusConfig(mask="banded:5+global:1", num_attention_heads=2).mask
        'banded:5+global:1'
    """

    model_type = "semfocus"

    # Set before `mask` (fields are set in this order), so that an unknown strategy can say where it comes from.
    mask_sources: dict[str, str] | None = None
    vocab_size: int = 32
    hidden_size: int = 64
    intermediate_size: int = 64
    num_hidden_layers: int = 5
    num_attention_heads: int = 1
    hidden_act: str = "relu"
    mask: str = "topk:5"
    layer_masks: list[str] | None = None
    attention_form: Literal["multihead", "bilinear"] = "multihead"
    attention_scale: float | int | None = None
    attention_bias: bool | None = None
    mlp_bias: bool | None = None
    norm_position: Literal["post", "pre"] = "post"
    position_embedding_type: Literal["learned", "sinusoidal", "none"] = "learned"
    max_position_embeddings: int = 1024
    embedding_std: float | int = 1.0
    position_std: float | int | None = None
    attention_gain: float | int = 1.0
    weight_gain: float | int = 1.0
    layer_norm_eps: float | int = 1e-5
    pooling: Literal["mean", "cls", "last"] = "mean"
    hidden_dropout: float | int = 0.0
    attention_dropout: float | int = 0.0
    classifier_dropout: float | int = 0.0
    pad_token_id: int | None = 0

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        self.check()

    def __setattr__(self, name: str, value: Any) -> None:
        # `@strict` has checked the type before this runs. It would wrap errors of validators in a class of its own
        # that is not a ValueError, and run them only at construction and at saving.
        if name in BOUNDS:
            _check_bounds(name, value)
        elif name == "attention_scale" and value is not None and not 0 < value < math.inf:
            raise ValueError(f"attention_scale must be None or a finite number > 0, got {value!r}")
        elif name == "hidden_act":
            _check_activation(value)
        elif name == "mask":
            value = str(self._parse(value))
        elif name == "layer_masks" and value is not None:
            value = [str(self._parse(mask)) for mask in value]
        super().__setattr__(name, value)

    def _parse(self, spec: str) -> MaskStrategy:
        try:
            return parse_mask(spec)
        except ValueError as error:
            names = [re.split("[:;]", part)[0].strip() for part in spec.split("+")]
            for name, source in (self.__dict__.get("mask_sources") or {}).items():
                if name in names:
                    where = f"module {source!r}", f"`import {source}`"
                    if source == "__main__":
                        where = "main script or notebook", "run the code that registers it"
                    raise ValueError(
                        f"{error}. The strategy {name!r} was registered by the {where[0]} when this checkpoint was "
                        f"saved: {where[1]} before loading it"
                    ) from None
            raise

    def check(self) -> None:
        """Raise ``ValueError`` if fields do not fit together. Run at construction, at saving and by every model."""
        if self.attention_form == "multihead" and self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"num_attention_heads={self.num_attention_heads} does not divide hidden_size={self.hidden_size}"
            )
        if self.attention_form == "bilinear" and self.attention_bias:
            raise ValueError("attention_bias=True does not exist in attention_form='bilinear', which has no biases")
        if self.layer_masks is not None and len(self.layer_masks) != self.num_hidden_layers:
            raise ValueError(
                f"layer_masks must hold one mask per layer: num_hidden_layers={self.num_hidden_layers}, "
                f"got {len(self.layer_masks)} masks"
            )
        if self.pad_token_id is not None and self.pad_token_id >= self.vocab_size:
            raise ValueError(f"pad_token_id={self.pad_token_id} must be below vocab_size={self.vocab_size}")

    def mask_of_layer(self, index: int) -> MaskStrategy:
        """The strategy of layer `index`."""
        return parse_mask(self.mask if self.layer_masks is None else self.layer_masks[index])

    @property
    def output_attentions(self) -> bool:
        """Whether models return attention weights unless a call says otherwise.

        Transformers refuses this in a config for every implementation but ``eager``; all of ours return weights.
        """
        return bool(self._output_attentions)

    @output_attentions.setter
    def output_attentions(self, value: bool) -> None:
        self._output_attentions = value

    def validate_output_attentions(self) -> None:
        """Nothing to refuse: see :attr:`output_attentions`."""

    def save_pretrained(self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs: Any) -> None:
        """Save the configuration, and beside it the code that it needs to load anywhere with ``trust_remote_code``.

        Every entry of ``auto_map`` points at the modeling file, whichever class is saved, so that a saved classifier
        also loads as ``AutoModel``. (Transformers lists only the saved class, and local folders would load the
        configuration from another copy of the code than the model.)
        """
        self.check()
        Path(save_directory).mkdir(parents=True, exist_ok=True)
        specs = [self.mask] if self.layer_masks is None else self.layer_masks
        self.mask_sources = ship_code(Path(save_directory), [parse_mask(spec) for spec in specs])
        self.auto_map = complete_auto_map(getattr(self, "auto_map", None))
        super().save_pretrained(save_directory, push_to_hub=push_to_hub, **kwargs)

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoConfig") -> None:
        """Do nothing: :meth:`save_pretrained` ships the code and writes ``auto_map`` itself.

        Transformers calls this when it loads remote code, and would then overwrite our ``auto_map`` at the next save.
        """


def _check_bounds(name: str, value: Any) -> None:
    low, high = BOUNDS[name]
    if value is None:
        return
    fits = not isinstance(value, bool) and math.isfinite(value)
    if not fits or not (low is None or value >= low) or not (high is None or value <= high):
        bound = f">= {low}" + ("" if high is None else f" and <= {high}")
        raise ValueError(f"{name} must be {bound}, got {value!r}")


def _check_activation(name: str) -> None:
    if name not in ACT2FN:
        nearest = difflib.get_close_matches(name, ACT2FN, n=1, cutoff=0.5)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise ValueError(f"unknown hidden_act {name!r}; known: {', '.join(sorted(ACT2FN))}{hint}")
