"""The comparison: every unit of an experiment trained, several at once, in a run directory that survives a kill."""

import contextlib
import json
import math
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..data import load_task
from ..experiments.experiment import Experiment
from ..experiments.spec import RunSpec
from ..files import read_record, write_json
from ..model.mask_strategies import parse_mask
from ..model.shipping import check_ships
from ..schema import Earlier, RunResult
from ..training.checkpoints import latest_complete_checkpoint
from ..training.environment import machine, process_state, versions
from ..training.locking import folder_lock
from ..training.run import finished_before
from ..training.run_files import REPAIR, Run, read_run
from ..training.setup import check_memory, check_tracker
from .attempts import run_at
from .bucket import checked_place, is_url
from .engines import make_engine
from .engines.base import POLL_SECONDS, Engine, Job, LostRunError, Outcome, Wanted
from .records import Placements
from .run_directory import REMAKE, RunDirectory
from .storage import PROGRESS, Store, open_store
from .workers import failed, last_entry, train, write_failed

PROGRESS_SECONDS = 5.0


@dataclass(frozen=True)
class Progress:
    """Where one unit stands: what a progress bar shows.

    Args:
        unit: the run.
        state: "waiting", "running", or the result's status ("reached", "censored", "diverged", "failed").
        entry: the last epoch's history entry, if there is one, shortened.
        error: the message of a failed run.
        reached_at: the first epoch with training accuracy ≥ τ, of a finished run.
        restarted: the run has epochs and no checkpoint to go on from, as those of an unpacked archive: it begins at epoch 1.
        node: where it is being trained, if that is known.
    """

    unit: RunSpec
    state: str = "waiting"
    entry: dict[str, Any] | None = None
    error: str | None = None
    reached_at: int | None = None
    restarted: bool = False
    node: str | None = None

    @property
    def ended(self) -> bool:
        """Whether there is a result."""
        return self.state not in ("waiting", "running")

    def after(self, outcome: Outcome) -> "Progress":
        """Where the unit stands with an outcome."""
        result = outcome.result
        return replace(
            self,
            state=result.status,
            entry=outcome.entry,
            error=result.error,
            reached_at=result.epochs_to_tau,
            node=None,
        )


OnProgress = Callable[[list[Progress]], None]


def unit_folder(out: Path, unit: RunSpec) -> Path:
    """Where a unit lives in the run directory."""
    return out / "runs" / unit.name


def compare(
    experiment: Experiment,
    out: Path | str,
    jobs: int | None = None,
    command: str = "",
    on_progress: OnProgress | None = None,
    engine: Engine | None = None,
) -> list[RunResult]:
    """Trains every unit of `experiment` that is not finished in `out`, and returns all results in the units' order.

    A failed unit (an exception, a killed process) is written down as failed and does not stop the others; it is tried
    again when the comparison is started again. Finished units are not repeated, also those of an unpacked archive, which
    have their histories and no model.

    Args:
        experiment: what to compare.
        out: the run directory: a folder, which all workers see, or a URL that fsspec knows.
        jobs: units at once, each in a process of its own with one torch thread; None for the number of cores. Under
            `accelerate launch` with several processes they train each unit together, one unit after the other.
        command: what the user typed, for the report.
        on_progress: called about twice a second with the standing of every unit, on the main process.
        engine: what trains the units (`engines.make_engine`) instead of `jobs` processes here.

    Raises:
        ValueError: `out` holds other runs, or damaged files; another comparison is at work in it.
        OSError: `out` cannot be written.
    """
    with engine or make_engine("local", Wanted(jobs)) as engine:
        return _compare(experiment, out, command, on_progress, engine)


def _compare(
    experiment: Experiment, out: Path | str, command: str, on_progress: OnProgress | None, engine: Engine
) -> list[RunResult]:
    state = process_state()
    out = checked_place(out)
    if out.startswith("memory://") and not engine.in_process:
        raise ValueError(f"{out} is the memory of one process; allowed: with --engine inline")
    if state.num_processes > 1 and (is_url(out) or not engine.here):
        raise ValueError("several processes (accelerate launch) need the engine local, and a folder as output")
    experiment = experiment.resolved()
    units, store = experiment.units(), open_store(out)
    folders = [unit_folder(store.folder, unit) for unit in units]
    with folder_lock(store.folder, "another comparison") if state.is_main_process else contextlib.nullcontext():
        if state.is_main_process:
            directory = _check_directory(experiment, store)
            runs = {run.key: run for run in directory.runs}
            rows = _before(units, [runs.get((unit.task, unit.label, unit.seed)) for unit in units])
            for row in rows:
                if not row.ended:
                    if engine.here:
                        check_memory(row.unit)
                    check_tracker(row.unit)
                    check_ships([parse_mask(row.unit.mask)])
            kinds = _placements(units, engine, store)
            prepare_data(units)
            write_json(store.folder / "experiment.json", _described(experiment, command, directory))
            store.put("experiment.json")
        state.wait_for_everyone()
        if state.num_processes > 1:
            return [
                finished_before(unit, folder, model=False) or train(Job(0, unit.to_dict(), str(folder))).result
                for unit, folder in zip(units, folders, strict=True)
            ]
        rows = [replace(row, restarted=row.restarted and not store.goes_on(row.unit.name)) for row in rows]
        jobs = [Job(index, {}, store.place(unit.name), kinds[index]) for index, unit in enumerate(units)]
        return _train(rows, folders, jobs, engine, _Watch(on_progress, store))


