"""Inputs against the exact probabilities of DESIGN §3, by chi-square with fixed seeds. `pytest -rP` prints the p-values."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from fractions import Fraction
from itertools import pairwise
from math import comb

import numpy as np
import pytest
from scipy import stats

from hf_semfocus.data.core.rows import SplitRows
from hf_semfocus.data.tasks import TASKS

from .rows import split_rows

# With fixed seeds a test either always passes or always fails; a wrong distribution gives p-values far below this.
SMALLEST_P = 1e-4


def chi_square(what: str, seen: Iterable[Hashable], expected: Mapping[Hashable, float | Fraction]) -> None:
    counts = Counter(seen)
    total = counts.total()
    assert set(counts) <= set(expected), set(counts) - set(expected)
    assert sum(expected.values()) == pytest.approx(1)
    cells = [(counts[key], float(probability) * total) for key, probability in expected.items()]
    rare = [cell for cell in cells if cell[1] < 5]
    cells = [cell for cell in cells if cell[1] >= 5]
    if rare:
        cells.append((sum(cell[0] for cell in rare), sum(cell[1] for cell in rare)))
    observed, wanted = (np.array(column, dtype=float) for column in zip(*cells, strict=True))
    p = stats.chisquare(observed, wanted).pvalue
    print(f"{what}: p = {p:.4f} ({len(cells)} cells, {total} draws)")
    assert p > SMALLEST_P


def proposals(name: str, length: int, count: int, seed: int = 1) -> list[str]:
    """First candidates of rows, before any split takes or leaves them: the task's own distribution."""
    task = TASKS[name]
    rows = SplitRows(task, length, length, "train", count, seed, allow_duplicates=True)
    tokens = rows.candidates(np.arange(count), 0).tokens
    return [" ".join(task.vocabulary[token] for token in row) for row in tokens.tolist()]


def uniform(keys: Iterable[Hashable]) -> dict[Hashable, Fraction]:
    keys = list(keys)
    return {key: Fraction(1, len(keys)) for key in keys}


def words(alphabet: Iterable[str], length: int) -> list[str]:
    out = [""]
    for _ in range(length):
        out = [f"{word} {symbol}".strip() for word in out for symbol in alphabet]
    return out


def expressions(length: int, operators: str) -> dict[str, Fraction]:
    """Every bracket expression with its probability, by the definition's recursion."""
    forms = {1: "{}", 2: "- {}", 3: "( {} )", 4: "( - {} )"}
    if length in forms:
        return {forms[length].format(digit): Fraction(1, 5) for digit in range(5)}
    out: Counter[str] = Counter()
    for left_size in range(1, length - 3):
        weight = Fraction(1, (length - 4) * len(operators))
        for left, p in expressions(left_size, operators).items():
            for right, q in expressions(length - 3 - left_size, operators).items():
                for operator in operators:
                    out[f"( {left} {operator} {right} )"] += weight * p * q
    return dict(out)


def equations(length: int) -> dict[str, Fraction]:
    out: Counter[str] = Counter()
    for expression, probability in expressions(length - 2, "+-").items():
        symbols = expression.split()
        for start in range(len(symbols)):
            place = next(
                i % len(symbols) for i in range(start, start + len(symbols)) if symbols[i % len(symbols)].isdigit()
            )
            hidden = [*symbols[:place], "x", *symbols[place + 1 :], "=", str(eval(expression) % 5)]
            out[" ".join(hidden)] += probability / len(symbols)
    return dict(out)


def stacks(length: int) -> dict[str, Fraction]:
    out = {}
    for size in range(1, length):
        for stack in words("01", size):
            for actions in words(("POP", "PUSH_0", "PUSH_1"), length - size):
                out[f"{stack} {actions}"] = Fraction(1, (length - 1) * 2**size * 3 ** (length - size))
    return out


def two_numbers(length: int, sign: str) -> dict[str, Fraction]:
    out = {}
    for left in range(1, length - 1):
        right = length - 1 - left
        for a in range(1, 2**left):
            for b in range(1, 2**right):
                text = " ".join([*format(a, f"0{left}b")[::-1], sign, *format(b, f"0{right}b")[::-1]])
                out[text] = Fraction(1, (length - 2) * (2**left - 1) * (2**right - 1))
    return out


def missing(length: int) -> dict[str, Fraction]:
    half = length // 2
    out: Counter[str] = Counter()
    for word in words("01", half):
        for hidden in range(2 * half):
            symbols = word.split() * 2 + ["."] * (length % 2)
            symbols[hidden] = "_"
            out[" ".join(symbols)] += Fraction(1, 2**half * 2 * half)
    return dict(out)


