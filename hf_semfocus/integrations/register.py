"""Sparse attention for any Transformers model that goes through the attention interface.

``register_attention("topk:16+sink:4")`` gives a name for ``attn_implementation=``; ``apply_attention(model, spec)`` puts it
into a loaded model, and makes sure that the model uses it.
"""

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel

from ..model.mask_base import MaskStrategy
from ..model.mask_registry import parse_mask
from .attention import attention_function
from .evaluation import evaluating
from .positions import mask_builder
from .saving import PREFIX, write_choices
from .watch import AttentionWatch

# Transformers takes names that hold one of these for its own kernels.
RESERVED = ("flash", "sdpa", "flex_attention", "paged|")


def register_attention(mask_spec: str | MaskStrategy) -> str:
    """Make a mask strategy available as ``attn_implementation=`` of any Transformers model.

    The model's own mask (padding, causality, sliding windows, static caches, packed texts) says which keys may be attended
    to; the strategy chooses among them. Soft-capped scores, attention-sink logits and additive biases are applied.
    Positions count from the first token that is not padding, also with a key-value cache. Cross-attention has no positions
    of queries: strategies that count them are refused there.

    A model that uses it says so in the config.json that it saves, and loads with it wherever this package is imported;
    elsewhere Transformers refuses to load it unless ``attn_implementation=`` says otherwise.

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
    ALL_ATTENTION_FUNCTIONS.register(name, attention_function(mask))
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, mask_builder(mask))
    write_choices()
    return name


def apply_attention(
    model: PreTrainedModel, mask_spec: str | MaskStrategy, probe: Mapping[str, Any] | None = None
) -> PreTrainedModel:
    """Put sparse attention into a loaded model, and prove by one forward pass that every attention layer uses it.

    Some models accept any implementation by name and compute dense attention all the same; they are refused. The choice
    is saved with the model, see :func:`register_attention`.

    Args:
        model: any Transformers model. Its mode and weights stay as they are.
        mask_spec: such as ``"topk:16+sink:4"``.
        probe: inputs for the forward pass; None: the model's own ``dummy_inputs``, or a black image for a vision model.

    Returns:
        `model`.

    Raises:
        ValueError: if a layer computed softmax attention and did not call ours, or one that is called attention did not run,
            naming it; or if the forward pass failed. The model then has the implementation that it had. Also for what is no
            model of Transformers, and for one without weights (meta device).

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> apply_attention(BertModel(config), "topk:4").config._attn_implementation
        'semfocus:topk:4'
    """
    _check_model(model)
    name = register_attention(mask_spec)
    before = [(config, config._attn_implementation) for config in _configs_in(model)]
    try:
        model.set_attn_implementation(name)
        _probe(model, name, _default_probe(model) if probe is None else probe)
    except BaseException:
        for config, implementation in before:
            config._attn_implementation_internal = implementation
        raise
    return model


def _check_model(model: Any) -> None:
    """``ValueError`` unless it is a model of Transformers, as it is or wrapped by PEFT or `torch.compile`."""
    if not hasattr(model, "set_attn_implementation"):
        parts = list(model.named_modules()) if isinstance(model, torch.nn.Module) else []
        inside = next((path for path, part in parts if isinstance(part, PreTrainedModel)), None)
        hint = f"; it holds one as .{inside}" if inside else ""
        raise ValueError(f"apply_attention takes a model of Transformers, got {type(model).__name__}{hint}")


def _configs_in(model: PreTrainedModel) -> Iterator[PreTrainedConfig]:
    """The configurations of a model and of all its parts; some have no model of their own. One may come twice."""

    def within(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
        yield config
        for key in config.sub_configs:
            if isinstance(part := getattr(config, key, None), PreTrainedConfig):
                yield from within(part)

    for part in model.modules():
        if isinstance(part, PreTrainedModel):
            yield from within(part.config)


def _default_probe(model: PreTrainedModel) -> Mapping[str, Any]:
    config = model.config
    if model.main_input_name == "pixel_values" and isinstance(getattr(config, "image_size", None), int):
        shape = (1, getattr(config, "num_channels", 3), config.image_size, config.image_size)
        return {"pixel_values": torch.zeros(shape, dtype=model.dtype)}
    # The dummy token ids are small, and a vocabulary may be smaller.
    size = getattr(config.get_text_config(), "vocab_size", None)
    inputs = {
        key: value % size if size and key.endswith("input_ids") else value for key, value in model.dummy_inputs.items()
    }
    if config.is_encoder_decoder and "decoder_input_ids" in inspect.signature(model.forward).parameters:
        inputs.setdefault("decoder_input_ids", inputs.get("input_ids"))
    return inputs


def _probe(model: PreTrainedModel, name: str, inputs: Mapping[str, Any]) -> None:
    """One forward pass without gradients; ``ValueError`` unless all attention layers called ours."""
    kind = type(model).__name__
    parts = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    if any(part.config._attn_implementation != name for part in parts):
        raise ValueError(f"{kind} does not let its attention be set: it does not go through the attention interface")
    watch = AttentionWatch()
    try:
        with evaluating(model), torch.no_grad(), torch.compiler.set_stance("force_eager"), watch:
            model(**{key: value.to(model.device) if hasattr(value, "to") else value for key, value in inputs.items()})
    except (TypeError, ValueError, AttributeError, LookupError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        if reason.startswith("mask "):  # no other input would help
            raise ValueError(reason) from error
        what_to_do = "inputs that the model takes are given as apply_attention(model, mask, probe={…})"
        # Those of a model that accelerate keeps on the disk are there when it runs.
        if any(parameter.is_meta for parameter in model.parameters()) and not hasattr(model, "hf_device_map"):
            what_to_do = "it has no weights (meta device): load them first"
        raise ValueError(
            f"the forward pass that looks whether {kind} uses {name!r} failed ({type(error).__name__}: {reason}); {what_to_do}"
        ) from error
    uncalled = [path for path, module in model.named_modules() if module in watch.attended - watch.called]
    idle = [path for path, module in attention_modules(model).items() if module not in watch.ran]
    wrong = []
    if uncalled:
        wrong.append(f"attention layers that did not call it: {_listed(uncalled)}")
    if idle:
        wrong.append(f"layers that did not run: {_listed(idle)}")
    if not watch.called and not wrong:
        wrong.append("none has softmax attention")
    if wrong:
        raise ValueError(
            f"{kind} accepts attn_implementation={name!r} and does not use it: {'; '.join(wrong)}; if it needs other inputs to "
            "run them, give these as apply_attention(model, mask, probe={…})"
        )


def _listed(paths: list[str]) -> str:
    return ", ".join(paths[:4]) + (", …" if len(paths) > 4 else "")


def attention_modules(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The innermost modules that are called attention, by path: what did not run can be known by its name alone."""
    modules = {
        path: part for path, part in model.named_modules() if re.search(r"Attention(?!.*Pool)", type(part).__name__)
    }
    return {
        path: part
        for path, part in modules.items()
        if not any(other.startswith(f"{path}.") for other in modules if path)
    }