def prepare_data(units: list[RunSpec]) -> None:
    """Makes every data set once, before any run: the workers read the cache, and too few examples are said at once."""
    wanted = {(unit.task, json.dumps(unit.data_options())): unit for unit in units}
    for unit in wanted.values():
        load_task(unit.task, **unit.data_options())


def train_all(
    units: list[RunSpec], folders: list[Path], jobs: int, on_progress: OnProgress | None = None
) -> list[RunResult]:
    """Trains each unit that is not finished in its folder, `jobs` at once in processes of one thread; returns all results.

    A failed unit is written down as failed and stops no other. `on_progress` gets the standing of all, in the units' order.
    """
    work = [Job(index, {}, str(folder)) for index, folder in enumerate(folders)]
    with make_engine("local", Wanted(jobs)) as engine:
        return _train(_before(units, list(map(read_run, folders))), folders, work, engine, _Watch(on_progress))


def _before(units: Sequence[RunSpec], runs: Sequence[Run | None]) -> list[Progress]:
    """Where the units stand before any is trained."""
    rows = []
    for unit, run in zip(units, runs, strict=True):
        result = finished_before(unit, run, model=False)
        if run is None or run.folder is None:
            rows.append(Progress(unit))
        elif result is not None:
            rows.append(Progress(unit).after(Outcome(result, last_entry(run.folder))))
        else:
            begun = bool(run.history) and latest_complete_checkpoint(run.folder / "checkpoints") is None
            rows.append(Progress(unit, restarted=begun))
    return rows


def _train(
    rows: list[Progress], folders: Sequence[Path], jobs: Sequence[Job], engine: Engine, watch: "_Watch"
) -> list[RunResult]:
    """Trains what has not ended. What came of a run is read from its place at the end: in between it takes no memory."""
    unrecorded = {}
    waiting = [job for job, row in zip(jobs, rows, strict=True) if not row.ended]
    engine.prepare(len(waiting))
    watch(rows, folders, engine)
    for event in engine.outcomes(train, (replace(job, spec=rows[job.index].unit.to_dict()) for job in waiting)):
        if event is not None:
            job, outcome = event
            if isinstance(outcome, LostRunError):
                outcome = _lost(rows[job.index].unit, job, str(outcome))
            if not outcome.recorded:
                unrecorded[job.index] = outcome.result
            rows[job.index] = rows[job.index].after(outcome)
        watch(rows, folders, engine)
    watch(rows, folders, engine, ended=True)
    if watch.store is not None:
        watch.store.refresh()
    return [
        unrecorded.get(index) or read_record(folder / "result.json", RunResult, REPAIR)
        for index, folder in enumerate(folders)
    ]


def _lost(unit: RunSpec, job: Job, reason: str) -> Outcome:
    try:
        with run_at(job.place) as run:
            result = write_failed(unit, run.folder, reason)
            run.publish(final=True)
            return Outcome(result, last_entry(run.folder))
    except OSError as error:
        if not is_url(job.place):
            raise
        return Outcome(failed(f"{reason}; {error}"), recorded=False)


