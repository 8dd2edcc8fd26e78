"""The contract that every task passes: worked examples, inputs of the grammar, right answers, aligned labels, columns."""

import pytest

from hf_semfocus.data import list_tasks, task_info
from hf_semfocus.data.core.encoding import QUERY, SPECIAL_TOKENS, token_table
from hf_semfocus.data.tasks import TASKS

from .rows import split_rows
from .solvers import INPUTS, OUTPUT_LENGTHS, SOLVERS, listops_depth, parse_listops

# DESIGN §3, word for word.
WORKED = {
    "even_pairs": ("0 0 1 1 1 0", "0"),
    "parity_check": ("1 0 1 0 1 0 0", "1"),
    "cycle_navigation": ("+1 -1 STAY -1 -1", "3"),
    "modular_arithmetic": ("1 + 2 * 3", "2"),
    "modular_arithmetic_brackets": ("( ( 1 - 3 ) + 4 )", "2"),
    "solve_equation": ("( x + 4 ) = 2", "3"),
    "stack_manipulation": ("0 1 1 0 PUSH_1 POP POP", "1 1 0 END"),
    "reverse_string": ("0 1 1", "1 1 0"),
    "duplicate_string": ("0 1 1", "0 1 1 0 1 1"),
    "missing_duplicate_string": ("0 1 1 0 0 1 _ 0", "1"),
    "odds_first": ("0 0 1 1 0", "0 1 0 0 1"),
    "bucket_sort": ("1 0 2 0", "0 0 1 2"),
    "binary_addition": ("0 0 1 + 0 1 1 0 1", "0 1 0 1 1 END"),
    "binary_multiplication": ("0 0 1 * 0 1 1 0 1", "0 0 0 1 1 0 1 END"),
    "compute_sqrt": ("1 0 0 1 0 1", "1 1 0"),
    "listops": ("[MAX 2 9 [MIN 4 7 ] 0 ]", "9"),
}
NAMES = list(TASKS)


def _length(name, length):
    return length if name != "listops" else (max(4, length - 3), length + 20)


def test_the_suites():
    others = ["parity_check", "even_pairs", "missing_duplicate_string", "stack_manipulation", "cycle_navigation"]
    assert list_tasks("paper") == ["listops", *others, "modular_arithmetic_brackets", "solve_equation"]
    assert set(list_tasks()) == set(WORKED) == set(SOLVERS)
    assert len(list_tasks("nnch")) == 15
    with pytest.raises(ValueError, match=r"did you mean 'paper'"):
        list_tasks("papers")


@pytest.mark.parametrize("name", NAMES)
def test_worked_example(name):
    text, target = WORKED[name]
    assert TASKS[name].solve(text) == target
    assert SOLVERS[name](text) == target
    info = task_info(name)
    assert (info.example_text, info.example_target) == (text, target)
    # The docstring shows it too.
    words = " ".join((TASKS[name].__doc__ or "").split())
    assert f"``{text}``" in words
    assert f"``{target}``" in words


@pytest.mark.parametrize("name", NAMES)
def test_unknown_symbols_are_refused(name):
    with pytest.raises(ValueError, match="not a symbol"):
        TASKS[name].solve("0 banana")


@pytest.mark.parametrize("length", ["shortest", 7, 40, 90])
@pytest.mark.parametrize("name", NAMES)
def test_rows_are_inputs_of_the_task_with_the_right_answer(name, length):
    length = TASKS[name].min_length if length == "shortest" else length
    asked = length if name != "listops" or length == 1 else _length(name, length)
    for row in split_rows(name, size=60, length=asked, allow_duplicates=True):
        assert INPUTS[name](row["text"]), row["text"]
        assert row["target"] == SOLVERS[name](row["text"]), row["text"]
        words = row["text"].split(" ")
        assert row["length"] == len(words)
        if name == "modular_arithmetic":
            assert len(words) == length - (length % 2 == 0)
        elif isinstance(asked, tuple):
            assert asked[0] <= len(words) <= asked[1]
        else:
            assert len(words) == length


@pytest.mark.parametrize(("length", "pooling"), [(12, "mean"), ((9, 16), "cls")])
@pytest.mark.parametrize("name", NAMES)
def test_columns_spell_the_text_and_the_target(name, length, pooling):
    info = task_info(name)
    symbols = token_table(TASKS[name])
    assert symbols[:4] == SPECIAL_TOKENS
    length = (9, 16) if name == "listops" else length
    lengths = set()
    for row in split_rows(name, size=80, length=length, pooling=pooling, allow_duplicates=True):
        outputs = info.output_length(row["length"]) or 0
        assert outputs == (OUTPUT_LENGTHS[name](row["length"]) if name in OUTPUT_LENGTHS else 0)
        front = ["[CLS]"] if pooling == "cls" else []
        assert [symbols[i] for i in row["input_ids"]] == front + row["text"].split() + [QUERY] * outputs
        target = row["target"].split()
        if info.kind == "sequence_classification":
            assert [info.labels[row["labels"]]] == target
        else:
            silent = len(front) + row["length"]
            assert row["labels"][:silent] == [-100] * silent
            said = row["labels"][silent:]
            assert len(said) == outputs
            assert [info.labels[i] for i in said[: len(target)]] == target
            assert said[len(target) :] == [-100] * (outputs - len(target))
        lengths.add(row["length"])
    assert len(lengths) > 3 if isinstance(length, tuple) else len(lengths) == 1


def test_depth_of_trees():
    for row in split_rows("listops", size=100, length=(4, 60), allow_duplicates=True):
        assert row["depth"] == listops_depth(parse_listops(row["text"]))
    for name in ("modular_arithmetic_brackets", "solve_equation"):
        for row in split_rows(name, size=50, length=(3, 30), allow_duplicates=True):
            depth = deepest = 0
            for word in row["text"].split():
                depth += (word == "(") - (word == ")")
                deepest = max(deepest, depth)
            assert row["depth"] == deepest


@pytest.mark.parametrize("name", ["compute_sqrt", "binary_multiplication", "binary_addition"])
@pytest.mark.parametrize("length", [51, 52, 53, 62, 63, 64, 65, 200])
def test_numbers_beyond_machine_words(name, length):
    for row in split_rows(name, size=40, length=length):
        assert row["target"] == SOLVERS[name](row["text"])


@pytest.mark.parametrize(
    "value", [0, 1, 2, 3, 4, 8, 9, (1 << 26) ** 2 - 1, (1 << 26) ** 2 - 2, ((1 << 26) - 1) ** 2 - 1]
)
def test_square_roots_at_the_edges(value):
    text = " ".join(format(value, "052b"))
    assert TASKS["compute_sqrt"].solve(text) == SOLVERS["compute_sqrt"](text)


@pytest.mark.parametrize("name", NAMES)
def test_support_counts_and_lists_every_input_once(name):
    task = TASKS[name]
    for length in range(task.min_length, 9 if len(task.vocabulary) < 4 else 7):
        if length not in task.lengths(1 if name == "listops" else length, length):
            continue
        texts = [tuple(row) for tokens in task.enumerate(length) for row in tokens.tolist()]
        assert len(texts) == len(set(texts)) == task.support(length) >= task.support_floor(length)
        for tokens in texts[:: max(1, len(texts) // 50)]:
            assert INPUTS[name](" ".join(task.vocabulary[token] for token in tokens))


def test_listops_floor_is_a_lower_bound():
    task = TASKS["listops"]
    for length in (25, 31, 50):
        assert task.support_floor(length) <= task.support(length)
