"""Configuration of SemFocus models: names and numbers only, checked when they are set."""

import dataclasses
import difflib
import functools
import os
import re
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub.dataclasses import strict, validated_field
from huggingface_hub.errors import StrictDataclassError, StrictDataclassFieldValidationError
from transformers.activations import ACT2FN
from transformers.configuration_utils import PreTrainedConfig
from transformers.utils import logging

from .mask_global_tokens import WithGlobalTokens
from .mask_strategies import MaskStrategy, list_mask_strategies, parse_mask
from .shipping import complete_auto_map, ship_code, where_from

logger = logging.get_logger(__name__)

LARGEST_SIZE = 2**31 - 1
LARGEST_FACTOR = 1e30  # squared it is beyond float32, where weights and scores live

#: What other models call some of our fields.
NAMES_ELSEWHERE = {
    **dict.fromkeys(("n_head", "n_heads", "num_heads", "heads"), "num_attention_heads"),
    **dict.fromkeys(("n_layer", "n_layers", "num_layers", "layers"), "num_hidden_layers"),
    **dict.fromkeys(("d_model", "n_embd", "dim", "hidden_dim", "embed_dim"), "hidden_size"),
    **dict.fromkeys(("d_ff", "n_inner", "ffn_dim", "mlp_dim", "intermediate_dim"), "intermediate_size"),
    **dict.fromkeys(("activation", "activation_function", "hidden_activation"), "hidden_act"),
    **dict.fromkeys(("n_positions", "max_length", "max_seq_len", "block_size"), "max_position_embeddings"),
    **dict.fromkeys(("dropout", "hidden_dropout_prob", "resid_pdrop"), "hidden_dropout"),
    **dict.fromkeys(("attention_probs_dropout_prob", "attn_pdrop"), "attention_dropout"),
    "initializer_range": "embedding_std",
}

AUTO_GAIN = "; hf_semfocus.choose_attention_gain(config, batch, target_entropy) gives the number for given inputs"

# What the checks of fields raise is what is allowed; `_plain_errors` says for which field, and what it got.


def _number(default: float | None, low: float = 0, high: float = LARGEST_FACTOR) -> Any:
    """A field that holds a number from `low` to `high`, or None where its type has it."""

    def check(value: Any) -> None:
        if value is not None and not low <= value <= high:  # NaN is not
            raise ValueError(f"a number from {low} to {high}")

    return validated_field(check, default=default)


def _size(default: int | None, low: int = 1) -> Any:
    return _number(default, low, LARGEST_SIZE)


def _check_factor(value: Any) -> None:
    if value is not None and not 0 < value <= LARGEST_FACTOR:
        raise ValueError(f"a number above 0 and at most {LARGEST_FACTOR}")


def _check_count(value: Any) -> None:
    if type(value) is not int or not 1 <= value <= 2**24:  # each is an entry of `id2label`
        raise ValueError(f"an integer from 1 to {2**24}")


def _check_activation(value: str) -> None:
    if value not in ACT2FN:
        nearest = difflib.get_close_matches(value, ACT2FN, n=1, cutoff=0.5)
        hint = f" (did you mean {nearest[0]!r}?)" if nearest else ""
        raise ValueError(f"one of {', '.join(sorted(ACT2FN))}{hint}")


def _check_dtype(value: Any) -> None:
    dtype = getattr(torch, value, None) if isinstance(value, str) else value
    if value is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ValueError("a floating-point torch dtype such as 'float32'")


def _check_labels(value: Any) -> None:
    if value is not None and ({str(key) for key in value} != set(map(str, range(len(value)))) or not value):
        raise ValueError("names of the labels 0, 1, … without a gap")


def _plain_errors(cls: type) -> type:
    """What `@strict` refuses becomes a ``ValueError`` of one line: its own errors are not, and run over several."""
    assign: Any = cls.__setattr__
    validate: Any = cls.validate  # type: ignore[attr-defined]
    kinds = {entry.name: entry.type for entry in dataclasses.fields(cls)}
    cls.__validators__["num_labels"] = [_check_count]  # type: ignore[attr-defined]  # a property, and no field

    @functools.wraps(assign)
    def checked_assign(self: Any, name: str, value: Any) -> None:
        if name == "mask" and isinstance(value, MaskStrategy):
            value = str(value)
        try:
            assign(self, name, value)
        except StrictDataclassFieldValidationError as error:
            if isinstance(error.__cause__, ValueError):
                allowed = str(error.__cause__)
            else:
                kind = kinds[name]
                allowed = kind.__name__ if type(kind) is type else str(kind).replace("typing.", "")
            hint = AUTO_GAIN if name == "attention_gain" and value == "auto" else ""
            raise ValueError(f"{name} must be {allowed}, got {value!r:.100}{hint}") from None

    @functools.wraps(validate)
    def checked_validate(self: Any) -> None:
        try:
            validate(self)
        except StrictDataclassError as error:
            raise ValueError(" ".join(str(error.__cause__).split())) from None

    cls.__setattr__ = checked_assign  # type: ignore[method-assign,assignment]
    cls.validate = checked_validate  # type: ignore[attr-defined]
    return cls