class _Watch:
    """Tells where a comparison stands: `on_progress` about twice a second, and a file for `semfocus status`."""

    def __init__(self, on_progress: OnProgress | None, store: Store | None = None):
        self.on_progress, self.store = on_progress, store
        self.started = time.monotonic()
        self.next = math.inf if on_progress is None else 0.0
        self.next_file = math.inf if store is None else 0.0
        self.ended_before: int | None = None

    def __call__(self, rows: list[Progress], folders: Sequence[Path], engine: Engine, ended: bool = False) -> None:
        now = time.monotonic()
        if self.ended_before is None:
            self.ended_before = sum(row.ended for row in rows)
        if not ended and now < min(self.next, self.next_file):
            return
        rows = list(rows)
        for index, (node, entry) in engine.running().items():
            rows[index] = replace(rows[index], state="running", node=node, entry=entry or last_entry(folders[index]))
        if self.on_progress is not None and (ended or now >= self.next):
            self.on_progress(rows)
            # With many runs, looking at each takes its time: no more than a twentieth.
            self.next = time.monotonic() + max(POLL_SECONDS, 20 * (time.monotonic() - now))
        if self.store is not None and (ended or now >= self.next_file):
            self.store.tell(PROGRESS, self._told(rows, ended))
            self.next_file = time.monotonic() + PROGRESS_SECONDS

    def _told(self, rows: list[Progress], ended: bool) -> dict[str, Any]:
        states = Counter(row.state for row in rows)
        left = states["waiting"] + states["running"]
        done = len(rows) - left - (self.ended_before or 0)
        seconds = (time.monotonic() - self.started) * left / done if done else None
        return {
            "updated": datetime.now(UTC).isoformat(timespec="seconds"),
            "driver": {"node": socket.gethostname(), "process": os.getpid()},
            "ended": ended,
            "runs": len(rows),
            "states": dict(states),
            "nodes": dict(Counter(row.node for row in rows if row.node is not None)),
            "running": [
                {
                    "run": row.unit.name,
                    "node": row.node,
                    "epoch": (row.entry or {}).get("epoch"),
                    "of": row.unit.training.epochs,
                }
                for row in rows
                if row.state == "running"
            ],
            "seconds_left": seconds,
        }


def _placements(units: Sequence[RunSpec], engine: Engine, store: Store) -> list[str | None]:
    """The kind of node for each unit: one for all masks of a task and seed, which are compared with each other.

    Written down, so that a comparison that goes on keeps it.

    Raises:
        ValueError: runs are on a kind of which the cluster has no node.
    """
    kinds, path = engine.kinds(), store.folder / "placements.json"
    chosen = read_record(path, Placements, REMAKE).root if path.is_file() else {}
    if not kinds:
        return [None] * len(units)
    pairs = list(dict.fromkeys(f"{unit.task}/seed-{unit.seed}" for unit in units))
    for pair in pairs:
        load = Counter(chosen.values())
        chosen.setdefault(pair, min(kinds, key=lambda kind: ((load[kind] + 1) / kinds[kind], kind)))
    if gone := next((kind for pair in pairs if (kind := chosen[pair]) not in kinds), None):
        raise ValueError(
            f"runs of this comparison are on nodes of kind {gone!r} ({path.name}), and the cluster has {', '.join(sorted(kinds))}; "
            "add such a node, or choose another --output"
        )
    write_json(path, chosen)
    store.put(path.name)
    return [chosen[f"{unit.task}/seed-{unit.seed}"] for unit in units]


def _check_directory(experiment: Experiment, store: Store) -> RunDirectory:
    """What the directory holds; refused where that is runs that the experiment does not: a report must not drop runs silently."""
    out = store.folder
    # Every file of every run, before any is trained: the summary would refuse them afterwards.
    directory = RunDirectory.read(out, required=False)
    names = [run.folder.relative_to(out / "runs").as_posix() for run in directory.runs if run.folder is not None]
    asked = {unit.name for unit in experiment.units()}
    left_out = [name for name in names if name not in asked and (out / "runs" / name / "history.jsonl").exists()]
    if left_out:
        there = (out / "experiment.json").exists()  # it may have been moved away because it was damaged
        name = repr(directory.experiment.name) if there else "without its experiment.json"
        raise ValueError(
            f"{store.shown} holds another comparison ({name}), with {left_out[0]} among {len(left_out)} runs that this one would leave "
            "out; choose another --output, or ask for these tasks, masks and seeds too"
            + (f" (--config {out / 'experiment.json'} asks for what it holds)" if there else "")
        )
    return directory


def _described(experiment: Experiment, command: str, directory: RunDirectory) -> dict[str, Any]:
    """What was asked, and where: a comparison that goes on elsewhere keeps the machines and versions that it had before."""
    before = directory.experiment
    here = {"versions": versions(), "machine": machine()}
    earlier = before.earlier
    there = Earlier(created=before.created, versions=before.versions or None, machine=before.machine)
    if (directory.path / "experiment.json").is_file() and any(there[name] != value for name, value in here.items()):
        earlier = [*earlier, there]
    return {
        "format": 1,
        "command": command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        **here,
        **({"earlier": [place.to_json() for place in earlier]} if earlier else {}),
        **experiment.to_dict(),
        "units": [unit.name for unit in experiment.units()],
    }
