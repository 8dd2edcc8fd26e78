"""Users' mistakes: one clear ValueError with the task, the value and what is allowed."""

import pytest

from hf_semfocus.data import load_task, task_info
from hf_semfocus.data.options import check_options

BAD = [
    ("parity_chek", {}, "did you mean 'parity_check'"),
    (3, {}, "a task's name is a string"),
    ("parity_check", {"length": "40"}, "length must be an integer from 1 to 4096, got '40'"),
    ("parity_check", {"length": True}, "got True"),
    ("parity_check", {"length": 0}, "from 1 to 4096, got 0"),
    ("stack_manipulation", {"length": 1}, "stack_manipulation: length must be an integer from 2"),
    ("parity_check", {"length": 5000}, "to 4096"),
    ("parity_check", {"length": (5, 3)}, "min <= max"),
    ("parity_check", {"length": (1, 2, 3)}, r"\(min, max\)"),
    ("listops", {"length": (2, 3)}, "lengths are 1 or from 4 up"),
    ("parity_check", {"train_size": 0}, "train_size must be an integer from 1 up, got 0"),
    ("parity_check", {"validation_size": "many"}, "validation_size"),
    ("parity_check", {"seed": -1}, "seed"),
    ("parity_check", {"pooling": "max"}, "mean, cls, last"),
    ("parity_check", {"allow_duplicates": "yes"}, "True or False"),
    ("parity_check", {"length_splits": 80}, r"such as \[60, 80\]"),
    ("parity_check", {"length_splits": [0]}, "from 1 to 4096, got 0"),
    ("parity_check", {"num_proc": "2"}, "parity_check: num_proc must be an integer from 1 up, got '2'"),
    ("parity_check", {"trian_size": 3}, "did you mean 'train_size'"),
]


@pytest.mark.parametrize(("name", "options", "message"), BAD)
def test_mistakes(name, options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        load_task(name, **{"cache_dir": tmp_path / "cache", **options})
    assert not list(tmp_path.rglob("*.arrow"))


def test_defaults():
    options = check_options("listops", {})
    assert (options.low, options.high) == task_info("listops").default_length == (500, 600)
    assert dict(options.sizes) == {"train": 5000, "validation": 1000, "test": 2000}
    assert check_options("parity_check", {}).low == 40


def test_equal_meanings_have_one_fingerprint():
    one = check_options("parity_check", {"length": 40}).fingerprint()
    assert check_options("parity_check", {}).fingerprint() == one
    assert check_options("parity_check", {"length": [40, 40]}).fingerprint() == one
    different = [
        {"length": 41},
        {"seed": 1},
        {"pooling": "cls"},
        {"allow_duplicates": True},
        {"test_size": 1},
        {"length_splits": [60]},
    ]
    assert len({check_options("parity_check", more).fingerprint() for more in different} | {one}) == 7


def test_an_even_length_of_modular_arithmetic_is_lowered():
    assert check_options("modular_arithmetic", {"length": 40}).low == 39
    assert task_info("modular_arithmetic").min_length == 1
