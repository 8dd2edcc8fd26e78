"""The runs behind the claims: stored comparisons read back, checked against the paper's recipe, and put into pairs."""

import json
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from pathlib import Path
from statistics import fmean

from hf_semfocus.comparison.run_directory import RunDirectory
from hf_semfocus.data import list_tasks
from hf_semfocus.experiments.experiment import Experiment
from hf_semfocus.experiments.presets import PAPER_EPOCHS, preset
from hf_semfocus.experiments.spec import difference
from hf_semfocus.files import read_json
from hf_semfocus.schema import Convergence
from hf_semfocus.training.run_files import Run

from .archive import MACHINES, same_machine, unpack
from .stored_readme import ARCHIVE

BASELINE, MASK = "full", "topk:5"
TASKS = tuple(task for task in PAPER_EPOCHS if task != "listops")
LISTOPS = "listops"
SEEDS = tuple(range(6))
LISTOPS_SEEDS = (0, 1, 2)
TIER_RECIPES = Path(__file__).parents[1] / "paper"
LAST_EPOCHS = 5  # whose mean is a run's held-out accuracy

Machine = Mapping[str, str | int]


class Status(StrEnum):
    """What has become of a run. `NOT_STARTED` has no epoch."""

    REACHED = "reached"
    CENSORED = "censored"
    DIVERGED = "diverged"
    FAILED = "failed"
    UNFINISHED = "unfinished"
    NOT_STARTED = "not_started"


class Gap(StrEnum):
    """Why a pair does not count."""

    RUN_MISSING = "run_missing"
    TWO_MACHINES = "two_machines"
    MACHINE_UNKNOWN = "machine_unknown"


@dataclass(frozen=True)
class RunRecord:
    """One run in the protocol's numbers.

    Args:
        convergence: to τ on the training split.
        heldout: mean of held-out accuracy over the last five epochs; `best` its maximum over all.
        generalised: whether held-out accuracy reached its threshold.
        at_random: chance or the majority class, whichever is higher.
        machines: that trained it; more than one where it went on elsewhere.
    """

    status: Status
    convergence: Convergence | None = None
    trained: int = 0
    heldout: float | None = None
    best: float | None = None
    generalised: bool = False
    at_random: float | None = None
    machines: tuple[Machine, ...] = ()

    @property
    def ended(self) -> bool:
        """Whether it can be judged."""
        return self.status in (Status.REACHED, Status.CENSORED, Status.DIVERGED)


@dataclass(frozen=True)
class Pair:
    """A seed's two runs.

    Args:
        common: held-out accuracies (baseline, mask) at the last epoch that both trained.
        gap: None for a pair that counts.
    """

    seed: int
    baseline: RunRecord
    mask: RunRecord
    common: tuple[float, float] | None
    gap: Gap | None

    @property
    def convergences(self) -> tuple[Convergence, Convergence]:
        """Of a pair that counts, as `paired_tests` takes it."""
        assert self.baseline.convergence is not None
        assert self.mask.convergence is not None
        return self.baseline.convergence, self.mask.convergence

    @property
    def heldout_difference(self) -> float:
        """The mask's less the baseline's held-out accuracy, of a pair that counts."""
        assert self.baseline.heldout is not None
        assert self.mask.heldout is not None
        return self.mask.heldout - self.baseline.heldout


@dataclass(frozen=True)
class TaskRecord:
    """What is known of a task: its pairs by seed, those of the protocol first, and extra ones, which change no verdict."""

    name: str
    ceiling: int
    stored: bool
    pairs: tuple[Pair, ...]
    extra: tuple[Pair, ...] = ()

    @property
    def counted(self) -> tuple[Pair, ...]:
        """The protocol's pairs that count."""
        return tuple(pair for pair in self.pairs if pair.gap is None)

    @property
    def complete(self) -> bool:
        """Whether no pair that the protocol asks for is missing."""
        return len(self.counted) == len(self.pairs)


@dataclass(frozen=True)
class StoredRun:
    """A run as it was stored, for pictures, with the machines that trained it."""

    run: Run
    machines: tuple[Machine, ...]


def stored_name(task: str) -> str:
    """The folder of a task's comparison below recipes/results."""
    return f"paper_{task}"


def read_stored(results: Path) -> dict[str, list[StoredRun]]:
    """The runs of full attention and topk:5 of each task that is stored, by task.

    Raises:
        ValueError: a stored comparison cannot be read, or is not of the paper's recipe.
    """
    by_task = {}
    with tempfile.TemporaryDirectory() as temporary:
        for task in (*TASKS, LISTOPS):
            if (results / stored_name(task) / ARCHIVE).is_file():
                by_task[task] = read_task(unpack(results / stored_name(task), Path(temporary) / task), task)
    return by_task


def read_task(run_dir: Path, task: str) -> list[StoredRun]:
    """The runs of full attention and topk:5 on `task` in a comparison's folder, checked against the paper's recipe.

    Raises:
        ValueError: the folder is no comparison's, cannot be read, or holds runs of another recipe.
    """
    stored_runs, recipe = [], preset("paper")
    for run in _runs(run_dir):
        name, mask, _ = run.key
        if name == task and mask in (BASELINE, MASK):
            _check_recipe(run, recipe, stored_name(task))
            stored_runs.append(StoredRun(run, _machines(run)))
    if not stored_runs:
        raise ValueError(f"{run_dir} holds no run of {task} with {BASELINE} or {MASK}")
    return stored_runs


