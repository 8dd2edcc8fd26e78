"""The configuration that both builders share: its cache id covers everything that changes the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import datasets

from ..core.task import GENERATOR_VERSION
from ..options import OPTION_NAMES, SIZES, DataOptions, check_options
from ..tasks import get_task


@dataclass
class TaskConfig(datasets.BuilderConfig):
    """Options of a task's data set; ``name`` is the task.

    Attributes:
        length: None (the task's default), a number of tokens, or an inclusive range ``(min, max)``.
        train_size, validation_size, test_size: rows of the splits.
        seed: the data's seed.
        pooling: ``"cls"`` puts ``[CLS]`` in front of the ids.
        allow_duplicates: let a split hold an input twice.
        length_splits: lengths n for which a split ``length_<n>`` of ``test_size`` rows is made too.
        answer: the kind of answer, where the task has several; None: its default.
    """

    version: Any = field(default_factory=lambda: datasets.Version(GENERATOR_VERSION))
    length: int | Sequence[int] | None = None
    train_size: int = SIZES["train"]
    validation_size: int = SIZES["validation"]
    test_size: int = SIZES["test"]
    seed: int = 0
    pooling: str = "mean"
    allow_duplicates: bool = False
    length_splits: Sequence[int] = ()
    answer: str | None = None

    def checked(self) -> DataOptions:
        """The options, checked: ``ValueError`` for wrong types and values."""
        return check_options(self.name, {name: getattr(self, name) for name in OPTION_NAMES})

    def create_config_id(self, config_kwargs: dict, custom_features: datasets.Features | None = None) -> str:
        """Task and a hash of every option (defaults too), the generator's version and its source."""
        if custom_features is not None:
            raise ValueError(f"{self.name}: the columns' types are fixed; cast the loaded data set instead")
        if self.data_dir is not None or self.data_files is not None:
            raise ValueError(f"{self.name}: the rows are generated; data_dir and data_files mean nothing here")
        return f"{self.name}-{self.checked().fingerprint()}"


def configs(names: Sequence[str]) -> list[TaskConfig]:
    """A default configuration for each task."""
    return [TaskConfig(name=name, description=get_task(name).description) for name in names]