def alternating(length: int) -> dict[str, Fraction]:
    out = [str(digit) for digit in range(5)]
    for _ in range(length // 2):
        out = [f"{start} {operator} {digit}" for start in out for operator in "+-*" for digit in range(5)]
    return uniform(out)


WHOLE_INPUTS = {
    "even_pairs": lambda: uniform(words("01", 8)),
    "parity_check": lambda: uniform(words("01", 8)),
    "cycle_navigation": lambda: uniform(words(("STAY", "+1", "-1"), 5)),
    "modular_arithmetic": lambda: alternating(5),
    "modular_arithmetic_brackets": lambda: expressions(9, "+-*"),
    "solve_equation": lambda: equations(10),
    "stack_manipulation": lambda: stacks(5),
    "reverse_string": lambda: uniform(words("01", 7)),
    "duplicate_string": lambda: uniform(words("01", 7)),
    "missing_duplicate_string": lambda: missing(9),
    "odds_first": lambda: uniform(words("01", 7)),
    "bucket_sort": lambda: uniform(words("01234", 4)),
    "binary_addition": lambda: two_numbers(7, "+"),
    "binary_multiplication": lambda: two_numbers(7, "*"),
    "compute_sqrt": lambda: uniform(" ".join(format(value, "07b")) for value in range(1, 128)),
}


@pytest.mark.parametrize("name", WHOLE_INPUTS)
def test_whole_inputs(name):
    expected = WHOLE_INPUTS[name]()
    length = len(next(iter(expected)).split())
    chi_square(f"{name}, all inputs of length {length}", proposals(name, length, 20000), expected)


def test_a_split_leaves_the_labels_balanced():
    for name, classes in (("even_pairs", "01"), ("parity_check", "01"), ("missing_duplicate_string", "01")):
        for split in ("train", "validation", "test"):
            rows = split_rows(name, split, 4000, allow_duplicates=True, seed=3)
            chi_square(f"{name} {split} labels", (row["target"] for row in rows), uniform(classes))


def test_cycle_navigation_labels():
    # Exact law of a sum of 40 uniform steps modulo 5.
    law = {0: Fraction(1), **dict.fromkeys(range(1, 5), Fraction(0))}
    for _ in range(40):
        law = {p: (law[p] + law[(p - 1) % 5] + law[(p + 1) % 5]) / 3 for p in range(5)}
    rows = split_rows("cycle_navigation", size=8000, allow_duplicates=True)
    chi_square("cycle_navigation labels", (row["target"] for row in rows), {str(p): law[p] for p in law})


def test_number_of_unequal_neighbours():
    rows = split_rows("even_pairs", size=8000, length=40, allow_duplicates=True)
    seen = (sum(a != b for a, b in pairwise(t)) for t in (row["text"].split() for row in rows))
    chi_square("even_pairs transitions", seen, {k: Fraction(comb(39, k), 2**39) for k in range(40)})


def test_stack_sizes_and_actions():
    rows = split_rows("stack_manipulation", size=8000, length=40, allow_duplicates=True)
    texts = [row["text"].split() for row in rows]
    sizes = [sum(word in "01" for word in text) for text in texts]
    chi_square("stack_manipulation sizes", sizes, uniform(range(1, 40)))
    actions = (word for text in texts for word in text if word not in "01")
    chi_square("stack_manipulation actions", actions, uniform(("POP", "PUSH_0", "PUSH_1")))


def test_hidden_position_of_missing_duplicate():
    for length in (40, 41):
        rows = split_rows("missing_duplicate_string", size=8000, length=length, allow_duplicates=True)
        hidden = [row["text"].split().index("_") for row in rows]
        chi_square(f"missing_duplicate_string hidden position, n = {length}", hidden, uniform(range(40)))


def test_first_size_of_the_binary_tasks():
    for name, sign in (("binary_addition", "+"), ("binary_multiplication", "*")):
        rows = split_rows(name, size=8000, length=40, allow_duplicates=True)
        chi_square(f"{name} first size", (row["text"].split().index(sign) for row in rows), uniform(range(1, 39)))


def test_first_split_of_brackets():
    rows = split_rows("modular_arithmetic_brackets", size=8000, length=40, allow_duplicates=True)
    sizes, operators = [], []
    for row in rows:
        symbols = row["text"].split()
        depth = 0
        for place, symbol in enumerate(symbols[1:], start=1):
            depth += (symbol == "(") - (symbol == ")")
            # The root's operator is the first one outside inner brackets that is not a sign.
            if depth == 0 and symbol in "+-*" and place > 1:
                break
        sizes.append(place - 1)
        operators.append(symbols[place])
    chi_square("brackets first split", sizes, uniform(range(1, 37)))
    chi_square("brackets first operator", operators, uniform("+-*"))


def test_lengths_of_a_range_are_uniform():
    rows = split_rows("parity_check", size=6000, length=(20, 40), allow_duplicates=True)
    chi_square("parity_check lengths 20–40", (row["length"] for row in rows), uniform(range(20, 41)))
    rows = split_rows("modular_arithmetic", size=6000, length=(20, 40), allow_duplicates=True)
    chi_square("modular_arithmetic lengths 20–40", (row["length"] for row in rows), uniform(range(21, 41, 2)))
