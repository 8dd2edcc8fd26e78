"""The model of "Transformers Learn Faster with Semantic Focus" as its authors' code builds it, and its 15 variants.

Source: Ram et al., arXiv 2506.14095, and the code that they published with it.
"""

import difflib
import re
from typing import Any

from .configuration_semfocus import SemFocusConfig
from .mask_strategies import list_mask_strategies, parse_mask

#: What attends to what in the paper's comparison.
PAPER_VARIANTS = (
    "full",
    *(f"{kind}:{size}" for kind in ("band", "block", "topk") for size in (5, 9)),
    *(
        f"{kind}:{size}+{count}global"
        for kind in ("band", "block")
        for size in (5, 9)
        for count in (1, 3)
    ),
)  # fmt: skip


def paper_variant(name: str) -> dict[str, Any]:
    """The fields of :class:`SemFocusConfig` that make a variant of the paper's model.

    A band keeps w keys at the ends too; global tokens are learned ones behind the input; with a mask of size s the input is
    padded to a multiple of s.

    Args:
        name: one of `PAPER_VARIANTS`, or a control of the same form: ``band:7``, ``topk:3+1global``, ``botk:5``,
            ``redraw:5``.

    Raises:
        ValueError: for any other name.

    Example:
        >>> paper_variant("band:9+1global")
        {'mask': 'banded:9;ends=shift', 'pad_to_multiple_of': 9, 'num_global_tokens': 1}
    """
    form = re.fullmatch(r"(band|block|topk|botk|redraw):(\d+)(?:\+([1-9]\d*)global)?", name)
    if name == "full":
        return {"mask": "full"}
    if form is None:
        near = difflib.get_close_matches(name, PAPER_VARIANTS, n=1)
        hint = f"did you mean {near[0]!r}? Allowed" if near else "allowed"
        raise ValueError(
            f"unknown variant {name!r}; {hint}: {', '.join(PAPER_VARIANTS)}, botk:5, redraw:5, or other sizes"
        )
    kind, size, count = form.groups()
    mask = f"banded:{size};ends=shift" if kind == "band" else f"{kind}:{size}"
    fields: dict[str, Any] = {"mask": str(parse_mask(mask)), "pad_to_multiple_of": int(size)}
    return {**fields, "num_global_tokens": int(count)} if count else fields


def paper_fields(layers: int = 5) -> dict[str, Any]:
    """The fields of :class:`SemFocusConfig` that all variants share.

    Attention is in the multihead form with biases, drawn as ``torch.nn.Linear`` is; embeddings are uniform in ±0.1 and
    multiplied by √64; positions are plain sines and cosines. Dropout is off in evaluation; in the authors' code, attention
    weights are dropped there too.

    Args:
        layers: 5 for the NNCH tasks, 10 for ListOps.
    """
    return {
        "num_hidden_layers": layers,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_attention_heads": 1,
        "hidden_act": "relu",
        "norm_position": "pre",
        "final_norm": False,
        "norm_elementwise_affine": False,
        "layer_norm_eps": 1e-5,
        "first_norm_eps": 0.0,
        "position_embedding_type": "sinusoidal",
        "position_std": 1.0,
        "embedding_bound": 0.1,
        "embedding_scale": 8.0,
        "classifier_bound": 0.1,
        "pooling": "mean",
        "hidden_dropout": 0.01,
        "attention_dropout": 0.01,
        "mlp_dropout": 0.01,
        "attend_padding": True,
    }


def paper_config(
    vocab_size: int, num_labels: int, mask: str = "topk:5", length: int = 40, **fields: Any
) -> SemFocusConfig:
    """The configuration of the paper's model.

    Args:
        vocab_size: number of token ids; id `pad_token_id` (0 unless it is given) is the padding token.
        num_labels: classes.
        mask: a variant (see :func:`paper_variant`) or any mask specification.
        length: tokens of the longest input, which all shorter ones are padded to.
        fields: other fields of :class:`SemFocusConfig`, which go over the paper's.

    Raises:
        ValueError: for an unknown mask, and for one whose size is above `length`.

    Example:
        >>> paper_config(8, 2, mask="band:9+1global").max_position_embeddings
        46
    """
    variant = variant_or_mask(mask)
    size = variant.get("pad_to_multiple_of", 1)
    if size > length:
        raise ValueError(f"mask {mask!r} has size {size}; allowed for inputs of length {length}: at most {length}")
    values = {**paper_fields(), "pad_to_length": length, **variant, **fields}
    values.setdefault("max_position_embeddings", -(-length // size) * size + values.get("num_global_tokens", 0))
    return SemFocusConfig(vocab_size=vocab_size, **{**values, "num_labels": num_labels})


def variant_or_mask(name: str) -> dict[str, Any]:
    """The fields of a variant, or of a mask that is none."""
    try:
        return paper_variant(name)
    except ValueError:
        if re.split("[:;+]", name)[0].strip() not in list_mask_strategies():
            raise  # not the name of any mask: the message about variants says more
    return {"mask": str(parse_mask(name))}
