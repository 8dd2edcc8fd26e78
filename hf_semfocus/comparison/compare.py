"""The comparison: every unit of an experiment trained, several at once, in a run directory that survives a kill."""

import contextlib
import json
import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pebble import ProcessExpired

from ..data import load_task
from ..experiments.experiment import Experiment
from ..experiments.spec import RunSpec
from ..files import write_json
from ..model.mask_strategies import parse_mask
from ..model.shipping import check_ships
from ..schema import Earlier, Epoch, RunResult
from ..training.checkpoints import latest_complete_checkpoint
from ..training.environment import available_cores, machine, process_state, use_one_thread, versions
from ..training.locking import folder_lock
from ..training.results import FORMAT
from ..training.run import finished_before, train_run
from ..training.run_files import read_history
from ..training.setup import check_memory, check_tracker
from .run_directory import RunDirectory
from .workers import worker_environment, worker_pool

POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Progress:
    """Where one unit stands: what a progress bar shows.

    Args:
        unit: the run.
        state: "waiting", "running", or the result's status ("reached", "censored", "diverged", "failed").
        entry: the last epoch's history entry, if there is one.
        error: the message of a failed run.
        reached_at: the first epoch with training accuracy ≥ τ, of a finished run.
        restarted: the run has epochs and no checkpoint to go on from, as those of an unpacked archive: it begins at epoch 1.
    """

    unit: RunSpec
    state: str
    entry: Epoch | None = None
    error: str | None = None
    reached_at: int | None = None
    restarted: bool = False


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
) -> list[RunResult]:
    """Trains every unit of `experiment` that is not finished in `out`, and returns all results in the units' order.

    A failed unit (an exception, a killed process) is written down as failed and does not stop the others; it is tried
    again when the comparison is started again. Finished units are not repeated, also those of an unpacked archive, which
    have their histories and no model.

    Args:
        experiment: what to compare.
        out: the run directory.
        jobs: units at once, each in a process of its own with one torch thread; None for the number of cores. Under
            `accelerate launch` with several processes they train each unit together, one unit after the other.
        command: what the user typed, for the report.
        on_progress: called about twice a second with the standing of every unit, on the main process.

    Raises:
        ValueError: `out` holds other runs, or damaged files; another comparison is at work in it.
        OSError: `out` cannot be written.
    """
    experiment, out = experiment.resolved(), Path(out)
    units = experiment.units()
    folders = [unit_folder(out, unit) for unit in units]
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs is {jobs}; allowed: at least 1")
    state = process_state()
    with folder_lock(out, "another comparison") if state.is_main_process else contextlib.nullcontext():
        if state.is_main_process:
            directory = _check_directory(experiment, out)
            for unit, folder in zip(units, folders, strict=True):
                if finished_before(unit, folder, model=False) is None:
                    check_memory(unit)
                    check_tracker(unit)
                    check_ships([parse_mask(unit.mask)])
            prepare_data(units)
            write_json(out / "experiment.json", _described(experiment, command, directory))
        state.wait_for_everyone()
        if state.num_processes > 1:
            results = [
                finished_before(unit, folder, model=False) or _work(unit.to_dict(), folder)
                for unit, folder in zip(units, folders, strict=True)
            ]
        else:
            results = train_all(units, folders, jobs or available_cores(), on_progress)
    return results


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
    results: dict[int, RunResult] = {}
    for index, (unit, folder) in enumerate(zip(units, folders, strict=True)):
        done = finished_before(unit, folder, model=False)
        if done is not None:
            results[index] = done
    waiting = [index for index in range(len(units)) if index not in results]
    restarted = {
        index
        for index in waiting
        if (folders[index] / "history.jsonl").exists()
        and latest_complete_checkpoint(folders[index] / "checkpoints") is None
    }

    def standing(running: set[int]) -> list[Progress]:
        return _standing(units, folders, results, running, restarted)

    with worker_environment(), worker_pool(min(jobs, len(waiting) or 1)) as pool:
        futures: dict[Future, int] = {}
        try:
            for index in waiting:
                futures[pool.schedule(_work, args=[units[index].to_dict(), folders[index]])] = index
            pending = set(futures)
            while pending:
                ended, pending = wait(pending, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
                for future in ended:
                    index = futures[future]
                    results[index] = _outcome(future, units[index], folders[index])
                if on_progress is not None:
                    running = {futures[future] for future in pending if future.running()}
                    on_progress(standing(running))
        except BaseException:
            pool.stop()  # an interrupted comparison leaves no worker behind; each unit goes on from its last epoch
            raise
    if on_progress is not None:
        on_progress(standing(set()))
    return [results[index] for index in range(len(units))]


def _standing(
    units, folders: list[Path], results: dict[int, RunResult], running: set[int], restarted: set[int]
) -> list[Progress]:
    standing = []
    for index, unit in enumerate(units):
        path = folders[index] / "history.jsonl"
        entry = None
        if (index in running or index in results) and path.exists():
            entry = read_history(path)[-1]
        result = results.get(index)
        state = result.status if result else "running" if index in running else "waiting"
        ends = (result.error, result.epochs_to_tau) if result else (None, None)
        standing.append(Progress(unit, state, entry, *ends, index in restarted))
    return standing


def _outcome(future, unit: RunSpec, folder: Path) -> RunResult:
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise ValueError(f"no worker process could be started ({error}); see the error above it") from error
    except ProcessExpired as error:
        return _write_failed(unit, folder, f"the process died (exit code {error.exitcode})")


def _write_failed(unit: RunSpec, folder: Path, error: str) -> RunResult:
    """Writes down that `unit` failed, beside its specification: a worker may have died before it could write even that."""
    failed = RunResult(format=FORMAT, status="failed", error=error, versions=versions(), machine=machine())
    if not (folder / "spec.json").exists():
        write_json(folder / "spec.json", unit.to_dict())
    write_json(folder / "result.json", failed.to_json())
    return failed


def _work(values: dict[str, Any], folder: Path) -> RunResult:
    """One unit in a worker: its output goes to `log.txt`, its failure into `result.json`."""
    alone = process_state().num_processes == 1
    if alone:
        use_one_thread()
    folder.mkdir(parents=True, exist_ok=True)
    with (
        open(folder / "log.txt", "a", encoding="utf-8") as log,
        _output_to(log) if alone else contextlib.nullcontext(),
    ):
        try:
            return train_run(RunSpec.from_dict(values), folder)
        except Exception as error:
            log.write(traceback.format_exc())
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
            return _write_failed(RunSpec.from_dict(values), folder, text)


@contextlib.contextmanager
def _output_to(log) -> Iterator[None]:
    """Everything that libraries print or log goes to the unit's own file, not into the progress bars."""
    handler = logging.StreamHandler(log)
    # Libraries that made a handler when they were imported, as transformers does, keep the stream of that moment.
    loggers = [entry for entry in logging.Logger.manager.loggerDict.values() if isinstance(entry, logging.Logger)]
    own = {
        made: made.stream
        for logger in loggers
        for made in logger.handlers
        if type(made) is logging.StreamHandler and made.stream in (sys.stderr, sys.stdout)
    }
    logging.getLogger().addHandler(handler)
    for made in own:
        made.setStream(log)
    try:
        with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            yield
    finally:
        logging.getLogger().removeHandler(handler)
        for made, stream in own.items():
            made.setStream(stream)


def _check_directory(experiment: Experiment, out: Path) -> RunDirectory:
    """What the directory holds; refused where that is runs that the experiment does not: a report must not drop runs silently."""
    # Every file of every run, before any is trained: the summary would refuse them afterwards.
    directory = RunDirectory.read(out, required=False)
    names = [run.folder.relative_to(out / "runs").as_posix() for run in directory.runs if run.folder is not None]
    asked = {unit.name for unit in experiment.units()}
    left_out = [name for name in names if name not in asked and (out / "runs" / name / "history.jsonl").exists()]
    if left_out:
        there = (
            out / "experiment.json"
        ).exists()  # moved away because it was damaged: the runs' folders alone tell what there is
        name = repr(directory.experiment.name) if there else "without its experiment.json"
        raise ValueError(
            f"{out} holds another comparison ({name}), with {left_out[0]} among {len(left_out)} runs that this one would leave out; "
            "choose another --output, or ask for these tasks, masks and seeds too"
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
