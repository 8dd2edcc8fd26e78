"""A split as tensors: what a step needs is an index, not a list of Python rows."""

from collections.abc import Sequence

import numpy as np
import torch
from datasets import Dataset as ArrowDataset
from torch.utils.data import Dataset


class TensorRows(Dataset):
    """A split held as tensors, padded on the right once; a batch is one indexing.

    Args:
        split: rows with `input_ids` (lists) and `labels` (an int, or a list aligned with `input_ids`).
        pad_token_id: what fills `input_ids` after the end of a row; labels are filled with −100.

    `rows[indices]` gives `input_ids` (B, L) int64, `labels` (B,) or (B, L) int64 and, only where some row of the batch is
    padded, `attention_mask` (B, L) int64. L is the longest row of the batch.
    """

    def __init__(self, split: ArrowDataset, pad_token_id: int):
        table = split.with_format("arrow")[:]
        self.input_ids, self.lengths = _padded(table["input_ids"], pad_token_id)
        labels = table["labels"].combine_chunks()
        if hasattr(labels, "flatten") and str(labels.type).startswith(("list", "large_list", "fixed_size_list")):
            self.labels, _ = _padded(table["labels"], -100)
        else:
            self.labels = torch.from_numpy(labels.to_numpy(zero_copy_only=False).astype(np.int64))
        self.any_padding = bool((self.lengths < self.input_ids.shape[1]).any())

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def per_token(self) -> bool:
        """Whether each row has a label a token (sequence-output tasks) instead of one label."""
        return self.labels.ndim == 2

    def batch(self, index: slice | torch.Tensor) -> dict[str, torch.Tensor]:
        """The batch at `index`, trimmed to its longest row."""
        if not self.any_padding:
            return {"input_ids": self.input_ids[index], "labels": self.labels[index]}
        lengths = self.lengths[index]
        longest = int(lengths.max())
        batch = {"input_ids": self.input_ids[index][:, :longest]}
        batch["labels"] = self.labels[index][:, :longest] if self.per_token else self.labels[index]
        if bool((lengths < longest).any()):
            batch["attention_mask"] = (torch.arange(longest) < lengths[:, None]).long()
        return batch

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {name: value[0] for name, value in self.batch(slice(index, index + 1)).items()}

    def __getitems__(self, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        """One batch for a whole list of indices: torch's DataLoader calls this when it is there."""
        return self.batch(torch.tensor(indices))


def already_batched(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The collator for `TensorRows`, whose `__getitems__` has made the batch."""
    return batch


def _padded(column, fill: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A column of lists as one (N, L) int64 tensor padded with `fill`, and the lists' lengths (N,)."""
    column = column.combine_chunks()
    lengths = column.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
    longest = int(lengths.max())
    values = column.flatten().to_numpy(zero_copy_only=False).astype(np.int64)
    padded = np.full((len(lengths), longest), fill, dtype=np.int64)
    padded[np.arange(longest) < lengths[:, None]] = values
    return torch.from_numpy(padded), torch.from_numpy(lengths)
