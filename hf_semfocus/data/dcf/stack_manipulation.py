"""stack_manipulation: the stack, or its top, after a list of pushes and pops."""

from collections.abc import Iterator

import numpy as np
from typing_extensions import override

from ..core.draws import bit_words, bits, bounded, digit_words, digits, halves
from ..core.task import IGNORED, Task, all_words

_POP, _PUSH_0, _PUSH_1 = 2, 3, 4
_END = 2


class StackManipulation(Task):
    """Stack manipulation (Delétang et al., 2023, deterministic context-free): the final stack, top to bottom, then END.

    The input is a stack from bottom to top, its size uniform in 1..n−1 and its bits uniform, then uniform actions POP, PUSH_0 and
    PUSH_1. POP on an empty stack does nothing. There are n+1 output positions; those behind END do not count.

    Example: ``0 1 1 0 PUSH_1 POP POP`` → ``1 1 0 END``.
    """

    name = "stack_manipulation"
    level = "dcf"
    kind = "token_classification"
    answer_name = "stack"
    vocabulary = ("0", "1", "POP", "PUSH_0", "PUSH_1")
    labels = ("0", "1", "END")
    description = "the final stack, top to bottom, then END"
    example = ("0 1 1 0 PUSH_1 POP POP", "1 1 0 END")
    min_length = 2

    @override
    def words(self, length: int) -> int:
        return 1 + bit_words(length - 1) + digit_words(3, length - 1)

    @override
    def sample(self, words: np.ndarray, length: int) -> np.ndarray:
        size = 1 + bounded(halves(words[:, :1])[:, 0], length - 1)
        stack = bits(words[:, 1:], length - 1)
        actions = digits(words[:, 1 + bit_words(length - 1) :], 3, length - 1) + _POP
        tokens = np.empty((len(words), length), dtype=np.uint8)
        # Position p holds stack bit p or action p − 1: the stack has at least one element and there is at least one action.
        tokens[:, 0] = stack[:, 0]
        tokens[:, -1] = actions[:, -1]
        inside = np.arange(1, length - 1) < size[:, None]
        tokens[:, 1:-1] = np.where(inside, stack[:, 1:], actions[:, :-1])
        return tokens

    @override
    def output_length(self, length: int) -> int:
        return length + 1

    @override
    def answer(self, tokens: np.ndarray) -> np.ndarray:
        rows, length = tokens.shape
        # Bottom to top, by height first: a column of heights is contiguous, and a row's cell is one gather away.
        stack = np.zeros((length + 1, rows), dtype=np.uint8)
        flat = stack.reshape(-1)
        height = np.zeros(rows, dtype=np.int64)
        row = np.arange(rows)
        # What a token puts on the stack, and by how much it changes the height.
        pushed = np.array([0, 1, 0, 0, 1], dtype=np.uint8)
        change = np.array([1, 1, -1, 1, 1], dtype=np.int64)
        for token in np.ascontiguousarray(tokens.T):
            # A pop writes too, above the top, where the next push writes over it.
            flat[height * rows + row] = pushed[token]
            height += change[token]
            np.maximum(height, 0, out=height)
        out = np.full((rows, length + 1), IGNORED, dtype=np.int64)
        source = height[:, None] - 1 - np.arange(length + 1)
        kept = source >= 0
        out[kept] = flat[(source * rows + row[:, None])[kept]]
        out[row, height] = _END
        return out

    @override
    def support(self, length: int) -> int:
        return sum(2**size * 3 ** (length - size) for size in range(1, length))

    @override
    def enumerate(self, length: int) -> Iterator[np.ndarray]:
        for size in range(1, length):
            for actions in all_words(3, length - size):
                for row in actions:
                    for stack in all_words(2, size):
                        yield np.hstack([stack, np.broadcast_to(row + _POP, (len(stack), length - size))])


class StackTop(StackManipulation):
    """The inputs of :class:`StackManipulation` with one label: the symbol on top of the final stack, END if it is empty.

    Example: ``0 1 1 0 PUSH_1 POP POP`` → ``1``.
    """

    kind = "sequence_classification"  # type: ignore[assignment]  # its own answer
    answer_name = "top"
    description = "the top of the final stack, END if it is empty"
    example = ("0 1 1 0 PUSH_1 POP POP", "1")

    @override
    def output_length(self, length: int) -> int:
        return Task.output_length(self, length)

    @override
    def answer(self, tokens: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(super().answer(tokens)[:, 0])
