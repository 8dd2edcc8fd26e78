"""An independent solver and an input checker for every task, written from the definitions on the text of a row."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable
from itertools import pairwise


def _even_pairs(text: str) -> str:
    symbols = text.split()
    return str(sum(a + b in ("01", "10") for a, b in pairwise(symbols)) % 2)


def _cycle(text: str) -> str:
    position = 0
    for move in text.split():
        position = {"STAY": position, "+1": (position + 1) % 5, "-1": (position - 1) % 5}[move]
    return str(position)


def _arithmetic(text: str) -> str:
    assert re.fullmatch(r"[0-4+\-*() ]+", text)
    return str(eval(text) % 5)  # Python's precedence is the one that the task asks for


def _equation(text: str) -> str:
    left, right = text.split(" = ")
    solutions = [digit for digit in "01234" if _arithmetic(left.replace("x", digit)) == right]
    assert len(solutions) == 1
    return solutions[0]


def _stack(text: str) -> str:
    stack: list[str] = []
    for word in text.split():
        if word == "POP":
            stack = stack[:-1]
        else:
            stack.append(word.removeprefix("PUSH_"))
    return " ".join([*reversed(stack), "END"])


def _missing(text: str) -> str:
    word = text.replace(".", "").split()
    half = len(word) // 2
    (answer,) = {b if a == "_" else a for a, b in zip(word[:half], word[half:], strict=True) if "_" in (a, b)}
    return answer


def _little_endian(digits: str) -> int:
    return sum(2**place for place, digit in enumerate(digits.split()) if digit == "1")


def _two_numbers(sign: str, combine: Callable[[int, int], int]) -> Callable[[str], str]:
    def solve(text: str) -> str:
        first, second = text.split(f" {sign} ")
        value, out = combine(_little_endian(first), _little_endian(second)), []
        while value:
            out.append(str(value % 2))
            value //= 2
        return " ".join([*out, "END"])

    return solve


def _square_root(text: str) -> str:
    digits = text.split()
    root = math.isqrt(int("".join(digits), 2))
    return " ".join(bin(root)[2:].zfill(math.ceil(len(digits) / 2)))


def parse_listops(text: str) -> int | tuple:
    """A nested tuple ``(operator, argument, …)`` or a digit; the whole text must be one tree."""
    words = text.split()

    def read(start: int) -> tuple[int | tuple, int]:
        if words[start].isdigit():
            return int(words[start]), start + 1
        operator, arguments, place = words[start], [], start + 1
        while words[place] != "]":
            argument, place = read(place)
            arguments.append(argument)
        return (operator, *arguments), place + 1

    tree, end = read(0)
    assert end == len(words)
    return tree


def evaluate_listops(tree: int | tuple) -> int:
    if isinstance(tree, int):
        return tree
    values = [evaluate_listops(argument) for argument in tree[1:]]
    return {"[MIN": min, "[MAX": max, "[MED": lambda v: int(statistics.median(v)), "[SM": lambda v: sum(v) % 10}[
        tree[0]
    ](values)


def listops_depth(tree: int | tuple) -> int:
    return 1 if isinstance(tree, int) else 1 + max(map(listops_depth, tree[1:]))


SOLVERS: dict[str, Callable[[str], str]] = {
    "even_pairs": _even_pairs,
    "parity_check": lambda text: str(text.count("1") % 2),
    "cycle_navigation": _cycle,
    "modular_arithmetic": _arithmetic,
    "modular_arithmetic_brackets": _arithmetic,
    "solve_equation": _equation,
    "stack_manipulation": _stack,
    "reverse_string": lambda text: text[::-1],
    "duplicate_string": lambda text: f"{text} {text}",
    "missing_duplicate_string": _missing,
    "odds_first": lambda text: " ".join(text.split()[0::2] + text.split()[1::2]),
    "bucket_sort": lambda text: " ".join(sorted(text.split())),
    "binary_addition": _two_numbers("+", lambda a, b: a + b),
    "binary_multiplication": _two_numbers("*", lambda a, b: a * b),
    "compute_sqrt": _square_root,
    "listops": lambda text: str(evaluate_listops(parse_listops(text))),
}

# Output positions for n input tokens, as DESIGN §3 gives them.
OUTPUT_LENGTHS: dict[str, Callable[[int], int]] = {
    "stack_manipulation": lambda n: n + 1,
    "reverse_string": lambda n: n,
    "duplicate_string": lambda n: 2 * n,
    "odds_first": lambda n: n,
    "bucket_sort": lambda n: n,
    "binary_addition": lambda n: n + 1,
    "binary_multiplication": lambda n: n,
    "compute_sqrt": lambda n: math.ceil(n / 2),
}


def _is_expression(words: list[str], operators: str, digits: str) -> bool:
    """Whether the words are an expression of the reference grammar, read from the definition."""

    def read(start: int) -> int:
        """Place behind the expression that starts here; raises IndexError or ValueError where there is none."""
        if words[start] == "-":
            if words[start + 1] not in digits:
                raise ValueError
            return start + 2
        if words[start] in digits:
            return start + 1
        if words[start] != "(":
            raise ValueError
        end = read(start + 1)
        if words[end] == ")" and (end == start + 2 or (end == start + 3 and words[start + 1] == "-")):
            return end + 1
        if words[end] not in operators:
            raise ValueError
        end = read(end + 1)
        if words[end] != ")":
            raise ValueError
        return end + 1

    try:
        return read(0) == len(words)
    except (IndexError, ValueError):
        return False


def _is_equation(text: str) -> bool:
    words = text.split()
    expression = words[:-2]
    return (
        words[-2] == "="
        and words[-1] in "01234"
        and expression.count("x") == 1
        and _is_expression(expression, "+-", "01234x")
    )


def _is_missing(text: str) -> bool:
    words = text.split()
    half = len(words) // 2
    if len(words) % 2 and words.pop() != ".":
        return False
    return words.count("_") == 1 and all(
        a == b or "_" in (a, b) for a, b in zip(words[:half], words[half:], strict=True)
    )


def _is_two_numbers(sign: str) -> Callable[[str], bool]:
    return lambda text: bool(re.fullmatch(rf"(?=.*1.*\{sign})[01]( [01])* \{sign}(?=.*1)( [01])+", text))


def _is_listops(text: str) -> bool:
    def check(tree: int | tuple, depth: int) -> bool:
        if isinstance(tree, int):
            return 0 <= tree <= 9
        return depth < 10 and 2 <= len(tree) - 1 <= 10 and all(check(argument, depth + 1) for argument in tree[1:])

    return check(parse_listops(text), 1)


INPUTS: dict[str, Callable[[str], bool]] = {
    **{
        name: lambda text: bool(re.fullmatch("[01]( [01])*", text))
        for name in ("even_pairs", "parity_check", "reverse_string", "duplicate_string", "odds_first")
    },
    "cycle_navigation": lambda text: set(text.split()) <= {"STAY", "+1", "-1"},
    "modular_arithmetic": lambda text: bool(re.fullmatch(r"[0-4]( [+\-*] [0-4])*", text)),
    "modular_arithmetic_brackets": lambda text: _is_expression(text.split(), "+-*", "01234"),
    "solve_equation": _is_equation,
    "stack_manipulation": lambda text: bool(re.fullmatch("[01]( [01])*( (POP|PUSH_0|PUSH_1))+", text)),
    "missing_duplicate_string": _is_missing,
    "bucket_sort": lambda text: bool(re.fullmatch("[0-4]( [0-4])*", text)),
    "binary_addition": _is_two_numbers("+"),
    "binary_multiplication": _is_two_numbers("*"),
    "compute_sqrt": lambda text: bool(re.fullmatch("[01]( [01])*", text)) and "1" in text,
    "listops": _is_listops,
}
