"""`semfocus train`: train one model on one task."""

import argparse
import os
from pathlib import Path
from typing import Any

from .parsing import add_command, add_field, add_run_options, asked, described, path
from .terminal import console, quiet_libraries


def add_parser(commands: Any) -> None:
    """Adds `train`."""
    example = "semfocus train even_pairs --mask topk:5 --length 20 --layers 3 --epochs 20 --output runs/one"
    parser = add_command(commands, *described(__doc__), example, run)
    parser.add_argument("task", help="see `semfocus tasks`")
    parser.add_argument("--output", type=path, required=True, help="folder for the history, the result and the model")
    text = "a mask specification; `full`, `topk:5`, `banded:5+global:1` … (default: topk:5)"
    add_field(parser, "--mask", "mask", text)
    text = "fixes the data, the initial weights and the batch order (default: 0)"
    add_field(parser, "--seed", "seed", text, type=int)
    text = "YAML or JSON file with fields of RunSpec (a run's spec.json); options given here go over it"
    parser.add_argument("--config", type=path, help=text)
    parser.add_argument("--threads", type=int, help="torch threads on the CPU (default: 1, or OMP_NUM_THREADS)")
    add_run_options(parser)


def run(options: argparse.Namespace) -> int:
    """Trains, with a bar of the epochs, and makes the model's card."""
    from ..experiments.options import merged, parse, read_yaml
    from ..experiments.spec import RunSpec

    configured = {} if options.config is None else read_yaml(options.config)
    if configured.get("task", options.task) != options.task:
        raise ValueError(f"task is {options.task!r}; allowed with {options.config}: {configured['task']!r}")
    parse(RunSpec, {"task": options.task, **configured}, "run")  # what is wrong in the file is not overridden silently
    values = merged(configured, asked(options), {"task": options.task})
    spec = RunSpec.from_dict(values)
    for source, whose in (("mask_source", spec.mask), ("task_source", spec.task)):
        if values.get(source) not in (None, now := getattr(spec, source)):
            raise ValueError(
                f"{source} is {values[source]!r}, and the code of {whose} has {now!r}; leave {source} out to train with the code "
                "as it is"
            )
    if options.threads is not None and options.threads < 1:
        raise ValueError(f"threads is {options.threads}; allowed: at least 1")
    quiet_libraries()
    import torch

    if options.threads is not None or "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(options.threads or 1)
    from ..training.environment import process_state
    from ..training.run import train_run
    from .card import fresh_card
    from .progress import EpochBar

    out = console()
    with EpochBar(f"{spec.task} {spec.label}", spec.training.epochs, out) as bar:
        result = train_run(spec, options.output, on_epoch=bar.update)
    if process_state().is_main_process:
        fresh_card(Path(options.output))
        tau = spec.training.tau
        when = f"training accuracy {tau:g} after {result.epochs_to_tau} epochs"
        if result.epochs_to_tau is None:
            when = f"training accuracy {tau:g} not reached in {result.epochs_trained} epochs ({result.status})"
        out.print(f"{when}; {result.seconds:.0f} s, evaluation included", soft_wrap=True)
        out.print(f"model: {Path(options.output) / 'model'}", soft_wrap=True, highlight=False)
    return 0
