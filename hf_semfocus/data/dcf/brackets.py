"""Bracket expressions modulo 5: the reference distribution by uniform splits, drawn level by level, and their values.

An expression of length 1, 2, 3 or 4 is ``d``, ``- d``, ``( d )`` or ``( - d )``. A longer one is ``( left op right )``: left and
right have lengths of at least 1 that sum to n−3, left's uniform, and op is uniform.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from ..core.draws import bounded

SYMBOLS = ("0", "1", "2", "3", "4", "+", "-", "*", "(", ")")
PLUS, MINUS, TIMES, OPEN, CLOSE = 5, 6, 7, 8, 9
MODULUS = 5
_NO_OPERATOR = 0


def sample_brackets(draws: np.ndarray, length: int, operators: int, tokens: np.ndarray) -> None:
    """Write one expression of ``length`` tokens into each row.

    The draw of a token is found by its place: a digit or an operator by its own position, a split by its opening bracket's. So a row
    does not depend on the order in which the levels of a batch are worked off.

    Args:
        draws: uint32 ``(B, >= length)``.
        length: at least 1.
        operators: 2 for + and −, 3 for * too.
        tokens: uint8 ``(B, >= length)``, written in place.
    """
    rows = len(tokens)
    tokens[:, :length] = bounded(draws[:, :length], MODULUS)
    row = np.arange(rows)
    start = np.zeros(rows, dtype=np.int64)
    size = np.full(rows, length, dtype=np.int64)
    while len(row):
        bracketed = size >= 3
        tokens[row[bracketed], start[bracketed]] = OPEN
        tokens[row[bracketed], start[bracketed] + size[bracketed] - 1] = CLOSE
        for form, offset in ((2, 0), (4, 1)):
            negative = size == form
            tokens[row[negative], start[negative] + offset] = MINUS
        split = size > 4
        row, start, size = row[split], start[split], size[split]
        left = 1 + bounded(draws[row, start], size - 4)
        operator = start + 1 + left
        tokens[row, operator] = PLUS + bounded(draws[row, operator], operators)
        row = np.concatenate([row, row])
        start = np.concatenate([start + 1, operator + 1])
        size = np.concatenate([left, size - 3 - left])


def evaluate(tokens: np.ndarray) -> np.ndarray:
    """Values mod 5 of expressions of one length, by one pass with a stack of pending left operands.

    Args:
        tokens: uint8 ``(B, N)``, well-formed expressions over ``SYMBOLS``.

    Returns:
        int64 ``(B,)``.
    """
    rows = len(tokens)
    depths = int(nesting(tokens).max(initial=0)) + 1
    # By depth first, so that one depth of all rows is contiguous. `value` is the operand read so far, `pending` its operator.
    value = np.zeros((depths, rows), dtype=np.int16)
    pending = np.zeros((depths, rows), dtype=np.uint8)
    has_value = np.zeros((depths, rows), dtype=bool)
    value_flat, pending_flat, has_flat = value.reshape(-1), pending.reshape(-1), has_value.reshape(-1)
    row = np.arange(rows)
    cell = row.copy()
    negative = np.zeros(rows, dtype=bool)
    for token in np.ascontiguousarray(tokens.T):
        opens = token == OPEN
        if opens.any():
            cell = np.where(opens, cell + rows, cell)
            has_flat[cell[opens]] = False
            pending_flat[cell[opens]] = _NO_OPERATOR
        operator = (token >= PLUS) & (token <= TIMES)
        if operator.any():
            at = cell[operator]
            # An operator without a value on its left, or right after another operator, is the sign of the next digit.
            sign = ~has_flat[at] | (pending_flat[at] != _NO_OPERATOR)
            negative[row[operator][sign]] = True
            pending_flat[at[~sign]] = token[operator][~sign]
        closes = token == CLOSE
        operand = np.where(negative, -token.astype(np.int16), token.astype(np.int16))
        operand[closes] = value_flat[cell[closes]]
        cell = np.where(closes, cell - rows, cell)
        reduces = np.flatnonzero(closes | (token < MODULUS))
        at, right = cell[reduces], operand[reduces]
        waiting, left = pending_flat[at], value_flat[at]
        result = np.where(waiting == PLUS, left + right, np.where(waiting == MINUS, left - right, left * right))
        value_flat[at] = np.where(waiting == _NO_OPERATOR, right, result) % MODULUS
        has_flat[at] = True
        pending_flat[at] = _NO_OPERATOR
        negative[reduces] = False
    return value[0].astype(np.int64)


def nesting(tokens: np.ndarray) -> np.ndarray:
    """The deepest nesting of brackets in each row: uint8 ``(B, N)`` → int64 ``(B,)``; ``( ( 1 - 3 ) + 4 )`` has 2."""
    steps = (tokens == OPEN).astype(np.int16) - (tokens == CLOSE)
    return np.cumsum(steps, axis=1, dtype=np.int16).max(axis=1, initial=0).astype(np.int64)


@lru_cache(maxsize=32)
def skeletons(length: int, operators: int) -> tuple[tuple[int, int], ...]:
    """How many shapes (digits left open) an expression of this length has, by its number of digits: ``((digits, shapes), …)``."""
    tables: list[dict[int, int]] = [{}]
    for size in range(1, length + 1):
        if size <= 4:
            tables.append({1: 1})
            continue
        table: dict[int, int] = {}
        for left in range(1, size - 3):
            for left_digits, left_shapes in tables[left].items():
                for right_digits, right_shapes in tables[size - 3 - left].items():
                    digits = left_digits + right_digits
                    table[digits] = table.get(digits, 0) + operators * left_shapes * right_shapes
        tables.append(table)
    return tuple(sorted(tables[length].items()))


def enumerate_brackets(length: int, operators: int) -> Iterator[tuple[int, ...]]:
    """Every expression of this length, once each, as symbol numbers."""
    if length <= 4:
        for digit in range(MODULUS):
            inner = (digit,) if length % 2 else (MINUS, digit)
            yield inner if length < 3 else (OPEN, *inner, CLOSE)
        return
    for left_length in range(1, length - 3):
        for left in enumerate_brackets(left_length, operators):
            for right in enumerate_brackets(length - 3 - left_length, operators):
                for operator in range(PLUS, PLUS + operators):
                    yield (OPEN, *left, operator, *right, CLOSE)
