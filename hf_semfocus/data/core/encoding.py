"""Rows as Arrow columns: text, target, input ids, labels, length (and depth for trees), built without a Python loop over rows."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa

from .task import IGNORED, Batch, Task

PAD, UNK, CLS, MASK = "[PAD]", "[UNK]", "[CLS]", "[MASK]"
SPECIAL_TOKENS = (PAD, UNK, CLS, MASK)
QUERY = "[Q]"
POOLINGS = ("mean", "cls", "last")


def token_table(task: Task) -> tuple[str, ...]:
    """A task's whole vocabulary by token id: special tokens, ``[Q]`` for sequence outputs, then the input symbols."""
    query = (QUERY,) if task.kind == "token_classification" else ()
    return (*SPECIAL_TOKENS, *query, *task.vocabulary)


@lru_cache(maxsize=64)
def _cells(symbols: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each symbol with a space behind it, then each without, then nothing: bytes, which of them count, and how many do.

    Bytes and marks are packed eight to a uint64, ``(2 V + 1, words)``, so that a symbol is one gather.
    """
    encoded = [f"{symbol} ".encode() for symbol in symbols] + [symbol.encode() for symbol in symbols] + [b""]
    width = -(-max(map(len, encoded)) // 8) * 8
    counts = np.array([len(cell) for cell in encoded])
    cells = np.frombuffer(b"".join(cell.ljust(width) for cell in encoded), dtype=np.uint64).reshape(len(encoded), -1)
    marks = np.ascontiguousarray(np.arange(width) < counts[:, None]).view(np.uint64)
    return cells, marks, counts


def join_symbols(numbers: np.ndarray, lengths: np.ndarray, symbols: tuple[str, ...]) -> pa.StringArray:
    """Texts of rows of symbol numbers, separated by single spaces.

    Args:
        numbers: uint8 or int64 ``(B, N)``.
        lengths: int64 ``(B,)``, at least 1: how many numbers of a row count.
        symbols: the text of each number.
    """
    rows, width = numbers.shape
    cells, marks, counts = _cells(symbols)
    if counts.max() == 2 and rows and lengths.min() == width:
        body = np.full((rows, 2 * width), ord(" "), dtype=np.uint8)
        body[:, 0::2] = cells.view(np.uint8)[:, 0][numbers]
        data = np.ascontiguousarray(body[:, :-1]).reshape(-1)
        offsets = np.arange(0, (rows + 1) * (2 * width - 1), 2 * width - 1, dtype=np.int32)
    else:
        index = numbers.astype(np.int64)
        if rows:
            index[np.arange(width) >= lengths[:, None]] = 2 * len(symbols)
            index[np.arange(rows), lengths - 1] += len(symbols)
        data = cells[index].view(np.uint8).reshape(-1)[marks[index].view(bool).reshape(-1)]
        offsets = np.zeros(rows + 1, dtype=np.int32)
        np.cumsum(counts[index].sum(axis=1), out=offsets[1:])
    return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(data))


def _list_array(values: np.ndarray, lengths: np.ndarray) -> pa.ListArray:
    rows, width = values.shape
    if rows and lengths.min() == width:
        offsets = np.arange(0, (rows + 1) * width, width, dtype=np.int32)
        flat = values.reshape(-1)
    else:
        offsets = np.zeros(rows + 1, dtype=np.int32)
        np.cumsum(lengths, out=offsets[1:])
        flat = values[np.arange(width) < lengths[:, None]]
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat))


def encode(task: Task, batch: Batch, pooling: str = "mean") -> pa.Table:
    """The columns of DESIGN §3 for a batch of inputs.

    Args:
        task: the task.
        batch: inputs, see :class:`~.task.Batch`.
        pooling: ``"cls"`` puts ``[CLS]`` in front of the ids; ``"mean"`` and ``"last"`` add nothing.

    Returns:
        A table with ``text``, ``target``, ``input_ids`` (list of int32), ``labels`` (int64, or a list of int64), ``length`` (int32) and,
        for tasks with trees, ``depth`` (int32).
    """
    rows = len(batch)
    answers = task.answer_batch(batch)
    lead = int(pooling == "cls")
    first_symbol = len(token_table(task)) - len(task.vocabulary)
    width = batch.tokens.shape[1]
    lengths = batch.lengths
    columns = {"text": join_symbols(batch.tokens, lengths, task.vocabulary)}
    if task.kind == "sequence_classification":
        ids = np.full((rows, lead + width), SPECIAL_TOKENS.index(CLS), dtype=np.int32)
        np.add(batch.tokens, first_symbol, out=ids[:, lead:], dtype=np.int32)
        columns["target"] = pa.array(task.labels).take(pa.array(answers))
        columns["input_ids"] = _list_array(ids, lengths + lead)
        columns["labels"] = pa.array(answers)
    else:
        columns["target"] = join_symbols(np.maximum(answers, 0), (answers != IGNORED).sum(axis=1), task.labels)
        outputs = answers.shape[1]
        total = lead + width + outputs
        ids = np.full((rows, total), SPECIAL_TOKENS.index(CLS), dtype=np.int32)
        labels = np.full((rows, total), IGNORED, dtype=np.int64)
        np.add(batch.tokens, first_symbol, out=ids[:, lead : lead + width], dtype=np.int32)
        query = len(SPECIAL_TOKENS)
        if rows and lengths.min() < width:
            output_lengths = np.array([task.output_length(n) for n in range(width + 1)])[lengths]
            start = lead + lengths[:, None]
            ids[np.arange(total) >= start] = query
            column = start + np.arange(outputs)
            inside = np.arange(outputs) < output_lengths[:, None]
            labels[np.nonzero(inside)[0], column[inside]] = answers[inside]
        else:
            output_lengths = np.full(rows, outputs)
            ids[:, lead + width :] = query
            labels[:, lead + width :] = answers
        columns["input_ids"] = _list_array(ids, lead + lengths + output_lengths)
        columns["labels"] = _list_array(labels, lead + lengths + output_lengths)
    columns["length"] = pa.array(lengths.astype(np.int32))
    if task.has_depth:
        columns["depth"] = pa.array(task.depth(batch).astype(np.int32))
    return pa.table(columns)
