"""Exact sparse attention, by the path that is cheapest for the mask and the shapes.

Five paths give what :func:`reference_attention` gives:

- ``dense``: ``scaled_dot_product_attention``, for ``full``.
- ``masked``: all scores, a mask, and a backward pass of its own; the fastest on short inputs, and for any strategy.
- ``chunked``: the same, some queries at a time, computed again in the backward pass: memory O(chunk · K).
- ``tiles``: windows and columns (``banded``, ``block``, ``strided``, ``sink``): time and memory O(Q · kept keys).
- ``lists``: selections and short lists (``topk``, ``random``, and their unions with narrow windows and few columns):
  one product for the scores, in chunks; all else, and what is saved, O(Q · kept keys).

With a normalizer other than softmax, ``masked`` and ``chunked`` are the paths there are.

Rows that keep every key (the first queries under ``global``) are computed apart and densely.

Shapes: B batch, H query heads, G key heads, Q queries, K keys, T head dim.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from .attention_lists import CHUNK_SCORES, CHUNK_SCORES_ELSEWHERE, attend_to_lists
from .attention_masked import masked_attention
from .attention_reference import (
    check_attention_shapes,
    check_dropout,
    compute_dtype,
    reference_attention,
    repeat_heads,
    score_scale,
    without_autocast,
)
from .attention_tiles import attend_in_tiles
from .mask_base import MaskStrategy, check_valid, first_valid_key
from .mask_positions import Full
from .mask_registry import parse_mask
from .sparse_normalizers import normalizer_named

PATHS = ("dense", "masked", "chunked", "tiles", "lists")

# Where the paths cross, measured with `semfocus bench attention` on two threads.
# Scores of one call above which `masked` gives way to a path that does not keep them.
MOST_SCORES_KEPT = 2**24
# Keys from which on tiles and lists are faster than `masked`.
SHORTEST_FOR_TILES = 128
SHORTEST_FOR_LISTS = 128
# Entries of a list, as a share of the keys, above which lists cost more than the dense products they avoid.
LARGEST_SHARE_LISTED = 1 / 4
# Keys up to which plain products by oneDNN beat the fused kernel (AMD, one thread: 16 x 600 in 41 against 68 ms; measured
# anew by `semfocus bench attention --masks full` on such a machine).
LONGEST_PLAIN = 1024
# Keys that a tile looks at, as a share of the keys, above which tiles are not worth it.
LARGEST_SHARE_IN_TILES = 1 / 2


def choose_path(
    mask: MaskStrategy,
    batch: int,
    heads: int,
    queries: int,
    keys: int,
    positions_known: bool = True,
    normalizer: str = "softmax",
) -> str:
    """The path of :func:`sparse_attention` for a mask and shapes.

    Args:
        positions_known: whether positions are the default ones.
        normalizer: what makes weights of the kept scores.

    Returns:
        ``"dense"``, ``"masked"``, ``"chunked"``, ``"tiles"`` or ``"lists"``.

    Example:
        >>> from .mask_registry import parse_mask
        >>> [choose_path(parse_mask(spec), 4, 1, 2048, 2048) for spec in ("full", "banded:5", "topk:5")]
        ['dense', 'tiles', 'lists']
    """
    softmax = normalizer == "softmax"
    if torch.compiler.is_compiling():
        # One graph without branches on data or loops over chunks, for any length; compilers fuse what it does.
        return "dense" if softmax and isinstance(mask, Full) else "masked"
    structure = mask.structure(keys)
    if softmax and structure is not None and structure.rows >= keys:
        return "dense"
    small = batch * heads * queries * keys <= MOST_SCORES_KEPT
    otherwise = "masked" if small or not mask.row_by_row else "chunked"
    if structure is None or not positions_known or not softmax:
        return otherwise
    window = 0 if structure.window is None else 2 * structure.window + 1
    columns = len(structure.column_positions(keys))
    if not structure.selected and not structure.random:
        fits = window + columns <= LARGEST_SHARE_IN_TILES * keys
        return "tiles" if fits and keys >= SHORTEST_FOR_TILES else otherwise
    entries = structure.selected + sum(r for r, _ in structure.random) + window + columns
    fits = entries <= LARGEST_SHARE_LISTED * keys
    return "lists" if fits and keys >= SHORTEST_FOR_LISTS else otherwise


def sparse_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask_spec: str | MaskStrategy,
    valid: torch.Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    query_positions: torch.Tensor | None = None,
    key_positions: torch.Tensor | None = None,
    *,
    keep: torch.Tensor | None = None,
    mask_state: Any = None,
    normalizer: str = "softmax",
    return_weights: bool = False,
    path: str | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Masked attention, equal to :func:`reference_attention` and cheaper to train with.

    Selection and normalizer are accumulated in fp32 (fp64 for fp64 inputs), also under autocast. Which of two keys is
    selected whose scores differ by less than rounding may differ between paths; exact ties go to the lowest index in all
    of them. A NaN or +inf score makes its own row NaN and no other. A score of −inf has weight 0; a row whose kept
    scores are all −inf is NaN or 0, depending on the path.
    Gradients of gradients are only available from the reference.

    Args:
        query: ``(B, H, Q, T)`` floating point.
        key: ``(B, G, K, T)``, same dtype; G divides H, and key head g serves query heads gH/G … (g+1)H/G − 1.
        value: ``(B, G, K, T_v)``, same dtype.
        mask_spec: a specification such as ``"topk:5"``, or a strategy.
        valid: bool, broadcastable to ``(B, H, Q, K)``; False forbids a key. None: every key is valid.
        scale: factor on the scores; None: ``1 / sqrt(T)``.
        dropout: probability with which a weight is dropped, applied whenever it is above 0.
        query_positions, key_positions: see :meth:`MaskStrategy.__call__`.
        keep: what the mask keeps under `valid`, where the caller knows it already; used by the path ``masked``.
        mask_state: what the layer has learnt, for strategies that learn (:meth:`MaskState.read`).
        normalizer: what makes weights of the kept scores: "softmax", "entmax15" or "sparsemax", all exact.
        return_weights: also return the weights A ``(B, H, Q, K)``, before dropout, in the compute dtype, without a
            gradient.
        path: one of the five paths, where a test or a benchmark wants it; None: :func:`choose_path`.

    Returns:
        ``(B, H, Q, T_v)`` in the dtype of `query`, with the weights if asked for.

    Raises:
        ValueError: for shapes, dtypes or masks that do not fit, an unknown normalizer, or a path that mask or normalizer
            cannot take.

    Example:
        >>> q = k = torch.eye(3)[None, None]
        >>> sparse_attention(q, k, q, "topk:1").equal(q)
        True
    """
    check_attention_shapes(query, key, value)
    check_dropout(dropout)
    normalizer_named(normalizer)
    mask = parse_mask(mask_spec)
    scale = score_scale(query, scale)
    batch, heads, queries, _ = query.shape
    keys = key.shape[2]
    if valid is not None:
        valid = check_valid(valid, (batch, heads, queries, keys))
    given = query_positions is not None or key_positions is not None
    known = not given or _are_default(query_positions, key_positions, valid, queries, keys)
    if query.is_meta:
        path = "masked"  # there are no numbers to look at, and the other paths look: where the text begins, which keys tie
    if path is None:
        path = choose_path(mask, batch, heads, queries, keys, known, normalizer)
    elif path not in PATHS:
        raise ValueError(f"unknown path {path!r}; allowed: {', '.join(PATHS)}")
    elif normalizer != "softmax" and path not in ("masked", "chunked"):
        raise ValueError(f"attention with normalizer {normalizer!r} cannot take the path {path!r}")
    elif path in ("tiles", "lists"):
        _check_forced(path, mask, keys, known)
    if path == "dense":
        return _dense(query, key, value, mask, valid, scale, dropout, return_weights)
    if path in ("masked", "chunked") or query.numel() == 0 or keys == 0:
        attend = masked_attention if path != "chunked" or return_weights else _in_chunks
        output, weights = attend(
            query, key, value, mask, valid, scale, dropout, query_positions, key_positions,
            keep=keep, mask_state=mask_state, normalizer=normalizer, return_weights=return_weights,
        )  # fmt: skip
        return (output, weights) if return_weights else output  # type: ignore[return-value]
    start = max(keys - queries, 0)
    with without_autocast(query):
        precise = compute_dtype(query.dtype)
        q, k, v = (tensor.to(precise) for tensor in (query, key, value))
        shift = None if valid is None else _shift(valid)
        output, weights = _structured(path, q, k, v, mask, valid, scale, dropout, start, shift, return_weights)
    output = output.to(query.dtype)
    if not return_weights:
        return output
    if weights is None:
        with torch.no_grad():
            _, weights = reference_attention(query, key, value, mask, valid, scale, return_weights=True)
    return output, weights