def read_tier(results: Path, name: str) -> list[StoredRun]:
    """The runs of a further tier, recipes/paper/NAME.yaml, checked against it; none where it is not stored.

    Raises:
        ValueError: it cannot be read, or is not of that recipe.
    """
    folder = results / stored_name(name)
    if not (folder / ARCHIVE).is_file():
        return []
    asked = Experiment.from_yaml(TIER_RECIPES / f"{name}.yaml")
    with tempfile.TemporaryDirectory() as temporary:
        runs = _runs(unpack(folder, Path(temporary) / name))
        for run in runs:
            _check_recipe(run, asked, folder.name)
        return [StoredRun(run, _machines(run)) for run in runs]


def _runs(run_dir: Path) -> list[Run]:
    return [run for run in RunDirectory.read(run_dir).runs if run.folder is not None]


def _check_recipe(run: Run, recipe: Experiment, name: str) -> None:
    task, mask, seed = run.key
    if task not in recipe.tasks or mask not in recipe.masks:
        raise ValueError(f"{name}: its recipe has no {task} with {mask}")
    asked = json.loads(json.dumps(recipe.spec(task, mask, seed).to_dict()))
    ran = run.spec.to_json()
    if task == LISTOPS:  # its length is what a machine can pay for (tier 4)
        ran["length"] = asked["length"]
    differs = difference(ran, asked)
    epochs, ceiling = ran["training"]["epochs"], asked["training"]["epochs"]
    # Full attention is tier 1's, with the task's own ceiling, also where a tier (6) gives its masks a lower one.
    if differs is None and epochs != ceiling and (mask, epochs) != (BASELINE, PAPER_EPOCHS[task]):
        differs = f"training.epochs: {epochs} there, {ceiling} asked"
    if differs is not None:
        raise ValueError(f"{name}: {mask}, seed {seed} is not of its recipe ({differs})")


def _machines(run: Run) -> tuple[Machine, ...]:
    assert run.folder is not None
    earlier = read_json(run.folder / MACHINES) if (run.folder / MACHINES).is_file() else []
    last = run.result and run.result.machine
    machines: list[Machine] = []
    for machine in [*(entry["machine"] for entry in earlier), *([last] if last else [])]:
        # The fuller record of one machine stays: that of a result tells who computed its products.
        machines = [*(other for other in machines if not same_machine(other, machine)), machine]
    return tuple(machines)


def task_record(
    task: str, stored: Iterable[StoredRun] | None, seeds: Iterable[int] = SEEDS, mask: str = MASK
) -> TaskRecord:
    """Pairs of the runs of `mask` and of full attention that are stored; None: nothing is."""
    by_key = {(own.run.label, own.run.spec.seed): own for own in stored or ()}
    asked = tuple(seeds)
    more = sorted({seed for _, seed in by_key} - set(asked))
    return TaskRecord(
        task,
        PAPER_EPOCHS[task],
        stored is not None,
        tuple(_pair(seed, by_key, mask) for seed in asked),
        tuple(_pair(seed, by_key, mask) for seed in more),
    )


def _pair(seed: int, runs: Mapping[tuple[str, int], StoredRun], mask: str) -> Pair:
    both = [runs.get((label, seed)) for label in (BASELINE, mask)]
    baseline, sparse = (_record(stored_run) for stored_run in both)
    machines = [*baseline.machines, *sparse.machines]
    gap = None
    if not (baseline.ended and sparse.ended):
        gap = Gap.RUN_MISSING
    elif not (baseline.machines and sparse.machines):
        gap = Gap.MACHINE_UNKNOWN
    elif not all(same_machine(first, second) for first, second in combinations(machines, 2)):
        gap = Gap.TWO_MACHINES
    histories = [stored_run.run.values("heldout_accuracy") if stored_run else [] for stored_run in both]
    epoch = min(map(len, histories))
    common = (histories[0][epoch - 1], histories[1][epoch - 1]) if epoch else None
    return Pair(seed, baseline, sparse, common, gap)


def _record(stored: StoredRun | None) -> RunRecord:
    if stored is None or (not stored.run.counts and stored.run.status != "failed"):
        return RunRecord(Status.NOT_STARTED)
    run = stored.run
    heldout = run.values("heldout_accuracy")
    data = run.result and run.result.data
    known = [value for value in (data.chance, data.majority_accuracy) if value is not None] if data else []
    return RunRecord(
        Status(run.status),
        run.convergence("train") if run.counts else None,
        len(run.history),
        fmean(heldout[-LAST_EPOCHS:]) if heldout else None,
        max(heldout, default=None),
        run.convergence("heldout").reached if run.counts else False,
        max(known, default=None),
        stored.machines,
    )


assert set(TASKS) | {LISTOPS} == set(list_tasks("paper"))
