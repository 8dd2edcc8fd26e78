"""Hyperparameters of a task, chosen for full attention only: a small search whose trials and choice are stored.

python recipes/search.py --tasks even_pairs cycle_navigation --length 20 --layers 3 --jobs 2 --write recipes/tasks

What is searched, for every task at the same points (trial 0 is what full attention was first seen to learn with):

| parameter              | values                | trial 0 |
|------------------------|-----------------------|---------|
| training.learning_rate | 0.03 … 1, log         | 0.3     |
| training.max_grad_norm | 0 (no clipping), 0.3, 1 | 1     |
| training.lr_decay      | 0.97, 0.99, 1         | 0.99    |
| training.batch_size    | 50, 100, 200          | 100     |
| model.embedding_std    | 0.3 … 3, log          | 1       |
| model.position_std     | 0.3 … 3, log          | 1       |
| model.attention_gain   | 0.5 … 4, log          | 1       |

Fixed: full attention, multihead, learned positions, post-norm, SGD. The data, the initial weights and the order of batches
are those of a seed that no comparison uses, "held-out" is their validation split, and their test split is one row that nobody
reads. A trial ends when its training accuracy is 95 %. Its score is the epochs that this took; where it was not reached, the
budget + (1 − best training accuracy); where the loss became infinite, the budget + 1. The lowest score is chosen, of equal
ones the highest validation accuracy.

Behind these, `--point learning_rate=0.1 attention_gain=3.8` adds a point that somebody chose, all else as in trial 0; also
outside the ranges above. The table and the recipe say which points those are.

Trials are ordinary runs below --output: killed and started again, the command goes on with each from its last epoch, and
with more --trials or another --point it adds some. Writes <task>.csv there and, with --write, <task>.yaml for `semfocus compare --config`.
"""

import argparse
import csv
import io
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from search_trials import (
    FIRST,
    FIRST_SEARCH_SEED,
    MODEL,
    TAU,
    TRAINING,
    Score,
    point,
    points,
    results_folder,
    scored,
    sizes,
    specification,
)

from hf_semfocus.cli.progress import accuracies, share_bar
from hf_semfocus.cli.terminal import quiet_libraries
from hf_semfocus.comparison.compare import Progress as Standing
from hf_semfocus.comparison.compare import prepare_data, train_all
from hf_semfocus.data import list_tasks
from hf_semfocus.experiments.experiment import Experiment
from hf_semfocus.experiments.options import merged
from hf_semfocus.experiments.presets import PAPER_MASKS, preset
from hf_semfocus.experiments.spec import RunSpec, difference
from hf_semfocus.files import atomic_write, read_json
from hf_semfocus.schema import FINISHED
from hf_semfocus.text import length_text, plural
from hf_semfocus.training.environment import available_cores
from hf_semfocus.training.locking import folder_lock
from hf_semfocus.training.run_files import read_run
from hf_semfocus.training.setup import check_memory

COMPARED_SEEDS = (0, 1, 2)
# Seeds differ: full attention took 27 and 15 epochs on even_pairs with one set. The comparison gets more than the search.
COMPARED_BUDGETS = 2


