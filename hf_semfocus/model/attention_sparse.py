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

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from .attention_call import AttentionCall
from .attention_lists import CHUNK_SCORES, CHUNK_SCORES_ELSEWHERE, attend_to_lists
from .attention_masked import masked_attention
from .attention_reference import attend_by_reference, repeat_heads
from .attention_tiles import attend_in_tiles
from .mask_base import MaskStrategy
from .mask_inputs import compute_dtype, first_valid_key, without_autocast
from .mask_positions import Full

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
    structure = mask.known_structure(keys)
    if softmax and structure is not None and structure.rows >= keys and (positions_known or not mask.counts_queries):
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
    call = AttentionCall.checked(
        query, key, value, mask_spec, valid, scale, dropout, query_positions, key_positions,
        keep=keep, mask_state=mask_state, normalizer=normalizer, return_weights=return_weights,
    )  # fmt: skip
    output, weights = attend(call, path)
    return (output, weights) if return_weights else output  # type: ignore[return-value]


def attend(call: AttentionCall, path: str | None = None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Output of :func:`sparse_attention`, and the weights or None.

    Soft caps, sinks and biases, which may need a gradient, are rare: the reference has one for all of them.
    """
    if call.bias is not None or call.softcap is not None or call.sink_logits is not None:
        output, weights = attend_by_reference(call)
        return output, weights if call.return_weights else None
    if call.query.is_meta:
        path = "masked"  # there are no numbers to look at, and the other paths look: where the text begins, which keys tie
    known = _positions_are_default(call)
    if path is None:
        path = choose_path(call.mask, *call.shape, known, call.normalizer)
    else:
        _check_forced(path, call, known)
    if path == "dense":
        return _dense(call)
    if path == "masked" or 0 in call.shape or (path == "chunked" and call.return_weights):
        return masked_attention(call)
    call = call.located()
    return (_in_chunks(call), None) if path == "chunked" else _structured(path, call)


def _structured(path: str, call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor | None]:
    """By tiles or lists, with the rows that keep every key in front."""
    _, _, queries, keys = call.shape
    dtype = call.query.dtype
    structure = call.mask.known_structure(keys)
    assert structure is not None, "a path that needs a structure was chosen without one"
    with without_autocast(call.query):
        tensors = {name: getattr(call, name).to(compute_dtype(dtype)) for name in ("query", "key", "value")}
        shift = call.shift if call.shift is not None and bool(call.shift.any()) else None
        call = dataclasses.replace(call, shift=shift, **tensors)
        rows = 0
        if structure.rows:
            # Queries in front of the text have negative positions.
            last = structure.rows + (0 if shift is None else int(shift.max()))
            rows = min(queries, max(0, last - call.first_query))
        pieces = [masked_attention(call.with_positions().part(slice(0, rows)))] if rows else []
        if rows < queries:
            rest = call.part(slice(rows, None)) if rows else call
            if path == "tiles":
                pieces.append((attend_in_tiles(rest, structure), None))
            else:
                pieces.append(attend_to_lists(rest, structure))
        outputs, weights = zip(*pieces, strict=True)
        output = (outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)).to(dtype)
        if not call.return_weights:
            return output, None
        if path == "lists":
            return output, torch.cat(weights, dim=2)
        return output, _weights(call)


def _weights(call: AttentionCall) -> torch.Tensor | None:
    """The weights before dropout, without gradient. Nothing is drawn, so asking for them changes no later dropout."""
    with torch.no_grad():
        return attend_by_reference(dataclasses.replace(call, dropout=0.0))[1]


def _check_forced(path: str, call: AttentionCall, known: bool) -> None:
    """Raise ``ValueError`` unless a path that the caller wants gives what the reference gives."""
    if path not in PATHS:
        raise ValueError(f"unknown path {path!r}; allowed: {', '.join(PATHS)}")
    if path in ("masked", "chunked"):
        return
    if call.normalizer != "softmax":
        raise ValueError(f"attention with normalizer {call.normalizer!r} cannot take the path {path!r}")
    structure, keys = call.mask.known_structure(call.shape[3]), call.shape[3]
    if structure is None:
        fits = False
    elif structure.rows >= keys:
        fits = path == "dense" and (known or not call.mask.counts_queries)
    else:
        fits = known and path == ("lists" if structure.selected or structure.random else "tiles")
    if not fits:
        raise ValueError(f"attention with mask {str(call.mask)!r} cannot take the path {path!r}")


def _positions_are_default(call: AttentionCall) -> bool:
    """Whether the positions that were given are those that would be taken without them."""
    _, _, queries, keys = call.shape
    for given, count, start in ((call.query_positions, queries, call.first_query), (call.key_positions, keys, 0)):
        if given is None:
            continue
        if torch.compiler.is_compiling() or given.is_meta:
            return False
        if given.dim() not in (1, 2) or given.shape[-1] != count:
            return False  # the strategy says what is wrong
        steps = torch.arange(start, start + count, device=given.device)
        first = 0 if call.valid is None else first_valid_key(call.valid)[:, :, 0]
        if not bool((given == steps - first).all()):
            return False
    return True


def _dense(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Ordinary attention."""
    query, valid = call.query, call.valid
    if _plain_products_win(query, call.key, call.dropout):
        return masked_attention(call)
    key, value = (repeat_heads(tensor, query.shape[1]) for tensor in (call.key, call.value))
    bare = valid
    if valid is not None:
        # A query with no valid key would be NaN in some kernels; it may look anywhere, and its output is dropped.
        nothing = ~valid.any(dim=-1, keepdim=True)
        bare = valid | nothing
    output = F.scaled_dot_product_attention(
        query, key, value, attn_mask=bare, dropout_p=call.dropout, scale=call.scale
    )
    if valid is not None:
        output = output.masked_fill(nothing, 0.0)
    if not call.return_weights:
        return output, None
    return output, _weights(call)


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


def _in_chunks(call: AttentionCall) -> torch.Tensor:
    """As `masked`, some queries at a time, which are computed again when gradients are."""
    batch, heads, queries, keys = call.shape
    step = max(1, 16 * CHUNK_SCORES.get(call.query.device.type, CHUNK_SCORES_ELSEWHERE) // (batch * heads * keys))
    parts = [call.with_positions().part(slice(low, low + step)) for low in range(0, queries, step)]
    # The tensors are arguments, so that `checkpoint` knows the device whose random numbers it has to repeat.
    outputs = [checkpoint(_attend_part, p.query, p.key, p.value, p, use_reentrant=False) for p in parts]
    return torch.cat(outputs, dim=2)


def _attend_part(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, part: AttentionCall) -> torch.Tensor:
    return masked_attention(dataclasses.replace(part, query=query, key=key, value=value))[0]
