"""Sparse attention for any Transformers model that goes through the attention interface.

``register_attention("topk:16+sink:4")`` gives a name for ``attn_implementation=``; ``apply_attention(model, spec)`` puts it
into a loaded model, and makes sure that the model uses it.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel

from .attention_interface import IMPLEMENTATION, semfocus_mask, split_attention_mask
from .attention_reference import reference_attention
from .attention_sparse import sparse_attention
from .mask_base import MaskStrategy
from .mask_registry import mask_parts, parse_mask
from .mask_scores import TopK

PREFIX = f"{IMPLEMENTATION}:"
# A key of config.json that Transformers itself reads: a model saved with it asks for this implementation when it is
# loaded, and is refused where nobody has registered it.
CONFIG_KEY = "attn_implementation"
POSITIONS = "_semfocus_positions"
# Transformers takes names that hold one of these for its own kernels.
RESERVED = ("flash", "sdpa", "flex_attention", "paged|")

# Modules that called one of our functions, while `apply_attention` looks.
_seen: list[set[int]] = []

#: Called by name with what an attention function computes from: module, query, key, valid, bias, softcap, scaling, mask,
#: positions (a pair). They look and change nothing; `hf_semfocus.analysis` collects scores with one.
observers: list[Callable[..., None]] = []


def register_attention(mask_spec: str | MaskStrategy) -> str:
    """Make a mask strategy available as ``attn_implementation=`` of any Transformers model.

    The model's own mask (padding, causality, sliding windows, static caches) says which keys may be attended to; the
    strategy chooses among them. Soft-capped scores, attention-sink logits and additive biases are applied. Positions
    count from the first token that is not padding, also with a key-value cache.

    Args:
        mask_spec: such as ``"topk:16+sink:4"``.

    Returns:
        The name, the same for the same strategy. Registering twice changes nothing.

    Raises:
        ValueError: for a malformed mask, or a strategy whose name Transformers would take for a kernel of its own.

    Example:
        >>> register_attention("topk:16+sink:4")
        'semfocus:topk:16+sink:4'
    """
    mask = parse_mask(mask_spec)
    name = f"{PREFIX}{mask}"
    for word in RESERVED:
        if word in name:
            raise ValueError(
                f"mask {str(mask)!r} cannot name an attention implementation: Transformers reserves {word!r}"
            )
    ALL_ATTENTION_FUNCTIONS.register(name, _attention_function(mask))
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, _mask_function(mask, name))
    return name


def apply_attention(
    model: PreTrainedModel, mask_spec: str | MaskStrategy, probe: Mapping[str, torch.Tensor] | None = None
) -> PreTrainedModel:
    """Put sparse attention into a loaded model, and prove by one forward pass that every attention layer uses it.

    Some models accept any implementation by name and compute dense attention all the same; they are refused. The choice
    is written into the model's configuration: a saved model is loaded with it again where
    :func:`register_attention` was called for the same mask, and Transformers refuses to load it where it was not,
    unless ``attn_implementation=`` says otherwise.

    Args:
        model: any Transformers model. Its mode and weights stay as they are.
        mask_spec: such as ``"topk:16+sink:4"``.
        probe: inputs for the forward pass; None: the model's own ``dummy_inputs``, or a black image for a vision model.

    Returns:
        `model`.

    Raises:
        ValueError: if an attention layer did not call ours, naming it. The model then has the implementation that it
            had.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> apply_attention(BertModel(config), "topk:4").config._attn_implementation
        'semfocus:topk:4'
    """
    name = register_attention(mask_spec)
    before = {id(part): part.config._attn_implementation for part in _models_in(model)}
    try:
        model.set_attn_implementation(name)
        _probe(model, name, _default_probe(model) if probe is None else probe)
    except Exception:
        for part in _models_in(model):
            part.config._attn_implementation_internal = before[id(part)]
        raise
    for part in _models_in(model):
        setattr(part.config, CONFIG_KEY, name)
    return model


def _models_in(model: PreTrainedModel) -> list[PreTrainedModel]:
    return [part for part in model.modules() if isinstance(part, PreTrainedModel)]


def _default_probe(model: PreTrainedModel) -> Mapping[str, torch.Tensor]:
    config = model.config
    if model.main_input_name == "pixel_values" and isinstance(getattr(config, "image_size", None), int):
        shape = (1, getattr(config, "num_channels", 3), config.image_size, config.image_size)
        return {"pixel_values": torch.zeros(shape, dtype=model.dtype)}
    return model.dummy_inputs


def _probe(model: PreTrainedModel, name: str, inputs: Mapping[str, torch.Tensor]) -> None:
    """One forward pass without gradients; ``ValueError`` unless all attention layers called ours."""
    kind = type(model).__name__
    if any(part.config._attn_implementation != name for part in _models_in(model)):
        raise ValueError(f"{kind} does not let its attention be set: it does not go through the attention interface")
    modes = [(module, module.training) for module in model.modules()]
    called: set[int] = set()
    _seen.append(called)
    try:
        model.eval()
        with torch.no_grad():
            model(**{key: value.to(model.device) for key, value in inputs.items()})
    except (TypeError, AttributeError, LookupError, RuntimeError) as error:
        raise ValueError(
            f"the forward pass that looks whether {kind} uses {name!r} failed ({error}); "
            f"give inputs that the model takes as apply_attention(model, mask, probe={{...}})"
        ) from error
    finally:
        _seen.remove(called)
        for module, training in modes:
            module.training = training
    layers = attention_modules(model)
    missed = [path for path, module in layers.items() if id(module) not in called]
    if missed or not called:
        where = ", ".join(missed[:4]) + (", …" if len(missed) > 4 else "") if missed else "none was found"
        raise ValueError(
            f"{kind} accepts attn_implementation={name!r} and does not use it: attention layers that computed their own "
            f"attention: {where}"
        )


def attention_modules(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The modules that compute attention, by path: their class is named so, and none inside them is.

    Args:
        model: any model.

    Returns:
        Path and module, in order.
    """
    found = {
        path: part for path, part in model.named_modules() if re.search(r"Attention(?!.*Pool)", type(part).__name__)
    }
    return {
        path: part for path, part in found.items() if not any(other.startswith(f"{path}.") for other in found if path)
    }


