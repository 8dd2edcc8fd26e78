"""The TASKS table, how a user adds to it, and what may be asked about a task. A built-in task is its one file and one line here."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TypeVar, get_args

from ..text import did_you_mean
from .core.encoding import QUERY, SPECIAL_TOKENS
from .core.task import Kind, Level, Task
from .cs.binary_addition import BinaryAddition
from .cs.binary_multiplication import BinaryMultiplication
from .cs.bucket_sort import BucketSort
from .cs.compute_sqrt import ComputeSqrt
from .cs.duplicate_string import DuplicateString
from .cs.missing_duplicate_string import MissingDuplicateString
from .cs.odds_first import OddsFirst
from .dcf.modular_arithmetic_brackets import ModularArithmeticBrackets
from .dcf.reverse_string import ReverseString
from .dcf.solve_equation import SolveEquation
from .dcf.stack_manipulation import StackManipulation, StackTop
from .listops.task import ListOps
from .regular.cycle_navigation import CycleNavigation
from .regular.even_pairs import EvenPairs
from .regular.modular_arithmetic import ModularArithmetic
from .regular.parity_check import ParityCheck

_ALL: tuple[Task, ...] = (
    EvenPairs(),
    ParityCheck(),
    CycleNavigation(),
    ModularArithmetic(),
    ModularArithmeticBrackets(),
    SolveEquation(),
    StackManipulation(),
    ReverseString(),
    DuplicateString(),
    MissingDuplicateString(),
    OddsFirst(),
    BucketSort(),
    BinaryAddition(),
    BinaryMultiplication(),
    ComputeSqrt(),
    ListOps(),
)
TASKS: dict[str, Task] = {task.name: task for task in _ALL}
assert len(TASKS) == len(_ALL), "two tasks have one name"
# Where inputs have more than one kind of answer: what the option ``answer`` chooses from, the default first.
ANSWERS: dict[str, tuple[Task, ...]] = {"stack_manipulation": (TASKS["stack_manipulation"], StackTop())}

# "nnch" follows the table; the paper's suite is that of its authors' scripts.
SUITES: dict[str, tuple[str, ...]] = {
    "paper": (
        "listops",
        "parity_check",
        "even_pairs",
        "missing_duplicate_string",
        "stack_manipulation",
        "cycle_navigation",
        "modular_arithmetic_brackets",
        "solve_equation",
    ),
    "nnch": tuple(name for name in TASKS if name != "listops"),
    "all": (),  # whatever is registered
}
Registered = TypeVar("Registered", bound=type[Task])


def register_task(cls: Registered) -> Registered:
    """Class decorator that makes a task in a file of yours known by its name, wherever a built-in one is.

    The file has to be imported where the name is used: ``import my_tasks``, ``--import my_tasks.py``, or ``imports`` of a run or an
    experiment, which records it with a digest of its content. A data set's card names its module. Rows follow from the class's
    code as those of built-in tasks do: the same options give the same rows, and an edited file gives another data set.

    Args:
        cls: a subclass of :class:`Task`, or of :class:`UniformWords`, which draws words and leaves nothing but the answer to write.

    Raises:
        ValueError: if the class is not a complete task, its name is malformed or taken, or its worked example has another answer.
            The same class (same module and qualified name) may be registered again, so that notebooks and reloads work.

    Example:
        >>> @register_task
        ... class FirstIsLast(UniformWords):
        ...     '''Whether the last symbol is the first one.'''
        ...     name = "first_is_last"
        ...     vocabulary = ("a", "b", "c", "d")
        ...     labels = ("no", "yes")
        ...     description = "whether the last symbol is the first one"
        ...     example = ("a c b a", "yes")
        ...     def answer(self, tokens):
        ...         return (tokens[:, 0] == tokens[:, -1]).astype("int64")
        >>> load_task("first_is_last", length=12, train_size=100)["train"].features["labels"].names
        ['no', 'yes']
    """
    if not (isinstance(cls, type) and issubclass(cls, Task)):
        raise ValueError(f"a task must be a subclass of hf_semfocus.data.Task, got {cls!r}")
    needed = ("name", "vocabulary", "labels", "description", "example")
    if lacking := [name for name in needed if not hasattr(cls, name)] + sorted(cls.__abstractmethods__):
        raise ValueError(f"task {cls.__qualname__} lacks {', '.join(lacking)}")
    name = cls.name
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ValueError(
            f"task name {name!r} must be lower-case letters, digits and underscores, starting with a letter"
        )
    here, known = (f"{one.__module__}.{one.__qualname__}" for one in (cls, type(TASKS.get(name))))
    if name in TASKS and here != known:
        raise ValueError(f"task {name!r} is already registered by {known}; {here} needs another name")
    for what, words in (("vocabulary", cls.vocabulary), ("labels", cls.labels)):
        plain = isinstance(words, tuple) and all(isinstance(word, str) and word.split() == [word] for word in words)
        if not plain or not 1 <= len(set(words)) == len(words) <= 256 or {QUERY, *SPECIAL_TOKENS} & set(words):
            allowed = (
                f"a tuple of 1 to 256 different words without spaces, none of {', '.join((*SPECIAL_TOKENS, QUERY))}"
            )
            raise ValueError(f"task {name!r}: {what} is {words!r}; allowed: {allowed}")
    for what, word, choices in (("level", cls.level, get_args(Level)), ("kind", cls.kind, get_args(Kind))):
        if word not in choices:
            raise ValueError(f"task {name!r}: {what} is {word!r}; allowed: {', '.join(choices)}")
    ends = cls.default_length if isinstance(cls.default_length, tuple) else (cls.default_length,) * 2
    for what, size, numbers in (
        ("min_length", cls.min_length, [cls.min_length, cls.max_length]),
        ("default_length", cls.default_length, [*ends]),
    ):
        if [type(number) for number in numbers] != [int, int] or not 1 <= numbers[0] <= numbers[1]:
            allowed = "a number ≥ 1, or the lowest and the highest" if what == "default_length" else "1 … max_length"
            raise ValueError(f"task {name!r}: {what} is {size!r}; allowed: {allowed}")
    match cls.example:
        case (str(text), str(target)) if text.split():
            task = cls()
        case _:
            raise ValueError(f"task {name!r}: example is {cls.example!r}; allowed: an input and its answer, as text")
    if (answer := task.solve(text)) != target:
        raise ValueError(f"task {name!r}: the answer to its example {text!r} is {answer!r}, not {target!r}")
    TASKS[name] = task
    return cls


def is_built_in(task: Task) -> bool:
    """Whether a task comes with this package."""
    return type(task).__module__.partition(".")[0] == __name__.partition(".")[0]


@dataclass(frozen=True)
class TaskInfo:
    """What a user may want to know about a task.

    Attributes:
        name: the task's name, as in ``load_task(name)``.
        level: ``regular``, ``dcf`` (deterministic context-free), ``cs`` (context-sensitive), ``listops`` or ``other``.
        kind: ``sequence_classification``, or ``token_classification`` for tasks with a sequence as output.
        vocabulary: the input symbols.
        labels: class names by class id.
        chance: expected accuracy of a uniform guess (per token for sequence outputs).
        min_length: the shortest possible input in tokens.
        default_length: the length used where none is given: a number or an inclusive range.
        description: what the label or output is, in one line.
        example_text, example_target: the worked example of the docs.
        has_depth: whether rows have a ``depth`` column.
        answers: what the option ``answer`` chooses from, the default first; empty where there is one kind of answer.
    """

    name: str
    level: Level
    kind: Kind
    vocabulary: tuple[str, ...]
    labels: tuple[str, ...]
    chance: float
    min_length: int
    default_length: int | tuple[int, int]
    description: str
    example_text: str
    example_target: str
    has_depth: bool = False
    answers: tuple[str, ...] = ()
    _task: Task | None = field(default=None, repr=False, compare=False)

    def output_length(self, length: int) -> int | None:
        """Output positions for an input of ``length`` tokens; None for a classification task."""
        if self._task is None or self.kind == "sequence_classification":
            return None
        return self._task.output_length(length)


def get_task(name: str, answer: str | None = None) -> Task:
    """The task of this name, with a kind of answer of `ANSWERS`; ``ValueError`` with what is known and the nearest otherwise."""
    if not isinstance(name, str):
        raise ValueError(f"a task's name is a string, got {name!r}")
    if name not in TASKS:
        raise ValueError(
            f"unknown task {name!r}{did_you_mean(name, TASKS)} (`semfocus tasks` lists them, --import FILE adds yours)"
        )
    if answer is None:
        return TASKS[name]
    choices = {task.answer_name: task for task in ANSWERS.get(name, ())}
    if not isinstance(answer, str) or answer not in choices:
        allowed = f"one of {', '.join(map(str, choices))}" if choices else "None, as it has one kind of answer"
        raise ValueError(f"{name}: answer must be {allowed}, got {answer!r}")
    return choices[answer]


def list_tasks(suite: str | None = None) -> list[str]:
    """Names of the tasks, all or those of a suite.

    Args:
        suite: ``"paper"`` (the 8 tasks of the comparison, ListOps first), ``"nnch"`` (all 15), ``"all"`` (registered ones too); None
            is ``"all"``.

    Example:
        >>> list_tasks("paper")[:2]
        ['listops', 'parity_check']
    """
    if suite is not None and suite not in SUITES:
        raise ValueError(
            f"unknown suite {suite!r}{did_you_mean(str(suite), SUITES)} (known suites: {', '.join(SUITES)})"
        )
    return list(TASKS if suite in (None, "all") else SUITES[suite])


def task_info(name: str, answer: str | None = None) -> TaskInfo:
    """Facts about a task.

    Args:
        name: the task's name.
        answer: of stack_manipulation: ``"stack"`` (the default) or ``"top"``, see :func:`~.loading.load_task`.

    Example:
        >>> task_info("cycle_navigation").chance
        0.2
    """
    task = get_task(name, answer)
    return TaskInfo(
        name=task.name,
        level=task.level,
        kind=task.kind,
        vocabulary=task.vocabulary,
        labels=task.labels,
        chance=task.chance,
        min_length=task.min_length,
        default_length=task.default_length,
        description=task.description,
        answers=tuple(str(other.answer_name) for other in ANSWERS.get(name, ())),
        example_text=task.example[0],
        example_target=task.example[1],
        has_depth=task.has_depth,
        _task=task,
    )
