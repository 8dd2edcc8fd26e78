"""load_task: a task's data as a DatasetDict, made once and cached; the builder behind it; and load_metric."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ..text import did_you_mean
from .metrics import METRICS
from .options import SIZES, check_integer, check_options
from .tasks import get_task, is_built_in

if TYPE_CHECKING:
    from datasets import ArrowBasedBuilder, DatasetDict
    from evaluate import EvaluationModule


def build_task(name: str, *, cache_dir: str | os.PathLike[str] | None = None, **options: Any) -> ArrowBasedBuilder:
    """The ``datasets`` builder of a task: for ``download_and_prepare(num_proc=…)`` or ``as_streaming_dataset()``.

    Args:
        name: a task's name.
        cache_dir: where prepared data are kept; None: the cache of ``datasets``.
        options: as in :func:`load_task`.
    """
    from .builders.listops import ListOps
    from .builders.nnch import NNCH
    from .builders.registered import Registered

    task = get_task(name)
    check_options(name, options)
    # datasets takes None as "not given"; the default of every option but the length is a value of its own.
    given = {option: value for option, value in options.items() if value is not None}
    builder = Registered if not is_built_in(task) else ListOps if task.level == "listops" else NNCH
    return builder(config_name=task.name, cache_dir=None if cache_dir is None else str(cache_dir), **given)


def load_task(
    name: str,
    *,
    length: int | tuple[int, int] | None = None,
    train_size: int = SIZES["train"],
    validation_size: int = SIZES["validation"],
    test_size: int = SIZES["test"],
    seed: int = 0,
    pooling: str = "mean",
    cache_dir: str | os.PathLike[str] | None = None,
    num_proc: int | None = None,
    **options: Any,
) -> DatasetDict:
    """Load a task's data, making them first if the cache does not hold them.

    Args:
        name: a task's name, see :func:`~.tasks.list_tasks`.
        length: input length in tokens; a number, an inclusive range ``(min, max)``, or None for the task's default (40; ListOps 500–600).
        train_size, validation_size, test_size: rows of the splits.
        seed: the data's seed; rows of a split depend on it, not on the splits' sizes.
        pooling: ``"cls"`` puts ``[CLS]`` in front of ``input_ids``, as the model's pooling of that name expects.
        cache_dir: where prepared data are kept; None: the cache of ``datasets``.
        num_proc: worker processes; the rows do not depend on it.
        options: ``allow_duplicates=True`` lets a split hold an input twice; ``length_splits=[60, 80]`` adds splits ``length_60`` and
            ``length_80`` of ``test_size`` rows; ``answer="top"`` gives stack_manipulation one label, the top of the final stack (END if
            it is empty), instead of the whole stack (``"stack"``).

    Returns:
        A ``DatasetDict`` with ``train``, ``validation``, ``test`` and any ``length_<n>``; columns ``text``, ``target``, ``input_ids``,
        ``labels``, ``length``, and ``depth`` for tasks with trees.

    Raises:
        ValueError: unknown task or option, a value out of range, or too few different inputs of that length.

    Example:
        >>> load_task("parity_check", length=40)["train"].num_rows
        5000
    """
    from datasets.exceptions import DatasetGenerationError

    builder = build_task(
        name,
        cache_dir=cache_dir,
        length=length,
        train_size=train_size,
        validation_size=validation_size,
        test_size=test_size,
        seed=seed,
        pooling=pooling,
        **options,
    )
    if num_proc is not None:
        check_integer(get_task(name), "num_proc", num_proc, 1)
    try:
        builder.download_and_prepare(num_proc=num_proc)
    except DatasetGenerationError as error:
        # A user's mistake found on the way (no new input can be drawn) is raised as one.
        if isinstance(error.__cause__, ValueError):
            raise error.__cause__ from None
        raise
    return builder.as_dataset()


def load_metric(name: str, **options: Any) -> EvaluationModule:
    """A metric as an ``evaluate`` module, with no network: what ``evaluate.load`` gives, for our three names.

    Args:
        name: ``"accuracy"`` (one label a row), ``"token_accuracy"`` or ``"sequence_accuracy"`` (lists of labels, −100 ignored).
        options: of ``evaluate.EvaluationModule``, such as ``keep_in_memory`` or ``cache_dir``.

    Returns:
        A module with ``compute``, ``add`` and ``add_batch``, for ``evaluate.combine`` too.

    Example:
        >>> load_metric("accuracy").compute(predictions=[0, 1], references=[1, 1])
        {'accuracy': 0.5}
    """
    from . import evaluate_modules

    if name not in METRICS:
        raise ValueError(
            f"unknown metric {name!r}{did_you_mean(str(name), METRICS)} (known metrics: {', '.join(METRICS)})"
        )
    return evaluate_modules.make(name, **options)
