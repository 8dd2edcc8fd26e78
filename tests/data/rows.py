"""Rows for tests, straight from the generator: no cache and no builder in between."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from hf_semfocus.data.generation import tables, whole_split
from hf_semfocus.data.options import check_options


def split_table(name: str, split: str = "train", size: int = 200, **options: Any) -> pa.Table:
    sizes = {f"{split}_size": size} if not split.startswith("length_") else {"test_size": size}
    checked = check_options(name, {**sizes, **options})
    return pa.concat_tables(table for shard in whole_split(checked, split) for table in tables(checked, shard))


def split_rows(name: str, split: str = "train", size: int = 200, **options: Any) -> list[dict[str, Any]]:
    return split_table(name, split, size, **options).to_pylist()
