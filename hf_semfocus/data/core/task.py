"""The contract of a task: what a new task's one file has to say, and what everything else may ask of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from .draws import bounded, halves

# Raise it when any rows change for the same options: it enters every stream's key, so old and new rows are never mixed up.
GENERATOR_VERSION = "1.0.0"

# The label that a loss and every metric skip (torch.nn.CrossEntropyLoss.ignore_index).
IGNORED = -100
Level = Literal["regular", "dcf", "cs", "listops", "other"]
Kind = Literal["sequence_classification", "token_classification"]


@dataclass
class Batch:
    """Inputs of some rows: ``tokens`` uint8 ``(B, N)`` of symbol numbers, of which ``lengths`` int64 ``(B,)`` count in each row."""

    tokens: np.ndarray
    lengths: np.ndarray

    def __len__(self) -> int:
        return len(self.lengths)


class Task(ABC):
    """One benchmark task: its symbols, how inputs are drawn, and the answer to an input.

    A subclass sets the class attributes that have no value here, and the methods marked abstract. ``sample`` and ``answer`` work on
    whole batches; the answer follows from the input's tokens alone. Symbols are numbered by their place in ``vocabulary``, answers by
    ``labels``.
    """

    name: ClassVar[str]
    level: ClassVar[Level] = "other"
    vocabulary: ClassVar[tuple[str, ...]]
    labels: ClassVar[tuple[str, ...]]
    description: ClassVar[str]
    example: ClassVar[tuple[str, str]]
    kind: ClassVar[Kind] = "sequence_classification"
    # What the option ``answer`` calls it, where inputs have more than one kind of answer.
    answer_name: ClassVar[str | None] = None
    min_length: ClassVar[int] = 1
    max_length: ClassVar[int] = 4096
    default_length: ClassVar[int | tuple[int, int]] = 40
    has_depth: ClassVar[bool] = False

    @property
    def chance(self) -> float:
        """Expected accuracy of a uniform guess among the labels (for sequence outputs: per token)."""
        return 1.0 / len(self.labels)

    # --- what a task file writes -----------------------------------------------------------------------------------------------

    @abstractmethod
    def words(self, length: int) -> int:
        """Random words that ``sample`` needs for one input of ``length`` tokens."""

    @abstractmethod
    def sample(self, words: np.ndarray, length: int) -> np.ndarray:
        """Draw inputs: uint64 ``(B, words(length))`` → uint8 ``(B, length)`` symbol numbers."""

    @abstractmethod
    def answer(self, tokens: np.ndarray) -> np.ndarray:
        """Answers to inputs of one length: uint8 ``(B, N)`` → int64 ``(B,)`` labels, or ``(B, output_length(N))`` with −100 after END."""

    @abstractmethod
    def support(self, length: int) -> int:
        """The exact number of different inputs of this length that can be drawn."""

    @abstractmethod
    def enumerate(self, length: int) -> Iterator[np.ndarray]:
        """All inputs of this length, once each, in arrays uint8 ``(K, length)``; called only where ``support`` is small."""

    def support_floor(self, length: int) -> int:
        """A lower bound of ``support``, for tasks where counting long inputs exactly takes long."""
        return self.support(length)

    def output_length(self, length: int) -> int:
        """Output positions for an input of ``length`` tokens; only sequence-output tasks have them."""
        raise TypeError(f"{self.name} is a classification task: it has one label and no output positions")

    def depth(self, batch: Batch) -> np.ndarray:
        """Depth of each row's tree, int64 ``(B,)``; only where ``has_depth``."""
        raise TypeError(f"{self.name} has no trees")

    # --- what follows from it --------------------------------------------------------------------------------------------------

    def lengths(self, low: int, high: int) -> list[int]:
        """Possible input lengths in the inclusive range, ascending."""
        return list(range(low, high + 1))

    def range_words(self, low: int, high: int) -> int:
        """Random words that ``draw`` needs for one input."""
        return max(self.words(length) for length in self.lengths(low, high)) + (low != high)

    def draw(self, words: np.ndarray, low: int, high: int) -> Batch:
        """Draw inputs whose length is uniform over ``lengths(low, high)``, from ``range_words(low, high)`` words a row."""
        choices = self.lengths(low, high)
        if len(choices) == 1:
            tokens = self.sample(words, choices[0])
            return Batch(tokens, np.full(len(tokens), choices[0], dtype=np.int64))
        picked = bounded(halves(words[:, -1:])[:, 0], len(choices))
        lengths = np.array(choices, dtype=np.int64)[picked]
        tokens = np.zeros((len(words), choices[-1]), dtype=np.uint8)
        for rows, length in rows_by_length(lengths):
            tokens[rows, :length] = self.sample(words[rows], length)
        return Batch(tokens, lengths)

    def answer_batch(self, batch: Batch) -> np.ndarray:
        """Answers to inputs of any lengths; sequence outputs are padded with −100 to the longest."""
        groups = list(rows_by_length(batch.lengths))
        if len(groups) == 1:
            return self._labels(batch.tokens[:, : groups[0][1]])
        shape: tuple[int, ...] = (len(batch),)
        if self.kind == "token_classification":
            shape = (len(batch), max((self.output_length(length) for _, length in groups), default=0))
        out = np.full(shape, IGNORED, dtype=np.int64)
        for rows, length in groups:
            answers = self._labels(batch.tokens[rows, :length])
            if answers.ndim == 1:
                out[rows] = answers
            else:
                out[rows, : answers.shape[1]] = answers
        return out

    def _labels(self, tokens: np.ndarray) -> np.ndarray:
        """What `answer` returns; `ValueError` where that is not labels."""
        answers, count = self.answer(tokens), len(self.labels)
        if (
            not isinstance(answers, np.ndarray)
            or answers.dtype.kind not in "iu"
            or answers.shape[:1] != tokens.shape[:1]
        ):
            raise ValueError(
                f"task {self.name!r}: its answer is {answers!r}; allowed: an array of whole numbers, a row an input"
            )
        wrong = answers[(answers < 0) | (answers >= count)]
        if self.kind == "token_classification":
            wrong = wrong[wrong != IGNORED]
        if wrong.size:
            raise ValueError(f"task {self.name!r}: its answer has the label {wrong[0]}; allowed: 0 … {count - 1}")
        return answers

    def read(self, text: str) -> np.ndarray:
        """Symbol numbers of a text: ``read("0 1 1")`` → uint8 ``(1, 3)``; ``ValueError`` for an unknown symbol."""
        numbers = {symbol: number for number, symbol in enumerate(self.vocabulary)}
        unknown = [word for word in text.split() if word not in numbers]
        if unknown:
            raise ValueError(
                f"{self.name}: {unknown[0]!r} is not a symbol; the symbols are {' '.join(self.vocabulary)}"
            )
        return np.array([[numbers[word] for word in text.split()]], dtype=np.uint8)

    def solve(self, text: str) -> str:
        """The answer to one input as text: ``PARITY_CHECK.solve("1 0 1") == "0"``.

        Raises:
            ValueError: an unknown symbol, or symbols that the task cannot answer. Not every malformed input is noticed.
        """
        tokens = self.read(text)
        try:
            answer = self.answer_batch(Batch(tokens, np.array([tokens.shape[1]], dtype=np.int64)))
            return " ".join(self.labels[label] for label in np.atleast_1d(answer[0]) if label != IGNORED)
        except IndexError:  # an operand or a bracket is missing
            raise ValueError(f"{self.name}: {text!r} is no input of this task; one is {self.example[0]!r}") from None


def rows_by_length(lengths: np.ndarray) -> Iterator[tuple[np.ndarray | slice, int]]:
    """Groups of row numbers with the same length, shortest first."""
    if len(lengths) and lengths.min() == lengths.max():
        yield slice(None), int(lengths[0])
        return
    for length in np.unique(lengths).tolist():
        yield np.flatnonzero(lengths == length), length


def all_words(alphabet: int, length: int) -> Iterator[np.ndarray]:
    """Every word over ``range(alphabet)``, in arrays uint8 ``(K, length)`` of at most 65,536 rows."""
    total = alphabet**length
    for start in range(0, total, 1 << 16):
        values = np.arange(start, min(total, start + (1 << 16)), dtype=np.int64)
        out = np.empty((len(values), length), dtype=np.uint8)
        for position in reversed(range(length)):
            out[:, position] = values % alphabet
            values //= alphabet
        yield out
