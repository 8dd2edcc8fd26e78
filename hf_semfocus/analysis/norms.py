"""The spectral norms of a block's weights, as the paper's constants hold them (arXiv 2506.14095)."""

from collections.abc import Iterator
from typing import Any

import torch


def norms(model: torch.nn.Module) -> list[dict[str, Any]]:
    """‖V‖₂, ‖QᵀK‖₂/√d, ‖P‖₂ and ‖R‖₂ of each block, with biases as a further column.

    Queries and keys are those of [x; 1], so QᵀK is the (d + 1) × (d + 1) matrix whose product with two inputs is their
    score; it is multiplied by the model's score scale (1/√d in the paper's model). In the bilinear form it is W. V is what
    makes the values, without the output projection behind it.

    Args:
        model: a SemFocus model, with or without a head.

    Returns:
        Entries with ``layer``, ``head`` (None for the MLP's), ``norm`` ("value", "query_key", "expand" for P, "contract" for
        R) and ``value``, in fp64; none for any other model.

    Example:
        >>> norms(SemFocusModel(SemFocusConfig(vocab_size=5)))[0]  # doctest: +SKIP
        {'layer': 0, 'head': 0, 'norm': 'value', 'value': 0.31}
    """
    entries = []
    blocks = [part for part in model.modules() if hasattr(part, "mlp") and hasattr(part, "attention")]
    for layer, block in enumerate(block for block in blocks if hasattr(block.attention, "query_key")):
        mlp: Any = block.mlp
        matrices = [
            *_attention(block.attention),
            (None, "expand", _matrix(mlp.expand)),
            (None, "contract", _matrix(mlp.contract)),
        ]
        for head, name, matrix in matrices:
            value = torch.linalg.matrix_norm(matrix, 2).item()
            entries.append({"layer": layer, "head": head, "norm": name, "value": value})
    return entries


def _attention(attention: Any) -> Iterator[tuple[int | None, str, torch.Tensor]]:
    """Head, name and matrix."""
    values = _matrix(attention.value).chunk(attention.heads)
    if attention.bilinear:
        products = _matrix(attention.score_matrix).chunk(attention.heads)
    else:
        queries, keys = (_matrix(part).chunk(attention.heads) for part in (attention.query, attention.key))
        products = tuple(query.T @ key for query, key in zip(queries, keys, strict=True))
    for head in range(attention.heads):
        yield head, "value", values[head]
        yield head, "query_key", products[head] * attention.scale


def _matrix(linear: Any) -> torch.Tensor:
    """[W | b] in fp64."""
    weight = linear.weight.detach().double()
    return weight if linear.bias is None else torch.cat([weight, linear.bias.detach().double()[:, None]], dim=1)
