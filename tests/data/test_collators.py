"""Collators: right padding, a mask only where needed, −100 on what is not labelled."""

import numpy as np
import pytest
import torch

from hf_semfocus.data import TaskCollator, build_tokenizer

from .rows import split_rows


def test_sequence_classification():
    rows = split_rows("parity_check", size=4, length=6)
    batch = TaskCollator(build_tokenizer("parity_check"))(rows)
    assert set(batch) == {"input_ids", "labels"}
    assert batch["input_ids"].tolist() == [row["input_ids"] for row in rows]
    assert batch["labels"].tolist() == [row["labels"] for row in rows]
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


@pytest.mark.parametrize("form", [list, np.array, torch.tensor])
def test_token_classification_pads_on_the_right(form):
    rows = split_rows("stack_manipulation", size=8, length=(4, 9))
    given = [{key: form(row[key]) for key in ("input_ids", "labels")} for row in rows]
    batch = TaskCollator(0)(given)
    width = max(len(row["input_ids"]) for row in rows)
    assert set(batch) == {"input_ids", "labels", "attention_mask"}
    for index, row in enumerate(rows):
        missing = width - len(row["input_ids"])
        assert batch["input_ids"][index].tolist() == row["input_ids"] + [0] * missing
        assert batch["labels"][index].tolist() == row["labels"] + [-100] * missing
        assert batch["attention_mask"][index].tolist() == [1] * (width - missing) + [0] * missing
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


def test_rows_without_labels():
    assert set(TaskCollator(0)([{"input_ids": [4, 5]}])) == {"input_ids"}


def test_mistakes():
    with pytest.raises(ValueError, match="padding"):
        TaskCollator(object())
    with pytest.raises(ValueError, match="empty batch"):
        TaskCollator(0)([])
    with pytest.raises(ValueError, match="as many as"):
        TaskCollator(0)([{"input_ids": [1, 2], "labels": [0]}])
