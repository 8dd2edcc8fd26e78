"""The trials of `search.py`: which points are tried, the run of each, and its score."""

import argparse
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_semfocus.data.options import parse_length
from hf_semfocus.experiments.options import merged, nested
from hf_semfocus.experiments.presets import preset
from hf_semfocus.experiments.spec import RunSpec
from hf_semfocus.training.run_files import Run

LOG = {
    "learning_rate": (0.03, 1.0),
    "embedding_std": (0.3, 3.0),
    "position_std": (0.3, 3.0),
    "attention_gain": (0.5, 4.0),
}
CHOICES = {"max_grad_norm": (0.0, 0.3, 1.0), "lr_decay": (0.97, 0.99, 1.0), "batch_size": (50, 100, 200)}
FIRST = {
    "learning_rate": 0.3, "embedding_std": 1.0, "position_std": 1.0, "attention_gain": 1.0,
    "max_grad_norm": 1.0, "lr_decay": 0.99, "batch_size": 100,
}  # fmt: skip
MODEL = ("embedding_std", "position_std", "attention_gain")
TRAINING = ("learning_rate", "max_grad_norm", "lr_decay", "batch_size")
FIXED = {"attention_form": "multihead", "position_embedding_type": "learned", "norm_position": "post"}
TAU = 0.95
FIRST_SEARCH_SEED = 1000  # comparisons have seeds 0, 1, 2, …


@dataclass(frozen=True)
class Score:
    """How a finished trial did."""

    value: float
    status: str
    epochs_trained: int
    epochs_to_tau: int | None
    best_train_accuracy: float
    validation_accuracy: float
    seconds: float

    @property
    def rank(self) -> tuple[float, float]:
        """What trials are ordered by, the best first."""
        return self.value, -self.validation_accuracy


def points(trials: int, seed: int) -> list[dict[str, Any]]:
    """The parameters of trials 0, 1, 2, …; more trials continue the list.

    A scrambled Sobol sequence behind the known setting. Ten trials are too few for TPE to model seven parameters, most of
    its scores would be plateaus that differ by luck, and a point that depends on its number alone is the same whatever
    the number of jobs and however often the search was killed. It covers each range more evenly than random draws.
    """
    from scipy.stats import qmc

    drawn = qmc.Sobol(len(FIRST), rng=seed).random_base2(max(1, math.ceil(math.log2(max(2, trials)))))
    drawn_points = [dict(FIRST)]
    for row in drawn[: trials - 1].tolist():
        values: dict[str, Any] = {}
        for at, name in zip(row, FIRST, strict=True):
            if name in LOG:
                low, high = LOG[name]
                # Two digits: one run shows nothing finer, and a recipe is read by people.
                values[name] = float(f"{low * (high / low) ** at:.2g}")
            else:
                values[name] = CHOICES[name][int(at * len(CHOICES[name]))]
        drawn_points.append(values)
    return drawn_points


def point(words: Sequence[str]) -> dict[str, Any]:
    """The parameters that one `--point` names: `NAME=VALUE` each, the others as in trial 0."""
    given = nested({}, words)
    for name in given:
        if name not in FIRST:
            raise ValueError(f"--point has {name!r}; allowed: NAME=VALUE with one of {', '.join(FIRST)}")
    return {**FIRST, **given}


def specification(options: argparse.Namespace, task: str, parameters: Mapping[str, Any]) -> RunSpec:
    """The run of one trial."""
    return RunSpec.from_dict(
        {
            **sizes(options, task),
            "task": task,
            "mask": "full",
            "seed": options.seed,
            "test_size": 1,
            "model": {**FIXED, **sizes(options, task)["model"], **{name: parameters[name] for name in MODEL}},
            "training": {
                **{name: parameters[name] for name in TRAINING},
                "epochs": options.epochs,
                "tau": TAU,
                "heldout_split": "validation",
                # Training accuracy alone ends a trial: some tasks are learnt by heart and never generalise.
                "heldout_tau": 1e-9,
            },
        }
    )


def sizes(options: argparse.Namespace, task: str) -> dict[str, Any]:
    """What the options say of sizes over what the paper has for `task`."""
    paper = preset("paper")
    settings = merged(paper.defaults, paper.tasks.get(task, {}))
    length = settings["length"] if options.length is None else parse_length(options.length)
    return {
        "length": list(length) if isinstance(length, tuple) else length,
        "train_size": options.train_size,
        "validation_size": options.validation_size,
        "model": {
            "num_hidden_layers": settings["model"]["num_hidden_layers"] if options.layers is None else options.layers,
            **({} if options.width is None else dict.fromkeys(("hidden_size", "intermediate_size"), options.width)),
        },
    }


def scored(run: Run, epochs: int) -> Score:
    """The score of a finished run with a budget of `epochs`."""
    learnt = run.convergence("train")
    best = max(run.values("train_accuracy"), default=0.0)
    if learnt.reached:
        value = float(learnt.epochs)
    else:  # what a run had learnt before its loss became infinite is no reason to compare masks with its settings
        value = epochs + 1.0 if run.diverged else epochs + 1 - best
    last = run.history[-1]
    return Score(
        value=value,
        status=run.status,
        epochs_trained=len(run.history),
        epochs_to_tau=learnt.epochs if learnt.reached else None,
        best_train_accuracy=best,
        validation_accuracy=last.heldout_accuracy,
        seconds=round(last.seconds, 1),
    )


def results_folder(write: Path) -> Path:
    """Where the tables go, for recipes that go into `write`: ../results/search beside it."""
    return Path(os.path.normpath(write / ".." / "results" / "search"))
