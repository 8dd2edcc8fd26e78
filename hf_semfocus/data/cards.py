"""The card of a generated data set: what it is, how it was made, and what accuracy means on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .core.task import GENERATOR_VERSION
from .generation import features
from .options import LENGTH_SPLIT, DataOptions
from .tasks import get_task, is_built_in

if TYPE_CHECKING:
    from datasets import DatasetDict

_SOURCES = {
    "listops": "ListOps (Nangia and Bowman, 2018) with the trees of Long Range Arena (Tay et al., 2021), drawn directly from their "
    "distribution conditioned on the range of lengths",
    "regular": "Neural Networks and the Chomsky Hierarchy (Delétang et al., ICLR 2023), regular level",
    "dcf": "Neural Networks and the Chomsky Hierarchy (Delétang et al., ICLR 2023), deterministic context-free level",
    "cs": "Neural Networks and the Chomsky Hierarchy (Delétang et al., ICLR 2023), context-sensitive level",
}


def python_call(options: DataOptions) -> str:
    """The Python statements that make these rows."""
    length = options.low if options.low == options.high else (options.low, options.high)
    sizes = dict(options.sizes)
    arguments: dict[str, Any] = {
        "length": length,
        **{f"{split}_size": sizes[split] for split in ("train", "validation", "test")},
    }
    arguments |= {"seed": options.seed, "pooling": options.pooling}
    if options.allow_duplicates:
        arguments["allow_duplicates"] = True
    if options.answer is not None:
        arguments["answer"] = options.answer
    longer = [int(split.removeprefix(LENGTH_SPLIT)) for split in sizes if split.startswith(LENGTH_SPLIT)]
    if longer:
        arguments["length_splits"] = longer
    task = get_task(options.task, options.answer)
    imports = "" if is_built_in(task) else f"import {type(task).__module__}  # registers the task\n"
    call = f"load_task({options.task!r}, {', '.join(f'{name}={value!r}' for name, value in arguments.items())})"
    return f"from hf_semfocus.data import load_task\n{imports}{call}"


def dataset_card(
    options: DataOptions,
    statistics: Mapping[str, Mapping[str, Any]],
    *,
    command: str | None = None,
    files: str = "{split}.parquet",
) -> str:
    """The README.md of a folder with one file a split.

    Args:
        options: the checked options of the data set.
        statistics: of every split, as :func:`~.statistics.label_statistics` gives them.
        command: the command line that made it; None: only the Python call is given.
        files: where a split's files lie, from the card: a path or glob with ``{split}`` in it.

    Returns:
        Markdown with a YAML head from which ``datasets.load_dataset(folder)`` takes files, splits and column types.
    """
    import yaml
    from datasets import DatasetInfo
    from datasets.info import DatasetInfosDict

    task = get_task(options.task, options.answer)
    sizes = dict(options.sizes)
    info = DatasetInfo(features=features(task), config_name="default")
    head: dict[str, Any] = {
        "pretty_name": task.name,
        "tags": ["synthetic", "hf-semfocus", task.level],
        "task_categories": [
            "text-classification" if task.kind == "sequence_classification" else "token-classification"
        ],
        "configs": [
            {
                "config_name": "default",
                "data_files": [{"split": split, "path": files.format(split=split)} for split in sizes],
            }
        ],
        "dataset_info": DatasetInfosDict({"default": info})["default"]._to_yaml_dict(),
    }
    length = f"{options.low}" if options.low == options.high else f"{options.low} to {options.high}"
    source = _SOURCES[task.level] if is_built_in(task) else f"A task of `{type(task).__module__}`"
    lines = [
        f"# {task.name}",
        "",
        f"{source}: {task.description}. The answer to `{task.example[0]}` is `{task.example[1]}`.",
        "",
        f"Inputs have {length} tokens over {' '.join(f'`{symbol}`' for symbol in task.vocabulary)}; "
        f"`length_<n>` splits have n. Seed {options.seed}, generator version {GENERATOR_VERSION}"
        + (", duplicates allowed." if options.allow_duplicates else "; no input occurs twice, in a split or in two."),
        "",
        "| split | rows | chance | majority label | majority accuracy | labels |",
        "|---|---|---|---|---|---|",
    ]
    for split, facts in statistics.items():
        histogram = ", ".join(f"{label}: {count:,}" for label, count in facts["histogram"].items())
        lines.append(
            f"| {split} | {sizes[split]:,} | {facts['chance']:.3f} | {facts['majority_label']} "
            f"| {facts['majority_accuracy']:.3f} | {histogram} |"
        )
    if task.kind == "token_classification":
        lines += [
            "",
            "Accuracies and counts are of output positions; a whole output is right only if all of them are.",
        ]
    lines += ["", "Made by", "", "```"]
    if command:
        lines += [f"$ {command}", ""]
    lines += [python_call(options), "```", ""]
    return f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---\n\n" + "\n".join(lines)


def card_of(data: DatasetDict, options: DataOptions, command: str | None = None) -> str:
    """The card of a loaded data set, to go beside what ``data.push_to_hub`` writes (``data/train-*`` and so on)."""
    from .statistics import label_statistics

    return dataset_card(
        options,
        {split: label_statistics(data[split], options.task, options.answer) for split in data},
        command=command,
        files="data/{split}-*",
    )