def _shift(valid: torch.Tensor) -> torch.Tensor | None:
    """The index of position 0, int64 ``(B, 1, 1, 1)``; None: it is 0 everywhere."""
    first = first_valid_key(valid).unsqueeze(-1)
    return first if bool(first.any()) else None


def _structured(
    path: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: MaskStrategy,
    valid: torch.Tensor | None,
    scale: float,
    dropout: float,
    start: int,
    shift: torch.Tensor | None,
    return_weights: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """By tiles or lists, with the rows that keep every key in front."""
    batch, _, queries, _ = query.shape
    structure = mask.structure(key.shape[2])
    assert structure is not None, "a path that needs a structure was chosen without one"
    if shift is not None:
        shift = shift.expand(batch, 1, 1, 1)
    rows = 0
    if structure.rows:
        # Queries in front of the text have negative positions.
        last = structure.rows + (0 if shift is None else int(shift.max()))
        rows = min(queries, max(0, last - start))
    outputs, weights = [], []
    if rows:
        part = None if valid is None else valid if valid.shape[2] == 1 else valid[:, :, :rows]
        origin = 0 if shift is None else shift.view(-1, 1)
        positions = torch.arange(start, start + rows, device=query.device) - origin
        key_positions = torch.arange(key.shape[2], device=query.device) - origin
        dense = masked_attention(
            query[:, :, :rows], key, value, mask, part, scale, dropout, positions, key_positions,
            return_weights=return_weights,
        )  # fmt: skip
        outputs.append(dense[0])
        weights.append(dense[1])
    if rows < queries:
        part = valid if valid is None or valid.shape[2] == 1 else valid[:, :, rows:]
        rest = query[:, :, rows:] if rows else query
        if path == "tiles":
            output = attend_in_tiles(rest, key, value, mask, structure, part, scale, dropout, start + rows, shift)
            listed = None
        else:
            output, listed = attend_to_lists(
                rest, key, value, mask, structure, part, scale, dropout, start + rows, shift, return_weights
            )
        outputs.append(output)
        weights.append(listed)
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
    if any(piece is None for piece in weights):
        return output, None
    return output, torch.cat(weights, dim=2)  # type: ignore[arg-type]


def _check_forced(path: str, mask: MaskStrategy, keys: int, known: bool) -> None:
    structure = mask.structure(keys)
    selects = structure is not None and bool(structure.selected or structure.random)
    if structure is None or structure.rows >= keys or not known or selects != (path == "lists"):
        raise ValueError(f"attention with mask {str(mask)!r} cannot take the path {path!r}")


def _are_default(
    query_positions: torch.Tensor | None,
    key_positions: torch.Tensor | None,
    valid: torch.Tensor | None,
    queries: int,
    keys: int,
) -> bool:
    """Whether given positions are those that would be taken without them."""
    if torch.compiler.is_compiling() or any(
        given is not None and given.is_meta for given in (query_positions, key_positions)
    ):
        return False
    for given, count, start in ((query_positions, queries, max(keys - queries, 0)), (key_positions, keys, 0)):
        if given is None:
            continue
        if given.dim() not in (1, 2) or given.shape[-1] != count:
            return False  # the strategy says what is wrong
        steps = torch.arange(start, start + count, device=given.device)
        first = 0 if valid is None else first_valid_key(valid)[:, :, 0]
        if not bool((given == steps - first).all()):
            return False
    return True


def _dense(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: MaskStrategy,
    valid: torch.Tensor | None,
    scale: float,
    dropout: float,
    return_weights: bool,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Ordinary attention."""
    if _plain_products_win(query, key, dropout):
        output, weights = masked_attention(
            query, key, value, mask, valid, scale, dropout, return_weights=return_weights
        )
        return (output, weights) if return_weights else output  # type: ignore[return-value]
    heads = query.shape[1]
    key_, value_ = repeat_heads(key, heads), repeat_heads(value, heads)
    bare = valid
    if valid is not None:
        # A query with no valid key would be NaN in some kernels; it may look anywhere, and its output is dropped.
        nothing = ~valid.any(dim=-1, keepdim=True)
        bare = valid | nothing
    output = F.scaled_dot_product_attention(query, key_, value_, attn_mask=bare, dropout_p=dropout, scale=scale)
    if valid is not None:
        output = output.masked_fill(nothing, 0.0)
    if not return_weights:
        return output
    with torch.no_grad():
        _, weights = reference_attention(query, key, value, mask, valid, scale, return_weights=True)
    return output, weights


def _plain_products_win(query: torch.Tensor, key: torch.Tensor, dropout: float) -> bool:
    """Whether two batched products and a softmax cost less than PyTorch's fused kernel, on a CPU.

    The fused kernel has no dropout there, and what stands in for it copies more than ours does. And where products go to
    oneDNN (see ``products.py``), the kernel's own are slow on short rows.
    """
    if query.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    allowed = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
    onednn = query.dtype == torch.float32 and allowed == "bf16"
    return dropout > 0 or (onednn and key.shape[2] <= LONGEST_PLAIN)


def _in_chunks(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: MaskStrategy,
    valid: torch.Tensor | None,
    scale: float,
    dropout: float,
    query_positions: torch.Tensor | None,
    key_positions: torch.Tensor | None,
    *,
    keep: torch.Tensor | None,
    mask_state: Any,
    normalizer: str,
    return_weights: bool,
) -> tuple[torch.Tensor, None]:
    """As `masked`, some queries at a time, which are computed again when gradients are."""
    batch, heads, queries, _ = query.shape
    keys = key.shape[2]
    step = max(1, 16 * CHUNK_SCORES.get(query.device.type, CHUNK_SCORES_ELSEWHERE) // (batch * heads * keys))
    first = 0 if valid is None else first_valid_key(valid)[:, :, 0]
    if query_positions is None:
        query_positions = torch.arange(queries, device=query.device) + max(keys - queries, 0) - first
    if key_positions is None:
        key_positions = torch.arange(keys, device=query.device) - first
    outputs = []
    for low in range(0, queries, step):
        rows = slice(low, low + step)

        def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rows: slice = rows) -> torch.Tensor:
            part = valid if valid is None or valid.shape[2] == 1 else valid[:, :, rows]
            known = keep if keep is None or keep.shape[2] == 1 else keep[:, :, rows]
            return masked_attention(
                query, key, value, mask, part, scale, dropout, query_positions[..., rows], key_positions,
                keep=known, mask_state=mask_state, normalizer=normalizer,
            )[0]  # fmt: skip

        outputs.append(checkpoint(attend, query[:, :, rows], key, value, use_reentrant=False))
    return torch.cat(outputs, dim=2), None
