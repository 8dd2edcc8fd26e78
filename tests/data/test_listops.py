"""ListOps: the sampler's distribution equals rejection from Long Range Arena's trees, over any range of lengths."""

import random
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from hf_semfocus.data.core.rows import SplitRows
from hf_semfocus.data.listops.counting import length_tables
from hf_semfocus.data.listops.grammar import SYMBOLS
from hf_semfocus.data.tasks import TASKS

from .rows import split_rows
from .solvers import INPUTS, SOLVERS, evaluate_listops, listops_depth, parse_listops
from .test_distributions import SMALLEST_P, chi_square

OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")


class TooLongError(Exception):
    pass


def reference_tree(rng: random.Random, room: list[int], depth: int = 1) -> int | tuple:
    """A tree of Long Range Arena, from its definition; given up, to be rejected, once it has used up the room."""
    if depth < 10 and rng.random() < 0.25:
        room[0] -= 2
        arguments = tuple(reference_tree(rng, room, depth + 1) for _ in range(rng.randint(2, 10)))
        return (rng.choice(OPERATORS), *arguments)
    room[0] -= 1
    if room[0] < 0:
        raise TooLongError
    return rng.randint(0, 9)


def size(tree: int | tuple) -> int:
    return 1 if isinstance(tree, int) else 2 + sum(map(size, tree[1:]))


def operators(tree: int | tuple) -> Counter[str]:
    out: Counter[str] = Counter()
    if not isinstance(tree, int):
        out[tree[0]] += 1
        for argument in tree[1:]:
            out += operators(argument)
    return out


def by_rejection(low: int, high: int, count: int, seed: int) -> list[int | tuple]:
    rng, trees = random.Random(seed), []
    while len(trees) < count:
        try:
            tree = reference_tree(rng, [high])
        except TooLongError:
            continue
        if low <= size(tree) <= high:
            trees.append(tree)
    return trees


def drawn(low: int, high: int, count: int, seed: int = 5) -> list[int | tuple]:
    rows = SplitRows(TASKS["listops"], low, high, "train", count, seed, allow_duplicates=True)
    trees = []
    for start in range(0, count, 4096):
        batch = rows.candidates(np.arange(start, min(count, start + 4096)), 0)
        for row, length in zip(batch.tokens.tolist(), batch.lengths.tolist(), strict=True):
            trees.append(parse_listops(" ".join(SYMBOLS[token] for token in row[:length])))
    return trees


def exact_lengths(longest: int) -> list[Fraction]:
    """Probabilities of lengths by the plain recursion over depths and arguments, in fractions."""
    below = [Fraction(int(length == 1)) for length in range(longest + 1)]
    for _ in range(9):
        here = [Fraction(0)] * (longest + 1)
        here[1] = Fraction(3, 4)
        power = [Fraction(int(length == 0)) for length in range(longest + 1)]
        for arguments in range(1, 11):
            power = [sum(power[a] * below[total - a] for a in range(total + 1)) for total in range(longest + 1)]
            if arguments >= 2:
                for total in range(longest - 1):
                    here[total + 2] += Fraction(1, 4 * 9) * power[total]
        below = here
    return below


def test_length_probabilities_are_exact():
    exact = exact_lengths(34)
    assert length_tables(34).node[1] == pytest.approx([float(p) for p in exact], rel=1e-12)
    assert exact[2] == exact[3] == 0 < exact[4]


def test_all_trees_of_a_small_range():
    # 4 to 6 tokens: lists of 2 to 4 digits; deeper trees need 7.
    weights: dict[tuple, Fraction] = {}
    for arguments in (2, 3, 4):
        for operator in OPERATORS:
            weights[(operator, arguments)] = Fraction(1, 4 * 9 * 4) * Fraction(3, 4) ** arguments
    total = sum(weights.values())
    trees = drawn(4, 6, 30000)
    seen = [(tree[0], len(tree) - 1) for tree in trees]
    chi_square("listops 4–6 operator and arguments", seen, {key: weight / total for key, weight in weights.items()})
    pairs = [tree[1:] for tree in trees if len(tree) == 3]
    chi_square("listops 4–6 digits", pairs, {(a, b): Fraction(1, 100) for a in range(10) for b in range(10)})


def test_equal_to_rejection():
    low, high, count = 9, 40, 12000
    reference, ours = by_rejection(low, high, count, seed=11), drawn(low, high, count)
    exact = exact_lengths(high)
    total = sum(exact[low:])
    chi_square("listops 9–40 lengths", map(size, ours), {n: exact[n] / total for n in range(low, high + 1)})
    quantities = {
        "length": size,
        "depth": listops_depth,
        "operator": lambda tree: tree[0],
        "operators": lambda tree: operators(tree).total(),
        "medians": lambda tree: operators(tree)["[MED"],
        "arguments of the root": lambda tree: len(tree) - 1,
        "operators among the root's arguments": lambda tree: sum(isinstance(argument, tuple) for argument in tree[1:]),
        "place of the first operator": lambda tree: next(
            (place for place, argument in enumerate(tree) if isinstance(argument, tuple)), 0
        ),
        "size of the first argument": lambda tree: size(tree[1]),
        "size of the last argument": lambda tree: size(tree[-1]),
        "label": evaluate_listops,
    }
    for what, quantity in quantities.items():
        left, right = Counter(map(quantity, reference)), Counter(map(quantity, ours))
        keys = [key for key in left | right if left[key] + right[key] >= 20]
        table = [
            [side[key] for key in keys] + [side.total() - sum(side[key] for key in keys)] for side in (left, right)
        ]
        if not sum(row[-1] for row in table):
            table = [row[:-1] for row in table]
        p = stats.chi2_contingency(table).pvalue
        print(f"listops 9–40 {what}: p = {p:.4f} ({len(table[0])} cells, {count} draws a side)")
        assert p > SMALLEST_P, what


@pytest.mark.parametrize(("low", "high"), [(1, 1), (1, 12), (4, 4), (7, 7), (50, 50), (500, 600), (1990, 2000)])
def test_any_range(low, high):
    for row in split_rows("listops", size=20, length=(low, high), allow_duplicates=True):
        assert low <= row["length"] <= high
        assert INPUTS["listops"](row["text"])
        assert row["target"] == SOLVERS["listops"](row["text"])


@pytest.mark.slow
def test_four_thousand_tokens():
    (row,) = split_rows("listops", size=1, length=4000)
    assert row["length"] == len(row["text"].split()) == 4000
    assert row["target"] == SOLVERS["listops"](row["text"])


@pytest.mark.parametrize("length", [2, 3, (2, 3)])
def test_impossible_lengths(length):
    with pytest.raises(ValueError, match="lengths are 1 or from 4 up"):
        split_rows("listops", length=length)


def test_rows_survive_a_pool_that_starts_again(monkeypatch):
    from hf_semfocus.data.listops import sampler, task

    before = split_rows("listops", size=30, length=(100, 140))
    monkeypatch.setattr(sampler, "_POOL_ENTRIES", 5000)
    task._sampler.cache_clear()
    assert split_rows("listops", size=30, length=(100, 140)) == before
    task._sampler.cache_clear()
