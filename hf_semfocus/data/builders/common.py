"""What the builders do: describe the columns, cut splits into shards, and make tables."""

from __future__ import annotations

from collections.abc import Iterator

import datasets
import pyarrow as pa
from datasets.builder import Key

from ..generation import SHARD_ROWS, Shard, features, settled_shards, split_rows, tables, whole_split
from ..options import DataOptions
from ..tasks import get_task
from .config import TaskConfig


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
