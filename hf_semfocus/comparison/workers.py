"""What a worker of any engine does: one run, its output in `log.txt`, its failure in `result.json`."""

import contextlib
import logging
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers.utils.logging import disable_progress_bar

from ..experiments.spec import RunSpec
from ..files import read_json_lines, write_json
from ..schema import RESULT_FORMAT, Epoch, RunResult
from ..training.environment import machine, process_state, use_threads, versions
from ..training.run import train_run
from .attempts import run_at
from .bucket import StorageError, is_url
from .engines.base import Job, Outcome, Tell

SHOWN = ("epoch", "train_accuracy", "running_accuracy", "heldout_accuracy", "seconds")
"""What progress shows of a history's entry."""


def train(job: Job, cpus: int = 1, tell: Tell | None = None) -> Outcome:
    """Trains a job to its end, from where an earlier attempt has left it.

    Returns:
        What is recorded in the run's place, also of a run that failed. `recorded` is False under a URL where the storage could not be
        reached, this node's scratch folder could not be written, or a later attempt at the same run has taken it over.

    Raises:
        OSError: a run's folder cannot be written.
    """
    alone = process_state().num_processes == 1
    if alone:
        use_threads(cpus)
    spec = RunSpec.from_dict(job.spec)

    def on_epoch(entry: Epoch) -> None:
        if tell is not None:
            tell({name: entry.get(name) for name in SHOWN})

    try:
        with run_at(job.place) as run:
            result = _trained(spec, run, on_epoch, job.kind, alone)
            run.publish(final=True)
            return Outcome(result, last_entry(run.folder))
    except OSError as error:
        if not is_url(job.place):
            raise
        return Outcome(failed(str(error)), recorded=False)


def _trained(spec: RunSpec, run, on_epoch, kind: str | None, alone: bool) -> RunResult:
    run.folder.mkdir(parents=True, exist_ok=True)
    if alone:  # a log has no use for bars
        disable_progress_bar()
    with (
        open(run.folder / "log.txt", "a", encoding="utf-8") as log,
        output_to(log) if alone else contextlib.nullcontext(),
    ):
        try:
            return train_run(spec, run.folder, on_epoch, on_checkpoint=run.publish, placement=kind)
        except StorageError:
            raise
        except Exception as error:
            log.write(traceback.format_exc())
            return write_failed(spec, run.folder, f"{type(error).__name__}: {' '.join(str(error).split())}")


def failed(error: str) -> RunResult:
    """The result of a run that failed here and now."""
    return RunResult(format=RESULT_FORMAT, status="failed", error=error, versions=versions(), machine=machine())


def write_failed(spec: RunSpec, folder: Path, error: str) -> RunResult:
    """Writes down that a run failed, beside its specification: a worker may have died before it could write even that."""
    result = failed(error)
    if not (folder / "spec.json").exists():
        write_json(folder / "spec.json", spec.to_dict())
    write_json(folder / "result.json", result.to_json())
    return result


def last_entry(folder: Path) -> dict[str, Any] | None:
    """The last of a run's history, shortened to what progress shows; None where it has none yet."""
    path = folder / "history.jsonl"
    if not path.exists():
        return None
    entry = read_json_lines(path)[-1]
    return {name: entry.get(name) for name in SHOWN}


@contextlib.contextmanager
def output_to(log) -> Iterator[None]:
    """Everything that libraries print or log goes to the unit's own file, not into the progress bars."""
    handler = logging.StreamHandler(log)
    # Libraries that made a handler when they were imported, as transformers does, keep the stream of that moment.
    loggers = [entry for entry in logging.Logger.manager.loggerDict.values() if isinstance(entry, logging.Logger)]
    streams = {
        made: made.stream
        for logger in loggers
        for made in logger.handlers
        if type(made) is logging.StreamHandler and made.stream in (sys.stderr, sys.stdout)
    }
    logging.getLogger().addHandler(handler)
    for made in streams:
        made.setStream(log)
    try:
        with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            yield
    finally:
        logging.getLogger().removeHandler(handler)
        for made, stream in streams.items():
            made.setStream(stream)
