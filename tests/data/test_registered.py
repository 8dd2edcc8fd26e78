"""A task in a user's own file: used by its name wherever a built-in one is."""

import sys

import datasets
import pytest

from hf_semfocus.data import (
    Task,
    UniformWords,
    build_tokenizer,
    generate,
    label_statistics,
    list_tasks,
    load_task,
    register_task,
    task_info,
)
from hf_semfocus.data.options import check_options
from hf_semfocus.data.tasks import TASKS
from hf_semfocus.experiments.imports import import_strategies
from hf_semfocus.experiments.spec import RunSpec, difference

from .rows import split_rows

OWN_TASK = '''
from hf_semfocus.data import UniformWords, register_task


@register_task
class FirstIsLast(UniformWords):
    """Whether the last symbol is the first one."""

    name = "first_is_last"
    vocabulary = ("a", "b", "c", "d")
    labels = ("no", "yes")
    description = "whether the last symbol is the first one"
    example = ("a c b a", "yes")

    def answer(self, tokens):
        return (tokens[:, 0] == tokens[:, -1]).astype("int64")
'''
SMALL = {"length": 6, "train_size": 60, "validation_size": 20, "test_size": 30}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "own_tasks.py"
    path.write_text(OWN_TASK)
    known = dict(TASKS)
    yield path
    TASKS.clear()
    TASKS.update(known)
    sys.modules.pop("own_tasks", None)


def test_it_is_used_by_its_name(file, tmp_path):
    with pytest.raises(ValueError, match=r"unknown task 'first_is_last'.*--import"):
        task_info("first_is_last")
    import_strategies([str(file)])
    assert "first_is_last" in list_tasks()
    assert "first_is_last" not in list_tasks("nnch")
    data = load_task("first_is_last", cache_dir=tmp_path / "cache", **SMALL)
    tokenizer = build_tokenizer("first_is_last")
    for row in data["train"]:
        words = row["text"].split()
        assert row["target"] == ("yes" if words[0] == words[-1] else "no")
        assert row["input_ids"] == tokenizer(row["text"])["input_ids"]
    assert {word for text in data["train"]["text"] for word in text.split()} == {"a", "b", "c", "d"}
    assert label_statistics(data["train"], "first_is_last")["chance"] == 0.5
    assert data["train"].to_list() == split_rows("first_is_last", size=60, length=6)
    texts = [set(rows["text"]) for rows in data.values()]
    assert sum(map(len, texts)) == len(set.union(*texts)) == 110
    folder = generate("first_is_last", tmp_path / "out", **SMALL)
    assert (
        datasets.load_dataset(str(folder), cache_dir=str(tmp_path / "cache"))["train"].to_list()
        == data["train"].to_list()
    )
    card = (folder / "README.md").read_text()
    assert "import own_tasks" in card
    assert "Chomsky" not in card


def test_a_run_names_the_file_and_its_content(file):
    values = {"task": "first_is_last", "length": 6, "imports": [str(file)]}
    spec = RunSpec.from_dict(values)
    assert RunSpec.from_dict(spec.to_dict()) == spec
    before = check_options("first_is_last", SMALL).fingerprint()
    file.write_text(OWN_TASK.replace("==", "!=").replace('b a", "yes"', 'b a", "no"'))
    del sys.modules["own_tasks"]
    other = RunSpec.from_dict(values)
    assert "task_source" in difference(spec.to_dict(), other.to_dict())
    assert check_options("first_is_last", SMALL).fingerprint() != before
    assert "task_source" not in RunSpec.from_dict({"task": "even_pairs"}).to_dict()


class Good(UniformWords):
    name = "good"
    vocabulary = ("0", "1")
    labels = ("0", "1")
    description = "the first symbol"
    example = ("1 0", "1")

    def answer(self, tokens):
        return tokens[:, 0].astype("int64")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "parity_check"}, "already registered by .*ParityCheck"),
        ({"name": "Good task"}, "'Good task' must be lower-case"),
        ({"example": ("1 0", "0")}, r"the answer to its example '1 0' is '1', not '0'"),
        ({"labels": ("0", "0")}, "labels is .*different words"),
        ({"vocabulary": ("0", "[PAD]")}, "vocabulary is"),
        ({"vocabulary": ("0", "1 2")}, "without spaces"),
        ({"vocabulary": None}, "'good': vocabulary is None"),
        ({"labels": 5}, "'good': labels is 5"),
        ({"example": None}, "'good': example is None"),
        ({"example": ("", "n")}, "'good': example is"),
        ({"level": "zzz"}, "'good': level is 'zzz'; allowed: regular"),
        ({"kind": "zzz"}, "'good': kind is 'zzz'; allowed: sequence_"),
        ({"min_length": "x"}, "'good': min_length is 'x'"),
        ({"default_length": (9, 3)}, r"'good': default_length is \(9, 3\)"),
        ({"answer": lambda self, tokens: None}, "'good': its answer is None"),
        ({"answer": lambda self, tokens: tokens[:, 0] * 2}, "'good': its answer has the label 2; allowed: 0 … 1"),
        ({"answer": lambda self, tokens: tokens[:, 0] - 2.0}, "'good': its answer is"),
        ({"answer": lambda self, tokens: -tokens[:, 0].astype(int)}, "'good': its answer has the label -1"),
    ],
)
def test_what_is_no_task_is_refused(change, words):
    before = dict(TASKS)
    with pytest.raises(ValueError, match=words):
        register_task(type("Bad", (Good,), change))
    with pytest.raises(ValueError, match=r"lacks name, vocabulary.*answer, enumerate, sample, support, words"):
        register_task(type("Empty", (Task,), {}))
    with pytest.raises(ValueError, match="subclass"):
        register_task(object)
    assert before == TASKS
