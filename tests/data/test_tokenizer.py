"""Tokenizers: stable ids, text restored, no unknown token, and a saved one works wherever it lies."""

import json
import shutil

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from hf_semfocus.data import build_tokenizer, task_info
from hf_semfocus.data.tasks import TASKS

from .rows import split_rows

NAMES = list(TASKS)


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_those_of_the_rows_and_decoding_restores_the_text(name):
    info = task_info(name)
    for pooling in ("mean", "cls"):
        tokenizer = build_tokenizer(name, pooling)
        for row in split_rows(name, size=30, length=(12, 30), pooling=pooling):
            queries = " [Q]" * (info.output_length(row["length"]) or 0)
            ids = tokenizer(row["text"] + queries)["input_ids"]
            assert ids == row["input_ids"]
            assert tokenizer.unk_token_id not in ids
            plain = tokenizer(row["text"], add_special_tokens=False)["input_ids"]
            assert len(plain) == row["length"]
            assert tokenizer.decode(plain) == row["text"]
            assert tokenizer.decode(ids, skip_special_tokens=True) == row["text"] + queries


@pytest.mark.parametrize("name", NAMES)
def test_ids(name):
    tokenizer = build_tokenizer(name)
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    assert tokenizer.convert_tokens_to_ids(["[PAD]", "[UNK]", "[CLS]", "[MASK]"]) == [0, 1, 2, 3]
    rest = (*(["[Q]"] if task_info(name).kind == "token_classification" else []), *task_info(name).vocabulary)
    assert tokenizer.convert_tokens_to_ids(list(rest)) == list(range(4, 4 + len(rest)))
    assert len(tokenizer) == 4 + len(rest)
    assert "[Q]" not in tokenizer.all_special_tokens
    assert tokenizer.model_input_names == ["input_ids", "attention_mask"]
    assert tokenizer("nonsense")["input_ids"] == [1]


def test_padding_is_on_the_right():
    batch = build_tokenizer("parity_check")(["1 0 1", "1"], padding=True)
    assert batch["input_ids"] == [[5, 4, 5], [5, 0, 0]]
    assert batch["attention_mask"] == [[1, 1, 1], [1, 0, 0]]


def test_brackets_are_not_dropped():
    tokenizer = build_tokenizer("listops")
    nested = tokenizer("[MAX 2 9 [MIN 4 7 ] 0 ]")["input_ids"]
    flat = tokenizer("[MAX 2 9 [MIN 4 7 0 ] ]")["input_ids"]
    bare = tokenizer("[MAX 2 9 [MIN 4 7 0")["input_ids"]
    assert len({tuple(nested), tuple(flat), tuple(bare)}) == 3
    assert len(nested) == 9


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_saved_tokenizer_may_move(tmp_path, pooling):
    first, moved = tmp_path / "first", tmp_path / "moved"
    tokenizer = build_tokenizer("listops", pooling)
    tokenizer.save_pretrained(first)
    shutil.move(first, moved)
    loaded = AutoTokenizer.from_pretrained(moved)
    text = "[SM 1 [MED 2 3 ] 4 ]"
    assert loaded(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert loaded.decode(loaded(text)["input_ids"], skip_special_tokens=True) == text
    assert loaded.padding_side == "right"
    for file in moved.iterdir():
        assert str(tmp_path) not in file.read_text()
        json.loads(file.read_text())


def test_errors():
    with pytest.raises(ValueError, match="did you mean 'parity_check'"):
        build_tokenizer("parity_chek")
    with pytest.raises(ValueError, match="mean, cls, last"):
        build_tokenizer("parity_check", "max")
