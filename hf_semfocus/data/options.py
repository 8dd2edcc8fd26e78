"""The options that make a data set: checked, normalised, and hashed into the cache key."""

from __future__ import annotations

import hashlib
import operator
import re
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from .. import files
from ..text import did_you_mean
from .core.encoding import POOLINGS
from .core.task import GENERATOR_VERSION, Task
from .tasks import get_task

LENGTH_SPLIT = "length_"
OPTION_NAMES = (
    "length",
    "train_size",
    "validation_size",
    "test_size",
    "seed",
    "pooling",
    "allow_duplicates",
    "length_splits",
    "answer",
)
SIZES = {"train": 5000, "validation": 1000, "test": 2000}
"""Rows of each split, where nothing else is asked for."""
_MAX_SEED = 2**63 - 1
_PROCESS = uuid.uuid4().hex
_SOURCE_FOLDERS = ("core", "regular", "dcf", "cs", "listops")


@dataclass(frozen=True)
class DataOptions:
    """One data set, fully said: what :func:`check_options` makes of a user's options.

    Attributes:
        task: the task's name.
        low, high: the inclusive range of input lengths.
        sizes: rows of every split, by name, ``length_<n>`` splits included.
        seed: the data's seed, from 0 to 2**63 − 1.
        pooling: ``"mean"``, ``"cls"`` or ``"last"``.
        allow_duplicates: whether a split may hold an input twice.
        answer: the kind of answer, where it is not the task's default.
    """

    task: str
    low: int
    high: int
    sizes: tuple[tuple[str, int], ...]
    seed: int
    pooling: str
    allow_duplicates: bool
    answer: str | None = None

    def lengths(self, split: str) -> tuple[int, int]:
        """The inclusive range of input lengths of a split."""
        if split.startswith(LENGTH_SPLIT):
            length = int(split.removeprefix(LENGTH_SPLIT))
            return length, length
        return self.low, self.high

    def fingerprint(self) -> str:
        """A stable hash of everything that changes the rows or their columns, the generator's version and source included."""
        text = repr((sorted(asdict(self).items()), GENERATOR_VERSION, source_digest()))
        cls = type(get_task(self.task, self.answer))
        if (source := files.source_digest([cls])) is not None:
            # What a notebook defines has no file: its rows are cached for this process and this definition alone.
            text += source if getattr(sys.modules[cls.__module__], "__file__", None) else f"{_PROCESS} {id(cls)}"
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def source_files() -> list[Path]:
    """The modules that make rows: the folders of the tasks and of what they rest on."""
    root = Path(__file__).parent
    return [file for folder in _SOURCE_FOLDERS for file in sorted((root / folder).glob("*.py"))]


@lru_cache(maxsize=1)
def source_digest() -> str:
    """Digest of the source of everything that makes rows.

    Where no source lies beside this module (a frozen application), the generator's version alone stands for it.
    """
    digest = hashlib.blake2b(digest_size=8)
    for file in source_files():
        digest.update(f"{file.parent.name}/{file.name}\n".encode())
        digest.update(file.read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()


def check_integer(task: Task, name: str, value: Any, low: int, high: int | None = None) -> int:
    """The value as an int, or ``ValueError``; booleans, floats and strings are not integers."""
    allowed = f"an integer from {low} up" if high is None else f"an integer from {low} to {high}"
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < low or (high is not None and number > high):
        raise ValueError(f"{task.name}: {name} must be {allowed}, got {value!r}")
    return number


def check_pooling(pooling: Any) -> str:
    """The pooling itself, or ``ValueError`` with what is allowed."""
    if pooling not in POOLINGS:
        hint = did_you_mean(str(pooling), POOLINGS)
        raise ValueError(f"pooling is one of {', '.join(POOLINGS)}, got {pooling!r}{hint}")
    return pooling


def parse_length(text: str) -> int | tuple[int, int]:
    """A length ("40") or an inclusive range ("500-600").

    >>> parse_length("40"), parse_length("500-600")
    (40, (500, 600))
    """
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text.strip())
    if match is None:
        raise ValueError(f"length is {text!r}; allowed: a whole number such as 40, or a range such as 500-600")
    low, high = match.groups()
    return int(low) if high is None else (int(low), int(high))


def check_length(task: Task, length: Any, name: str = "length") -> tuple[int, int]:
    """The inclusive range of lengths that a user means by None (the task's default), a number, or ``(min, max)``."""
    if length is None:
        length = task.default_length
    if isinstance(length, Sequence) and not isinstance(length, str):
        if len(length) != 2:
            raise ValueError(f"{task.name}: a range of {name}s is (min, max), got {length!r}")
        low, high = (check_integer(task, name, value, task.min_length, task.max_length) for value in length)
        if low > high:
            raise ValueError(f"{task.name}: a range of {name}s is (min, max) with min <= max, got {length!r}")
    else:
        low = high = check_integer(task, name, length, task.min_length, task.max_length)
    possible = task.lengths(low, high)
    # Single lengths are lowered to a possible one where the task says so, and the range then says what was meant.
    return (possible[0], possible[0]) if len(possible) == 1 else (low, high)


def check_options(name: str, options: Mapping[str, Any]) -> DataOptions:
    """Check a user's options for a task.

    Args:
        name: the task's name.
        options: any of ``OPTION_NAMES``; a missing one takes its default.

    Raises:
        ValueError: with the task, the value and what is allowed; unknown options with the nearest known name.
    """
    task = get_task(name, options.get("answer"))
    for option in options:
        if option not in OPTION_NAMES:
            hint = did_you_mean(option, OPTION_NAMES)
            raise ValueError(
                f"{task.name}: unknown option {option!r}{hint} (known options: {', '.join(OPTION_NAMES)})"
            )
    low, high = check_length(task, options.get("length"))
    sizes = {
        split: check_integer(task, f"{split}_size", options.get(f"{split}_size", default), 1)
        for split, default in SIZES.items()
    }
    length_splits = options.get("length_splits")
    length_splits = () if length_splits is None else length_splits
    if isinstance(length_splits, str) or not isinstance(length_splits, Sequence):
        raise ValueError(f"{task.name}: length_splits is a list of lengths such as [60, 80], got {length_splits!r}")
    for length in length_splits:
        number = check_integer(task, "a length in length_splits", length, task.min_length, task.max_length)
        check_length(task, number, "length in length_splits")
        sizes[f"{LENGTH_SPLIT}{number}"] = sizes["test"]
    duplicates = options.get("allow_duplicates", False)
    if not isinstance(duplicates, bool):
        raise ValueError(f"{task.name}: allow_duplicates is True or False, got {duplicates!r}")
    return DataOptions(
        task=task.name,
        low=low,
        high=high,
        sizes=tuple(sizes.items()),
        seed=check_integer(task, "seed", options.get("seed", 0), 0, _MAX_SEED),
        pooling=check_pooling(options.get("pooling", "mean")),
        allow_duplicates=duplicates,
        answer=None if task is get_task(name) else task.answer_name,
    )
