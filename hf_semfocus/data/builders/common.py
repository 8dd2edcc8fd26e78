"""What the builders share: their configuration, whose cache id covers everything that changes the rows, and how tables are made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import datasets
import pyarrow as pa
from datasets.builder import Key

from ..core.task import GENERATOR_VERSION
from ..generation import SHARD_ROWS, Shard, features, settled_shards, split_rows, tables, whole_split
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


class TaskBuilder(datasets.ArrowBasedBuilder):
    """Base of the builders. One process settles rows while it writes them; several get shards settled beforehand."""

    BUILDER_CONFIG_CLASS = TaskConfig
    config: TaskConfig

    @property
    def options(self) -> DataOptions:
        """The checked options of this data set."""
        return self.config.checked()

    def _info(self) -> datasets.DatasetInfo:
        task = get_task(self.config.name, self.config.answer)
        return datasets.DatasetInfo(
            description=f"{task.name} ({task.level}): {task.description}.", features=features(task)
        )

    def _split_generators(self, dl_manager: datasets.DownloadManager) -> list[datasets.SplitGenerator]:
        options = self.options
        generators = []
        for split, size in options.sizes:
            # Fails here, before anything is written, where too few different inputs exist.
            split_rows(options, split)
            streamed = getattr(dl_manager, "is_streaming", False) and size > SHARD_ROWS
            shards = settled_shards(options, split) if streamed else whole_split(options, split)
            generator = datasets.SplitGenerator(name=split, gen_kwargs={"shards": shards})
            # The progress bar's total.
            generator.split_info.num_examples = size
            generators.append(generator)
        return generators

    def _prepare_split(
        self,
        split_generator: datasets.SplitGenerator,
        file_format: str = "arrow",
        num_proc: int | None = None,
        max_shard_size: str | int | None = None,
    ) -> None:
        size = dict(self.options.sizes)[split_generator.name]
        if num_proc and num_proc > 1:
            # Workers are for splits that are worth several shards; a small one would only earn a warning.
            if size > SHARD_ROWS:
                split_generator.gen_kwargs["shards"] = settled_shards(self.options, split_generator.name)
            else:
                num_proc = 1
        super()._prepare_split(split_generator, file_format, num_proc=num_proc, max_shard_size=max_shard_size)

    def _generate_tables(self, shards: list[Shard]) -> Iterator[tuple[Key, pa.Table]]:
        schema = self.info.features.arrow_schema
        options = self.options
        for shard_number, shard in enumerate(shards):
            for table_number, table in enumerate(tables(options, shard)):
                yield Key(shard_number, table_number), table.cast(schema)