@_plain_errors
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
        mask: mask specification of every layer, such as ``"topk:5"`` or ``"banded:5+global:1"``, or a strategy, whose text is kept.
        layer_masks: one specification per layer; None: `mask` in all layers.
        attention_form: ``"multihead"`` (query, key, value and output projections) or ``"bilinear"`` (the paper's
            form: one d × d score matrix and one d × d value matrix per head, no biases, head outputs summed).
        attention_scale: factor on the scores; None: ``1 / sqrt(head dim)`` for multihead, 1 for bilinear (times β for an inverse
            temperature β).
        normalizer: what makes weights of the kept scores: ``"softmax"``, or ``"entmax15"`` or ``"sparsemax"``, which give
            weight 0 to scores far below the largest. All are exact.
        qk_norm: whether queries and keys are divided by their root mean square in each head, with trained factors of each
            dimension; `attention_gain` then acts through the biases alone.
        qk_norm_scale: factor on the normalised scores at the start: with T the head dim they lie within
            ±``qk_norm_scale`` · T · (factor on the scores).
        attention_bias: biases in the multihead projections; None: yes for multihead. Bilinear has none.
        mlp_bias: biases in the MLP; None: yes for multihead, no for bilinear (the paper's equation has none).
        norm_position: ``"post"`` (the paper's equations) or ``"pre"`` (the paper's code).
        final_norm: whether a norm follows the last block; None: with pre-norm only.
        norm_elementwise_affine: whether layer norms have a weight and a bias.
        position_embedding_type: ``"learned"``, ``"sinusoidal"`` or ``"none"``; positions count from the first valid token.
        max_position_embeddings: longest input; longer ones raise ``ValueError``.
        embedding_std: standard deviation of the initial token embeddings.
        embedding_bound: token embeddings are drawn uniformly within ±this instead; None: normally.
        embedding_scale: factor on token embeddings in the forward pass.
        position_std: as `embedding_std` for learned positions, and the factor on sinusoidal ones; None: `embedding_std`.
        attention_gain: factor on the initial bound of the matrices that make scores (W, or query and key): it sharpens
            attention at the start. ``hf_semfocus.choose_attention_gain`` finds the one that gives a stated entropy.
        target_entropy: for the record: the normalised initial entropy that `attention_gain` was chosen for, if it was.
        weight_gain: factor on the initial bound of all other linear weights. A linear layer with n inputs is drawn as
            ``torch.nn.Linear`` does it: uniform within ±gain/√n, its bias within ±1/√n.
        classifier_bound: a classifier's weights are drawn within ±this and its bias is zero; None: as other linear layers.
        layer_norm_eps: epsilon of layer norms.
        first_norm_eps: epsilon of the attention norm of the first block; None: `layer_norm_eps`.
        pooling: what the sequence head reads: ``"mean"`` of valid tokens, the first (``"cls"``) or the ``"last"`` one.
        hidden_dropout: dropout on embeddings and on what attention and MLP add.
        attention_dropout: dropout on attention weights.
        mlp_dropout: dropout between the MLP's first linear layer and its activation.
        classifier_dropout: dropout before the classifier.
        num_global_tokens: learned tokens appended to the input, with positions of their own, that attend to all and are attended
            by all. States and weights include them; the token and masked-LM heads leave them out.
        attend_padding: padding is an ordinary token: a two-dimensional attention mask is not looked at, and the padding
            embedding is trained.
        pad_to_length: inputs are padded on the right to this length (needs `attend_padding`); longer ones stay.
        pad_to_multiple_of: inputs are then padded to a multiple of this (needs `attend_padding`).
        pad_token_id: id whose embedding is zero and is not trained (unless `attend_padding`); None: no such id.
        tie_word_embeddings: whether the masked-LM head's decoder shares its weight with the token embeddings.
        mask_sources: written when a model is saved: the modules that register the strategies that are not built in.

    Raises:
        ValueError: for wrong types and impossible values, at construction and at assignment.

    Example:
        >>> SemFocusConfig(mask="banded:5+global:1", num_attention_heads=2).mask
        'banded:5+global:1'
    """

    model_type = "semfocus"
    # `Trainer` would hold them for the whole evaluation, and cannot join those of batches of different lengths.
    keys_to_ignore_at_inference = ["hidden_states", "attentions"]  # noqa: RUF012  # Transformers' own pattern

    # Set before `mask` (fields are set in this order), so that an unknown strategy can say where it comes from.
    mask_sources: dict[str, str] | None = None
    vocab_size: int = _size(32)
    hidden_size: int = _size(64)
    intermediate_size: int = _size(64)
    num_hidden_layers: int = _size(5)
    num_attention_heads: int = _size(1)
    hidden_act: str = validated_field(_check_activation, default="relu")
    mask: str = "topk:5"
    layer_masks: list[str] | None = None
    attention_form: Literal["multihead", "bilinear"] = "multihead"
    attention_scale: float | int | None = validated_field(_check_factor, default=None)
    normalizer: Literal["softmax", "entmax15", "sparsemax"] = "softmax"
    qk_norm: bool = False
    qk_norm_scale: float | int = validated_field(_check_factor, default=1.0)
    attention_bias: bool | None = None
    mlp_bias: bool | None = None
    norm_position: Literal["post", "pre"] = "post"
    final_norm: bool | None = None
    norm_elementwise_affine: bool = True
    position_embedding_type: Literal["learned", "sinusoidal", "none"] = "learned"
    max_position_embeddings: int = _size(1024)
    embedding_std: float | int = _number(1.0)
    embedding_bound: float | int | None = _number(None)
    embedding_scale: float | int = _number(1.0)
    position_std: float | int | None = _number(None)
    attention_gain: float | int = _number(1.0)
    target_entropy: float | int | None = _number(None, 0, 1)
    weight_gain: float | int = _number(1.0)
    classifier_bound: float | int | None = _number(None)
    layer_norm_eps: float | int = _number(1e-5)
    first_norm_eps: float | int | None = _number(None)
    pooling: Literal["mean", "cls", "last"] = "mean"
    hidden_dropout: float | int = _number(0.0, 0, 1)
    attention_dropout: float | int = _number(0.0, 0, 1)
    mlp_dropout: float | int = _number(0.0, 0, 1)
    classifier_dropout: float | int = _number(0.0, 0, 1)
    num_global_tokens: int = _size(0, 0)
    attend_padding: bool = False
    pad_to_length: int | None = _size(None)
    pad_to_multiple_of: int | None = _size(None)
    pad_token_id: int | None = _size(0, 0)
    tie_word_embeddings: bool = True

    # Fields of Transformers, typed here once more: there the annotations are text, which `@strict` does not check.
    architectures: list[str] | None = None
    output_hidden_states: bool | None = False
    return_dict: bool | None = True
    dtype: str | torch.dtype | None = validated_field(_check_dtype, default=None)
    chunk_size_feed_forward: int = _size(0, 0)
    is_encoder_decoder: bool = False
    id2label: dict[int, str] | dict[str, str] | None = validated_field(_check_labels, default=None)
    label2id: dict[str, int] | dict[str, str] | None = None
    problem_type: Literal["regression", "single_label_classification", "multi_label_classification"] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if kwargs.get("per_layer_config") is not None:
            raise ValueError("per_layer_config is not supported: layers differ in their masks only; use layer_masks")
        _warn_of_near_misses(kwargs, [entry.name for entry in dataclasses.fields(self)])
        super().__post_init__(**kwargs)
        self.check()

    def __setattr__(self, name: str, value: Any) -> None:
        # `@strict` has checked the field before this runs.
        if name == "mask":
            value = str(self._parse(value))
        elif name == "layer_masks" and value is not None:
            value = [str(self._parse(mask)) for mask in value]
        super().__setattr__(name, value)

    def _parse(self, spec: str) -> MaskStrategy:
        try:
            return parse_mask(spec)
        except ValueError as error:
            for name, source in (self.__dict__.get("mask_sources") or {}).items():
                if name in re.split(r"[+:;\s]", spec) and name not in list_mask_strategies():
                    raise ValueError(f"{error}. {where_from(name, source)}") from None
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
        for name in ("pad_to_length", "pad_to_multiple_of"):
            if getattr(self, name) is not None and not (self.attend_padding and self.pad_token_id is not None):
                raise ValueError(f"{name}={getattr(self, name)} needs attend_padding=True and a pad_token_id")
        shortest = self.padded_length(1)
        if shortest > self.max_position_embeddings:
            raise ValueError(
                f"max_position_embeddings={self.max_position_embeddings} leaves no room: with padding and "
                f"num_global_tokens={self.num_global_tokens} the shortest input has {shortest} positions"
            )

    def mask_of_layer(self, index: int) -> MaskStrategy:
        """The strategy of layer `index`, with the global tokens that it sees."""
        mask = parse_mask(self.mask if self.layer_masks is None else self.layer_masks[index])
        return WithGlobalTokens(mask, self.num_global_tokens) if self.num_global_tokens else mask

    def padded_length(self, length: int) -> int:
        """Positions that an input of `length` tokens takes, with padding and global tokens.

        >>> SemFocusConfig(attend_padding=True, pad_to_multiple_of=9, num_global_tokens=1).padded_length(40)
        46
        """
        length = max(length, self.pad_to_length or 0)
        multiple = self.pad_to_multiple_of or 1
        return -(-length // multiple) * multiple + self.num_global_tokens

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


def _warn_of_near_misses(given: dict[str, Any], fields: list[str]) -> None:
    """Transformers keeps what it does not know as an attribute, and so do we; but nothing reads it."""
    for name in given:
        near = [] if name.endswith("_token_id") else difflib.get_close_matches(name, fields, n=1, cutoff=0.85)
        if meant := NAMES_ELSEWHERE.get(name) or next(iter(near), None):
            logger.warning(f"SemFocusConfig has no field {name!r}, so nothing uses it; did you mean {meant!r}?")
