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

_NNCH = (
    "{} level of Neural Networks and the Chomsky Hierarchy",
    'Delétang et al., "Neural Networks and the Chomsky Hierarchy", ICLR 2023, [arXiv 2207.02098](https://arxiv.org/abs/2207.02098).',
)
# What a task comes from, and what to cite for it.
_SOURCES = {
    "listops": (
        "ListOps with the trees of Long Range Arena, drawn from their distribution conditioned on the range of lengths",
        'Nangia and Bowman, "ListOps", 2018, [arXiv 1804.06028](https://arxiv.org/abs/1804.06028); Tay et al., "Long Range Arena", '
        "ICLR 2021, [arXiv 2011.04006](https://arxiv.org/abs/2011.04006).",
    ),
    "regular": (_NNCH[0].format("regular"), _NNCH[1]),
    "dcf": (_NNCH[0].format("deterministic context-free"), _NNCH[1]),
    "cs": (_NNCH[0].format("context-sensitive"), _NNCH[1]),
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


def _twice(options: DataOptions) -> str:
    if options.allow_duplicates:
        return "Inputs may occur twice in a split; none of one split is in another."
    if any(split.startswith(LENGTH_SPLIT) for split in dict(options.sizes)):
        return (
            "No input occurs twice in a split. Splits `length_<n>` may have inputs of `test`, and none of the others."
        )
    return "No input occurs twice, in a split or in two."


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
    source, cite = _SOURCES[task.level] if is_built_in(task) else (f"a task of `{type(task).__module__}`", "")
    columns = ", ".join(f"`{name}`" for name in features(task))
    lines = [
        f"# {task.name}",
        "",
        f"What it asks: {task.description}. The answer to `{task.example[0]}` is `{task.example[1]}`.",
        "",
        f"Rows are made by hf-semfocus, none is collected. Source: {source}.",
        "",
        "## Rows",
        "",
        f"An input has {length} tokens, each one of {' '.join(f'`{symbol}`' for symbol in task.vocabulary)}; "
        f"in a split `length_<n>` it has n. Columns: {columns}. " + _twice(options),
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
        lines += ["", "Accuracies and counts are of output tokens; an output is right only if all its tokens are."]
    again = f"To make the same rows again (generator version {GENERATOR_VERSION}):"
    lines += ["", "## Use", "", f"`datasets.load_dataset` takes this folder or repository. {again}", ""]
    lines += ["```python", python_call(options), "```"]
    if command:
        lines += ["", "or on the command line:", "", "```bash", f"$ {command}", "```"]
    lines += [
        "",
        "## Limits",
        "",
        "- The symbols carry no language. A short program answers every input, so an accuracy below 1 is the model's.",
        "- An accuracy says something only beside chance and the majority accuracy above.",
        "- The rows are of one seed and one distribution of lengths.",
    ]
    lines += ["", "## Citation", "", f"The task: {cite}"] if cite else []
    lines += [""]
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
