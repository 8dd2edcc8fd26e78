"""The ListOps grammar of Long Range Arena: symbols, tree probabilities, values and depth of token rows."""

from __future__ import annotations

import numpy as np

OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
SYMBOLS = (*map(str, range(10)), *OPERATORS, "]")
MIN, MAX, MED, SUM, CLOSE = range(10, 15)
DIGITS = 10

# Long Range Arena's tree: a node above the deepest level is an operator with probability 1/4, else a uniform digit; an operator has a
# uniform number of arguments from 2 to 10. The root has depth 1; a node at depth 10 is a digit.
OPERATOR_PROBABILITY = 0.25
MIN_ARGUMENTS, MAX_ARGUMENTS = 2, 10
MAX_DEPTH = 10

_NO_ARGUMENT = 127


def node_depths(tokens: np.ndarray) -> np.ndarray:
    """Depth of the node that each token opens or closes, the root's being 1: uint8 ``(B, N)`` → int8 ``(B, N)``.

    ``[MAX 2 [MIN 4 7 ] ]`` gives 1 2 2 3 3 2 1. Digits behind a row's end count as depth 1.
    """
    opens = (tokens >= MIN) & (tokens < CLOSE)
    closes = tokens == CLOSE
    inside = np.cumsum(opens.view(np.int8) - closes.view(np.int8), axis=1, dtype=np.int8)
    # After its own token a digit's depth is one below its operator's; brackets stand at their node's own depth.
    return inside + (~opens).view(np.int8)


def tree_depth(tokens: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Depth of each row's tree in nodes, 1 for a lone digit: int64 ``(B,)``; ``[MAX 2 [MIN 4 7 ] ]`` has 3."""
    return node_depths(tokens).max(axis=1, initial=1).astype(np.int64)


def evaluate(tokens: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Values of ListOps rows, from the innermost lists outwards.

    MIN and MAX as named, SM the sum modulo 10, MED the median, for an even count the mean of the middle two, truncated.

    Args:
        tokens: uint8 ``(B, N)``, well-formed rows over ``SYMBOLS``; behind a row's length any digit.
        lengths: int64 ``(B,)``.

    Returns:
        int64 ``(B,)`` values from 0 to 9; ``[MAX 2 9 [MIN 4 7 ] 0 ]`` gives 9.
    """
    rows, width = tokens.shape
    depths = node_depths(tokens)
    flat = tokens.reshape(-1)
    # Nodes in reading order: digits and opening brackets. Padding has depth 1, like a root, and a row's root is its first token.
    nodes = np.flatnonzero(flat != CLOSE)
    symbol = flat[nodes]
    depth = depths.reshape(-1)[nodes]
    value = symbol.astype(np.int8)
    if rows == 0:
        return np.empty(0, dtype=np.int64)
    # Sorted by depth (stable), the nodes of one depth stand in reading order, so the arguments of one operator stand side by side.
    order = np.argsort(depth, kind="stable")
    ends = np.searchsorted(depth[order], np.arange(1, int(depth.max()) + 2), side="left")
    for level in range(int(depth.max()) - 1, 0, -1):
        here = order[ends[level - 1] : ends[level]]
        operators = here[symbol[here] >= MIN]
        arguments = order[ends[level] : ends[level + 1] if level + 1 < len(ends) else len(order)]
        if not len(operators):
            continue
        # The operator of an argument is the last one at this level that opened before it.
        parent = np.searchsorted(operators, arguments, side="right") - 1
        first = np.searchsorted(parent, np.arange(len(operators)), side="left")
        rank = np.arange(len(arguments)) - first[parent]
        table = np.full((len(operators), MAX_ARGUMENTS), _NO_ARGUMENT, dtype=np.int8)
        table[parent, rank] = value[arguments]
        value[operators] = _apply(symbol[operators], table, np.bincount(parent, minlength=len(operators)))
    return value[np.searchsorted(nodes, np.arange(rows) * width)].astype(np.int64)


def _apply(symbol: np.ndarray, table: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Values of operators with their arguments in ``table`` int8 ``(K, 10)``, filled up with 127."""
    out = np.empty(len(symbol), dtype=np.int8)
    chosen = np.flatnonzero(symbol == MIN)
    out[chosen] = table[chosen].min(axis=1, initial=_NO_ARGUMENT)
    chosen = np.flatnonzero(symbol == MAX)
    out[chosen] = np.where(table[chosen] == _NO_ARGUMENT, -1, table[chosen]).max(axis=1, initial=-1)
    chosen = np.flatnonzero(symbol == SUM)
    out[chosen] = np.where(table[chosen] == _NO_ARGUMENT, 0, table[chosen]).sum(axis=1, dtype=np.int16) % 10
    chosen = np.flatnonzero(symbol == MED)
    ordered = np.sort(table[chosen], axis=1)
    count = counts[chosen]
    row = np.arange(len(chosen))
    out[chosen] = (ordered[row, (count - 1) // 2].astype(np.int16) + ordered[row, count // 2]) // 2
    return out