class Search:
    """One task's search: trials are runs in folders of their own, and a trial is known by its run's parameters.

    Args:
        task: its name.
        options: of the command line.

    Raises:
        ValueError: the trials there have other settings.
    """

    def __init__(self, task: str, options: argparse.Namespace):
        self.task, self.options = task, options
        known = self._trials_before()
        # No pruner: full attention sits on a plateau for tens of epochs and then jumps, so accuracy half way tells nothing; a
        # diverged run ends by itself.
        drawn = points(options.trials, options.seed)
        # A folder with more trials than asked for answers for those asked for: the table and the budget agree.
        self.parameters: dict[int, dict[str, Any]] = {}
        self.by_hand: set[int] = set()
        for parameters in [*drawn, *options.points]:
            number = next(
                (number for number, other in known.items() if other == parameters), max(known, default=-1) + 1
            )
            known[number] = self.parameters[number] = parameters
            if parameters not in drawn:
                self.by_hand.add(number)
        self.before = sorted(known.keys() - self.parameters.keys())
        self.scores: dict[int, Score] = {}
        self.written = False

    def _trials_before(self) -> dict[int, dict[str, Any]]:
        """The parameters of the trials that an earlier start began, by number."""
        known = {}
        for path in sorted((self.options.output / self.task).glob("trial-*/spec.json")):
            spec = read_json(path)
            number = int(path.parent.name.removeprefix("trial-"))
            known[number] = {name: spec["model" if name in MODEL else "training"][name] for name in FIRST}
            asked = json.loads(json.dumps(specification(self.options, self.task, known[number]).to_dict()))
            other = difference(spec, asked)
            if other is None and spec["training"]["epochs"] != self.options.epochs:  # a score depends on its budget
                other = f"epochs: {spec['training']['epochs']} there, {self.options.epochs} asked"
            if other is not None:
                raise ValueError(f"{path.parent} is of another search ({other}); choose another --output")
        return known

    def folder(self, number: int) -> Path:
        """Where a trial's run is."""
        return self.options.output / self.task / f"trial-{number:02}"

    def units(self) -> list[RunSpec]:
        """The runs of all trials."""
        return [specification(self.options, self.task, parameters) for parameters in self.parameters.values()]

    def score(self, number: int) -> Score:
        """The score of a finished trial."""
        if number not in self.scores:
            run = read_run(self.folder(number))
            assert run is not None
            self.scores[number] = scored(run, self.options.epochs)
        return self.scores[number]

    def line(self, number: int) -> str:
        """What came of a finished trial."""
        score = self.score(number)
        return (
            f"{self.task} trial {number}: {score.status}, score {score.value:.3f}, {score.epochs_trained} epochs, "
            f"training {score.best_train_accuracy:.3f}, validation {score.validation_accuracy:.3f}"
        )

    @property
    def done(self) -> bool:
        """Whether every trial is finished."""
        return len(self.scores) == len(self.parameters)

    @property
    def reached(self) -> int:
        """How many trials reached τ."""
        return sum(score.epochs_to_tau is not None for score in self.scores.values())

    @property
    def chosen(self) -> int:
        """The number of the best trial."""
        return min(self.scores, key=lambda number: (self.scores[number].rank, number))

    def table(self) -> str:
        """CSV, a row a trial."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        names = [name for name in Score.__dataclass_fields__ if name != "value"]
        writer.writerow(["trial", "by_hand", *FIRST, "score", *names, "chosen"])
        for number, parameters in sorted(self.parameters.items()):
            score = self.scores[number]
            values = [getattr(score, name) for name in names]
            row = [parameters[name] for name in FIRST] + [round(score.value, 6), *values]
            cells = ["" if value is None else value for value in row]
            writer.writerow([number, int(number in self.by_hand), *cells, int(number == self.chosen)])
        return file.getvalue()

    def _uncounted(self) -> list[str]:
        """A sentence where there are trials that are not asked for now: the budget was larger."""
        numbers = ", ".join(map(str, self.before))
        return (
            [f"Not among them, and trained before: trial{'s' * (len(self.before) > 1)} {numbers}."] if numbers else []
        )

    def write(self) -> None:
        """The table, and the recipe where it is asked for."""
        atomic_write(self.options.output / f"{self.task}.csv", self.table())
        if self.options.write is not None:
            results = results_folder(self.options.write) / f"{self.task}.csv"
            atomic_write(results, self.table())
            path = self.options.write / f"{self.task}.yaml"
            atomic_write(path, self.recipe(path, results))
            Experiment.from_yaml(path)
        self.written = True

    def recipe(self, path: Path, results: Path) -> str:
        """The experiment with the chosen hyperparameters, and above it how they were found."""
        options, score, parameters = self.options, self.scores[self.chosen], self.parameters[self.chosen]
        size = sizes(options, self.task)
        outcome = f"{score.epochs_to_tau} epochs to {TAU:.0%}"
        if score.epochs_to_tau is None:
            outcome = f"score {score.value:.3f}, as {TAU:.0%} was not reached: {score.status}, at most {score.best_train_accuracy:.3f}"
        by_hand = f" ({len(self.by_hand)} at points chosen by hand)" if self.by_hand else ""
        header = [
            f"semfocus compare --config {path} --output runs/{self.task}",
            "The same hyperparameters for every mask, chosen for full attention alone by",
            f"  {options.command_line}",
            f"Budget: {len(self.scores)} trials{by_hand} of at most {options.epochs} epochs, on training and "
            f"validation data of seed {options.seed}, which no comparison uses.",
            f"{self.reached} of {len(self.scores)} trials reached {TAU:.0%} training accuracy. Chosen: trial {self.chosen} ({outcome};"
            f" validation accuracy {score.validation_accuracy:.3f}).",
            *self._uncounted(),
            f"All trials: {results}",
        ]
        experiment = {
            "name": self.task,
            "note": f"{_size_words(size, self.task)} Hyperparameters chosen for full attention.",
            "tasks": {
                self.task: {
                    "model": {name: parameters[name] for name in MODEL},
                    "training": {"optimizer": "sgd", **{name: parameters[name] for name in TRAINING}},
                }
            },
            "masks": list(PAPER_MASKS),
            "seeds": list(COMPARED_SEEDS),
            "defaults": {**size, "training": {"epochs": COMPARED_BUDGETS * options.epochs}},
        }
        text = yaml.safe_dump(experiment, sort_keys=False, allow_unicode=True, width=120)
        # An argument with a line break in it stays a comment.
        return "".join(f"# {' '.join(line.splitlines())}\n" for line in header) + text


def _size_words(size: Mapping[str, Any], task: str) -> str:
    paper = preset("paper")
    settings = [size, merged(paper.defaults, paper.tasks.get(task, {}))]
    asked, other = (_one_size(RunSpec.from_dict({**values, "task": task, "mask": "full"})) for values in settings)
    return f"Paper size: {asked}." if asked == other else f"Reduced size: {asked} (the paper: {other})."


def _one_size(spec: RunSpec) -> str:
    blocks, width = plural(spec.model["num_hidden_layers"], "block"), spec.model.get("hidden_size", 64)
    return f"length {length_text(spec.length)}, {blocks} of width {width}, {spec.train_size:,} training examples"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--tasks", nargs="+", default=list_tasks("paper"), help="(default: the paper's eight)")
    made.add_argument("--trials", type=int, default=10, help="settings tried for each task (default: 10)")
    made.add_argument(
        "--point", nargs="+", action="append", default=[], metavar="NAME=VALUE",
        help="one more setting, chosen by hand; what is not named is as in trial 0 (may be given several times)",
    )  # fmt: skip
    made.add_argument("--epochs", type=int, default=40, help="budget of a trial (default: 40)")
    made.add_argument("--length", help="of the inputs: 20, or 100-200 for a range (default: the task's in the paper)")
    made.add_argument("--layers", type=int, help="blocks (default: the task's in the paper)")
    made.add_argument("--width", type=int, help="of the model and its MLPs (default: 64)")
    made.add_argument("--train-size", type=int, default=5000, help="training examples (default: 5000)")
    made.add_argument("--validation-size", type=int, default=1000, help="validation examples (default: 1000)")
    made.add_argument(
        "--seed",
        type=int,
        default=FIRST_SEARCH_SEED,
        help=f"of data, weights and batches, from {FIRST_SEARCH_SEED} on: lower ones are the comparisons' (default: {FIRST_SEARCH_SEED})",
    )
    made.add_argument("--jobs", type=int, help="trials at once, one torch thread each (default: the number of cores)")
    made.add_argument("--output", type=Path, default=Path("runs/search"), help="folder for the trials and the tables")
    made.add_argument(
        "--write", type=Path, metavar="DIR",
        help="also write <task>.yaml there, and <task>.csv into ../results/search beside it: recipes/tasks",
    )  # fmt: skip
    return made


def checked(options: argparse.Namespace) -> argparse.Namespace:
    """The options, or a ``ValueError`` for a value that none can have."""
    for name, least in (("trials", 1), ("jobs", 1), ("seed", FIRST_SEARCH_SEED)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise ValueError(f"--{name} is {value}; allowed: at least {least}")
    options.points = [point(words) for words in options.point]
    options.tasks = list(dict.fromkeys(options.tasks))
    for task in options.tasks:
        for parameters in [FIRST, *options.points]:
            specification(options, task, parameters)
    if options.write is not None:  # now, and not after hours
        for folder in (options.write, results_folder(options.write)):
            folder.mkdir(parents=True, exist_ok=True)
    return options


def run(options: argparse.Namespace) -> int:
    """Searches; 1 if a trial failed, for whose task nothing is written."""
    quiet_libraries()
    console = Console()
    with folder_lock(options.output, "another search"):
        prepare_data([specification(options, task, FIRST) for task in options.tasks])
        searches = [Search(task, options) for task in options.tasks]
        units = [unit for search in searches for unit in search.units()]
        folders = [search.folder(number) for search in searches for number in search.parameters]
        for unit in units:
            check_memory(unit)
        with share_bar(console) as bars:
            bar = bars.add_task("", total=len(units))

            def update(standing: Sequence[Standing]) -> None:
                rows, now = iter(standing), []
                for search in searches:
                    for number in search.parameters:
                        row = next(rows)
                        if row.state in FINISHED and number not in search.scores:
                            console.print(search.line(number), soft_wrap=True, highlight=False)
                        elif row.state == "running":
                            now.append(f"{search.task} trial {number}, {accuracies(row.entry)}")
                    if search.done and not search.written:
                        search.write()
                ended = sum(len(search.scores) for search in searches)
                bars.update(bar, completed=ended, description="; ".join(now))

            results = train_all(units, folders, options.jobs or available_cores(), update)
    for search in searches:
        if search.done:
            console.print(f"{search.task}: {search.reached} of {len(search.scores)} trials reached {TAU:.0%}; chosen: "
                          f"trial {search.chosen}, score {search.scores[search.chosen].value:.3f}", highlight=False)  # fmt: skip
    failed = [folder for folder, result in zip(folders, results, strict=True) if result.status == "failed"]
    for folder in failed:
        print(f"search: {folder} failed, see its log.txt; started again, the search tries it again", file=sys.stderr)
    return 1 if failed else 0


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(arguments)
    options.command_line = shlex.join(["python", "recipes/search.py", *arguments])
    try:
        return run(checked(options))
    except KeyboardInterrupt:
        print("\nsearch: interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    except (ValueError, OSError) as error:
        print(f"search: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
