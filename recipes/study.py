"""What the studies beside this file share: their command lines, sizes in words, models on the device there is."""

import argparse
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, disable_progress_bars
from transformers import PreTrainedModel
from transformers.utils import logging

from hf_semfocus import SemFocusForSequenceClassification, SemFocusForTokenClassification
from hf_semfocus.data import label_statistics, task_info
from hf_semfocus.text import plural


def study(
    script: str,
    description: str | None,
    defaults: Mapping[str, Any],
    quick: Mapping[str, Any],
    measured: Callable[[argparse.Namespace], dict[str, Any]],
    arguments: Sequence[str],
) -> tuple[argparse.Namespace, dict[str, Any]]:
    """The options of a study, which `defaults` name, and what it measures; a wrong option ends it with one line."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", help="see `semfocus tasks`")
    parser.add_argument("--output", required=True, type=Path, help="the folder of all results")
    parser.add_argument("--quick", action="store_true", help="very small, over the other options")
    for name, value in defaults.items():
        several = isinstance(value, list)
        kind = type(value[0] if several else value)
        shown = f"default: {' '.join(map(str, value)) if several else value}"
        parser.add_argument(f"--{name}", type=kind, nargs="+" if several else None, default=value, help=shown)
    options = parser.parse_args(arguments)
    options.command = shlex.join(["python", f"recipes/{script}.py", *arguments])
    if options.quick:
        vars(options).update(quick)
    disable_progress_bars()  # the study's own bars show the work
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        return options, measured(options)
    except (ValueError, OSError) as error:
        print(f"{script}: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)


def size_in_words(options: argparse.Namespace, budget: str) -> str:
    """What was trained, and that it is reduced where it is smaller than the paper's models and data."""
    paper = options.length >= 40 and options.layers >= 5 and options.train_size >= 5000
    size = (
        f"{options.layers} blocks, {options.train_size} training rows, {budget}, {plural(len(options.seeds), 'seed')}"
    )
    return f"{size}." if paper else f"Reduced size: {size} (the paper: length 40, 5 blocks, 5000 rows)."


def model_class(task: str) -> type[PreTrainedModel]:
    """With the task's head."""
    of_tokens = task_info(task).kind == "token_classification"
    return SemFocusForTokenClassification if of_tokens else SemFocusForSequenceClassification


def majority_accuracy(split: Dataset, task: str) -> float:
    """Of always answering the most frequent label, or the most frequent output."""
    statistics = label_statistics(split, task)
    return statistics.get("majority_sequence_accuracy", statistics["majority_accuracy"])


def to_device(model: PreTrainedModel) -> PreTrainedModel:
    """`model` on the accelerator, if there is one."""
    if not torch.accelerator.is_available():
        return model
    return model.to(torch.accelerator.current_accelerator())  # type: ignore[arg-type]  # the wrapper around `to` loses `self`