def _positional(mask: MaskStrategy) -> bool:
    """Whether the strategy may look at positions."""
    return not all(isinstance(part, TopK) for part in mask_parts(mask))


def _attention_function(mask: MaskStrategy) -> Callable[..., tuple[torch.Tensor, torch.Tensor | None]]:
    """The attention function of a mask, as the attention interface wants it."""

    def attention(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        softcap: float | None = None,
        s_aux: torch.Tensor | None = None,
        position_bias: torch.Tensor | None = None,
        sliding_window: int | None = None,
        output_attentions: bool = False,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        for called in _seen:
            called.add(id(module))
        if kwargs.get("cu_seq_lens_q") is not None and _positional(mask):
            raise ValueError(f"mask {str(mask)!r} counts positions, which packed sequences (cu_seq_lens_q) start anew")
        valid, bias = split_attention_mask(attention_mask)
        if valid is None:
            if sliding_window is not None:
                raise ValueError("a sliding window needs a mask that holds it, and this model gave none")
            causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
            valid = _causal(query.shape[2], key.shape[2], query.device) if causal else None
        elif valid.shape[-1] > key.shape[2]:
            # As Transformers' eager attention does for caches that are longer than what was asked for.
            valid = valid[..., : key.shape[2]]
            bias = None if bias is None else bias[..., : key.shape[2]]
        if position_bias is not None:
            bias = position_bias if bias is None else bias + position_bias
        positions = _positions(mask, attention_mask, valid, query.shape[2], key.shape[2])
        for observe in observers:
            observe(
                module=module, query=query, key=key, valid=valid, bias=bias, softcap=softcap, scaling=scaling, mask=mask,
                positions=positions,
            )  # fmt: skip
        if bias is None and softcap is None and s_aux is None:
            attended = sparse_attention(
                query, key, value, mask, valid, scaling, dropout, *positions, return_weights=output_attentions
            )
            output, weights = attended if isinstance(attended, tuple) else (attended, None)
        else:
            # The reference has a gradient for all of these; they are rare, and its cost is that of eager attention.
            output, weights = reference_attention(
                query, key, value, mask, valid, scaling, dropout, *positions,
                bias=bias, softcap=softcap, sink_logits=s_aux, return_weights=True,
            )  # fmt: skip
        weights = weights.to(query.dtype) if output_attentions and weights is not None else None
        return output.transpose(1, 2).contiguous(), weights

    return attention


def _causal(queries: int, keys: int, device: torch.device) -> torch.Tensor | None:
    """Keys up to each query's own, ``(1, 1, Q, K)``; queries are the last ones."""
    if queries == 1:
        return None
    own = torch.arange(keys - queries, keys, device=device).unsqueeze(-1)
    return (torch.arange(keys, device=device) <= own)[None, None]


def _mask_function(mask: MaskStrategy, name: str) -> Callable[..., torch.Tensor]:
    """The mask builder of a mask: a bool mask, never None, that knows the positions of its queries and keys."""
    positional = _positional(mask)

    def build(*args: Any, **kwargs: Any) -> torch.Tensor:
        built = semfocus_mask(*args, **kwargs)
        config = kwargs.get("config")
        if config is not None and not torch.compiler.is_compiling():
            # Reading a configuration drops this key, and the next save has to write it again.
            setattr(config, CONFIG_KEY, name)
        if positional and not torch.compiler.is_compiling():
            padding = kwargs.get("attention_mask")
            first: int | torch.Tensor = 0
            if padding is not None:
                first = (padding != 0).to(torch.uint8).argmax(dim=-1, keepdim=True)
            queries = torch.arange(built.shape[-2], device=built.device) + kwargs.get("q_offset", 0)
            keys = torch.arange(built.shape[-1], device=built.device) + kwargs.get("kv_offset", 0)
            setattr(built, POSITIONS, (queries - first, keys - first))
        return built

    return build


def _positions(
    mask: MaskStrategy,
    attention_mask: torch.Tensor | None,
    valid: torch.Tensor | None,
    queries: int,
    keys: int,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Positions of queries and keys, where the strategy asks for them and the mask knows them; None: the default ones.

    Raises:
        ValueError: if the mask does not know them, and the last queries are not at the last keys, as they are by default.
    """
    if not _positional(mask):
        return None, None
    known = getattr(attention_mask, POSITIONS, None)
    if known is not None:
        query_positions, key_positions = known
        return query_positions, key_positions[..., :keys]
    if valid is None or queries == keys or torch.compiler.is_compiling():
        return None, None
    if not bool(valid[..., -1, -1].any()):
        raise ValueError(
            f"mask {str(mask)!r} counts positions, and this attention mask does not say where the queries are: "
            f"none may see the last of {keys} keys. Give the model a two-dimensional attention_mask"
        )
    return None, None
