"""The TASKS table and what a user may ask about a task: add a task by writing its one file and one line here."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field

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

# "nnch" and "all" follow the table; the paper's suite is our reading of "7 NNCH tasks + ListOps" (its text names the first five).
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
    "all": tuple(TASKS),
}


@dataclass(frozen=True)
class TaskInfo:
    """What a user may want to know about a task.

    Attributes:
        name: the task's name, as in ``load_task(name)``.
        level: ``regular``, ``dcf`` (deterministic context-free), ``cs`` (context-sensitive) or ``listops``.
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


def suggest(value: str, known: Iterable[str]) -> str:
    """``" (did you mean 'parity_check'?)"`` where something known is near, else nothing."""
    near = difflib.get_close_matches(value, list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def get_task(name: str, answer: str | None = None) -> Task:
    """The task of this name, with a kind of answer of `ANSWERS`; ``ValueError`` with what is known and the nearest otherwise."""
    if not isinstance(name, str):
        raise ValueError(f"a task's name is a string, got {name!r}")
    if name not in TASKS:
        raise ValueError(f"unknown task {name!r}{suggest(name, TASKS)}; known tasks: {', '.join(TASKS)}")
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
        suite: ``"paper"`` (the 8 tasks of the comparison, ListOps first), ``"nnch"`` (all 15), ``"all"``; None is ``"all"``.

    Example:
        >>> list_tasks("paper")[:2]
        ['listops', 'parity_check']
    """
    if suite is not None and suite not in SUITES:
        raise ValueError(f"unknown suite {suite!r}{suggest(str(suite), SUITES)}; known suites: {', '.join(SUITES)}")
    return list(SUITES[suite or "all"])


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
