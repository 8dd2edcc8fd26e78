"""A run directory, read once: what was asked, and what each run left. A file that cannot be read raises and is named."""

from dataclasses import dataclass
from itertools import product
from pathlib import Path

from ..files import check_not_newer, read_record
from ..schema import ExperimentRecord, SpecRecord
from ..text import mask_slug
from ..training.run_files import Run, read_run

REMAKE = "restore it, or move it away and run the same `semfocus compare` again: finished runs are kept"


@dataclass(frozen=True)
class RunDirectory:
    """A comparison's folder as it was when it was read.

    Args:
        path: the folder.
        experiment: what was asked for.
        tasks, masks, seeds: those that were asked for in their order, then what else has runs; a mask is a variant or a mask.
        runs: every run with a folder, and every one that was asked for and has none, in the order of tasks, masks and seeds.
    """

    path: Path
    experiment: ExperimentRecord
    tasks: list[str]
    masks: list[str]
    seeds: list[int]
    runs: tuple[Run, ...]

    @classmethod
    def read(cls, path: Path | str, *, required: bool = True) -> "RunDirectory":
        """Reads `experiment.json` and the files of every run.

        A run that ended at a budget below the one that the experiment now asks for is unfinished, as it is once the
        comparison has taken it up again: its end says nothing about the epochs that are still to come.

        Args:
            path: the folder.
            required: whether there must be an `experiment.json`. Without one nothing was asked for, and the runs are those with a folder.

        Raises:
            ValueError: it is no run directory, or a file cannot be read; the message names it.
        """
        path = Path(path)
        check_not_newer(path / "summary.json", 2)
        there = (path / "experiment.json").is_file()
        experiment = read_experiment(path) if required or there else ExperimentRecord(tasks={}, masks=[], seeds=[])
        runs: dict[tuple[str, str, int], Run] = {}
        for folder in sorted((path / "runs").glob("*/*/seed-*")):
            run = read_run(folder)
            if run is None:
                continue
            task, mask, seed = run.key
            place = f"{task}/{mask_slug(mask)}/seed-{seed}"
            if folder != path / "runs" / place:
                raise ValueError(f"{folder} holds the run of {place}; give the folder its name back, or move it away")
            budget = _budget(experiment, task)
            runs[run.key] = run if budget is None else run.under(budget)
        for task, mask, seed in product(experiment.tasks, experiment.masks, experiment.seeds):
            # No more is known of a run that was never started, so its specification is not checked.
            spec = SpecRecord.model_construct(task=task, mask=mask, seed=seed)
            runs.setdefault((task, mask, seed), Run(spec, None))
        asked = (experiment.tasks, experiment.masks, experiment.seeds)
        # What was asked for in its order, then what else is there.
        orders: list[list] = [
            list(dict.fromkeys([*names, *sorted({key[part] for key in runs})])) for part, names in enumerate(asked)
        ]
        keys = sorted(runs, key=lambda key: [order.index(part) for order, part in zip(orders, key, strict=True)])
        tasks, masks, seeds = orders
        return cls(path, experiment, tasks, masks, seeds, tuple(runs[key] for key in keys))

    def of(self, task: str, mask: str | None = None) -> list[Run]:
        """The runs on a task, of one mask or of all."""
        return [run for run in self.runs if run.key[0] == task and mask in (None, run.key[1])]

    def run(self, task: str, mask: str, seed: int) -> Run | None:
        """One run; None where there is none and none was asked for."""
        return next((run for run in self.of(task, mask) if run.key[2] == seed), None)


def read_experiment(path: Path) -> ExperimentRecord:
    """What was asked for in the run directory `path`.

    Raises:
        ValueError: it is none, or its `experiment.json` cannot be read; the message names it.
    """
    file = path / "experiment.json"
    if not file.is_file():
        stored = (path / "histories.tar.xz").is_file()
        remedy = f"unpack it first: python -m recipes.reproduction.archive --unpack {path} --to DIR"
        raise ValueError(
            f"{path} is not a run directory: it has no experiment.json; "
            f"{remedy if stored else '`semfocus compare` makes one'}"
        )
    return read_record(file, ExperimentRecord, REMAKE)


def _budget(experiment: ExperimentRecord, task: str) -> int | None:
    """The epochs that `experiment.json` asks for; None where the task is not asked for."""
    if task not in experiment.tasks:
        return None
    asked = [settings.training.epochs for settings in (experiment.tasks[task], experiment.defaults) if settings]
    if (budget := next(filter(None, asked), None)) is None:
        from ..experiments.spec import TrainingOptions  # and with it torch, which `semfocus status` need not wait for

        budget = TrainingOptions.epochs
    return budget
