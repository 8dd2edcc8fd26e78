"""Collators: rows of a task to one padded batch of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import torch

from .core.task import IGNORED


class TaskCollator:
    """Rows of a task to a batch, padded on the right: for ``Trainer(data_collator=…)`` or a ``DataLoader``.

    Whether the labels are one class a row or one a token follows from the rows.

    Args:
        tokenizer: a tokenizer, of which only ``pad_token_id`` is used, or that id itself.

    Example:
        >>> TaskCollator(0)([{"input_ids": [4, 5], "labels": 1}, {"input_ids": [5], "labels": 0}])["input_ids"].tolist()
        [[4, 5], [5, 0]]
    """

    def __init__(self, tokenizer: Any = 0) -> None:
        pad = tokenizer if isinstance(tokenizer, int) else getattr(tokenizer, "pad_token_id", None)
        if pad is None:
            raise ValueError(
                f"TaskCollator needs a tokenizer with a padding token, or a padding id, got {tokenizer!r}"
            )
        self.pad_token_id = pad

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Collate rows.

        Returns:
            ``input_ids`` int64 ``(B, L)``; ``labels``, where the rows have them, int64 ``(B,)`` or ``(B, L)`` padded with −100; and
            ``attention_mask`` int64 ``(B, L)`` only if some row is padded.
        """
        if not rows:
            raise ValueError("cannot collate an empty batch")
        lengths = [len(row["input_ids"]) for row in rows]
        batch = {"input_ids": _pad([row["input_ids"] for row in rows], lengths, self.pad_token_id)}
        if min(lengths) < max(lengths):
            position = torch.arange(max(lengths))
            batch["attention_mask"] = (position < torch.tensor(lengths)[:, None]).long()
        if "labels" in rows[0]:
            labels = [row["labels"] for row in rows]
            first = labels[0]
            a_token = isinstance(first, Sequence) or getattr(first, "ndim", 0) > 0
            batch["labels"] = _pad(labels, lengths, IGNORED) if a_token else torch.tensor([int(x) for x in labels])
        return batch


def _pad(rows: Sequence[Any], lengths: Sequence[int], value: int) -> torch.Tensor:
    """Rows of integers (lists, arrays or tensors) as one int64 tensor, filled up with ``value``."""
    width = max(lengths)
    if any(len(row) != length for row, length in zip(rows, lengths, strict=True)):
        raise ValueError("a row's labels must be as many as its input_ids")
    if isinstance(rows[0], list):
        if min(lengths) == width:
            return torch.tensor(list(chain.from_iterable(rows)), dtype=torch.long).view(len(rows), width)
        return torch.tensor([row + [value] * (width - len(row)) for row in rows], dtype=torch.long)
    out = torch.full((len(rows), width), value, dtype=torch.long)
    for target, row, length in zip(out, rows, lengths, strict=True):
        target[:length] = torch.as_tensor(row)
    return out
