"""Kinds of answer: one label instead of the whole stack, from the same inputs, through everything that reads rows."""

import datasets
import pytest

from hf_semfocus.data import build_tokenizer, generate, label_statistics, load_task, task_info
from hf_semfocus.data.options import check_options

from .rows import split_rows

TASK = "stack_manipulation"
SMALL = {"train_size": 60, "validation_size": 10, "test_size": 20}


def top_of_the_stack(text):
    """By the definition alone: the stack as a linked list, so that nothing is shared with the generator or the other solver."""
    stack = None
    for word in text.split():
        if word == "POP":
            stack = stack and stack[1]
        else:
            stack = (word[-1], stack)
    return stack[0] if stack else "END"


def test_the_top_is_the_one_label_of_the_same_inputs():
    whole = split_rows(TASK, size=3000, length=9, allow_duplicates=True)
    rows = split_rows(TASK, size=3000, length=9, allow_duplicates=True, answer="top")
    assert [row["text"] for row in rows] == [row["text"] for row in whole]
    info = task_info(TASK, "top")
    assert (info.kind, info.labels, info.chance) == ("sequence_classification", ("0", "1", "END"), 1 / 3)
    assert top_of_the_stack(info.example_text) == info.example_target == "1"
    for row, other in zip(rows, whole, strict=True):
        assert (
            row["target"] == info.labels[row["labels"]] == top_of_the_stack(row["text"]) == other["target"].split()[0]
        )
        assert build_tokenizer(TASK, answer="top")(row["text"])["input_ids"] == row["input_ids"]
    assert {row["target"] for row in rows} == {"0", "1", "END"}


def test_the_whole_stack_is_the_default():
    assert check_options(TASK, {"answer": "stack"}) == check_options(TASK, {})
    assert check_options(TASK, {"answer": "top"}).fingerprint() != check_options(TASK, {}).fingerprint()
    assert task_info(TASK, "stack") == task_info(TASK)
    assert task_info(TASK).answers == task_info(TASK, "top").answers == ("stack", "top")
    assert task_info("parity_check").answers == ()


@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        (TASK, "tpo", "stack_manipulation: answer must be one of stack, top, got 'tpo'"),
        (TASK, ["top"], "one of stack, top"),
        ("parity_check", "top", "parity_check: answer must be None"),
    ],
)
def test_another_answer_is_refused(name, answer, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        load_task(name, answer=answer, cache_dir=tmp_path)
    assert not list(tmp_path.iterdir())


def test_it_is_loaded_counted_and_written(tmp_path):
    data = load_task(TASK, length=10, cache_dir=tmp_path / "cache", answer="top", **SMALL)
    assert data["train"].features["labels"].names == ["0", "1", "END"]
    found = label_statistics(data["train"], TASK, "top")
    assert sum(found["histogram"].values()) == 60
    folder = generate(TASK, tmp_path / "top", length=10, answer="top", **SMALL)
    assert "answer='top'" in (folder / "README.md").read_text()
    back = datasets.load_dataset(str(folder), cache_dir=str(tmp_path / "cache"))
    assert back["train"].to_list() == data["train"].to_list()
    assert back["train"].features == data["train"].features
