"""The one counter-based generator behind every row: a slab of Philox counters per (row, candidate).

Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) is a pure function of a 128-bit key and a
256-bit counter, and NumPy ships it. Block ``j`` (four 64-bit words) of candidate ``c`` of row ``i`` is the value at the counter
``(i * blocks + j + 1, 0, c, 0)``, so any row can be remade alone and neighbouring rows come out of one call.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

_MULTIPLIERS = (np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157))
_KEY_STEPS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_WORDS_A_BLOCK = 4
# Below this many blocks a row, the vectorised NumPy rounds beat one seek of the C generator per row.
_SEEK_FROM_BLOCKS = 12
_CHUNK = 4096
# One run of the C generator over so many times the wanted rows is still cheaper than picking them out one by one.
_DENSE, _DENSE_LONG = 8, 1.2


def stream_key(*identity: Any) -> tuple[int, int]:
    """The 128-bit Philox key of a stream, a stable hash of what identifies it.

    Args:
        identity: strings, numbers, tuples; anything that JSON can write.

    Returns:
        Two integers in ``[0, 2**64)``, the same on every platform and for every ``PYTHONHASHSEED``.
    """
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    digest = hashlib.blake2b(text.encode(), digest_size=16, person=b"hf_semfocus").digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


def _multiply(multiplier: np.uint64, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """High and low halves of a 64 × 64-bit product."""
    m_low, m_high = multiplier & _LOW, multiplier >> _HALF
    v_low, v_high = value & _LOW, value >> _HALF
    middle = m_high * v_low + ((m_low * v_low) >> _HALF)
    low_carry = m_low * v_high + (middle & _LOW)
    return m_high * v_high + (middle >> _HALF) + (low_carry >> _HALF), multiplier * value


def philox_blocks(key: tuple[int, int], counter_0: np.ndarray, counter_2: np.ndarray) -> np.ndarray:
    """Philox4x64-10 at the counters ``(counter_0, 0, counter_2, 0)``.

    Args:
        key: the 128-bit key as two integers.
        counter_0, counter_2: uint64 arrays of one shape ``(N,)``.

    Returns:
        uint64 array ``(N, 4)``.
    """
    x0, x2 = counter_0, counter_2
    x1 = np.zeros_like(x0)
    x3 = np.zeros_like(x0)
    k0, k1 = key
    for _ in range(10):
        high0, low0 = _multiply(_MULTIPLIERS[0], x0)
        high1, low1 = _multiply(_MULTIPLIERS[1], x2)
        x0, x1, x2, x3 = high1 ^ x1 ^ np.uint64(k0), low1, high0 ^ x3 ^ np.uint64(k1), low0
        k0 = (k0 + _KEY_STEPS[0]) & 0xFFFFFFFFFFFFFFFF
        k1 = (k1 + _KEY_STEPS[1]) & 0xFFFFFFFFFFFFFFFF
    return np.stack([x0, x1, x2, x3], axis=1)


class RowStream:
    """Random 64-bit words for the candidates of the rows of one split.

    Args:
        key: see :func:`stream_key`.
        words: how many words a candidate may use, at least 1.
    """

    def __init__(self, key: tuple[int, int], words: int) -> None:
        self.key = key
        self.word_count = words
        self.blocks = -(-words // _WORDS_A_BLOCK)
        self._generator = np.random.Philox(key=np.array(key, dtype=np.uint64))
        self._state: Any = self._generator.state

    def _run(self, row: int, candidate: int, rows: int) -> np.ndarray:
        counter = np.array([row * self.blocks, 0, candidate, 0], dtype=np.uint64)
        self._state["state"] = {"counter": counter, "key": self._state["state"]["key"]}
        self._generator.state = self._state
        return self._generator.random_raw(rows * self.blocks * _WORDS_A_BLOCK).reshape(rows, -1)

    def words(self, rows: np.ndarray, candidates: np.ndarray | int) -> np.ndarray:
        """The words of one candidate of each given row.

        Args:
            rows: int64 array ``(N,)`` of row numbers.
            candidates: int64 array ``(N,)``, or one number for all rows.

        Returns:
            uint64 array ``(N, words)``; a row's words do not depend on the other rows of the call.
        """
        count = len(rows)
        if np.ndim(candidates) == 0 and count:
            first, last = int(rows.min()), int(rows.max())
            worth = _DENSE if self.blocks < _SEEK_FROM_BLOCKS else _DENSE_LONG
            if last - first + 1 <= count * worth:
                run = self._run(first, int(candidates), last - first + 1)
                if last - first + 1 > count or rows[0] != first or (count > 1 and (np.diff(rows) != 1).any()):
                    run = run[rows - first]
                return run[:, : self.word_count]
        candidates = np.broadcast_to(np.asarray(candidates, dtype=np.int64), (count,))
        if self.blocks >= _SEEK_FROM_BLOCKS:
            out = np.empty((count, self.blocks * _WORDS_A_BLOCK), dtype=np.uint64)
            for index, (row, candidate) in enumerate(zip(rows.tolist(), candidates.tolist(), strict=True)):
                out[index] = self._run(row, candidate, 1)[0]
            return out[:, : self.word_count]
        start_of_row = rows.astype(np.uint64) * np.uint64(self.blocks) + np.uint64(1)
        counter_0 = (start_of_row[:, None] + np.arange(self.blocks, dtype=np.uint64)).reshape(-1)
        counter_2 = np.repeat(candidates.astype(np.uint64), self.blocks)
        parts = [
            philox_blocks(self.key, counter_0[start : start + _CHUNK], counter_2[start : start + _CHUNK])
            for start in range(0, len(counter_0), _CHUNK)
        ]
        out = np.concatenate(parts) if parts else np.empty((0, _WORDS_A_BLOCK), dtype=np.uint64)
        return out.reshape(count, -1)[:, : self.word_count]
