"""Runs in processes of this machine: deaf to Ctrl-C, gone when the comparison is gone."""

import contextlib
import multiprocessing
import multiprocessing.context
import os
import signal
import socket
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker, spawn
from pathlib import Path
from typing import Any

from pebble import ProcessExpired, ProcessPool
from tqdm import tqdm

from ...training.environment import available_cores
from ...training.locking import exit_with_parent
from .base import POLL_SECONDS, Engine, Job, LostRunError, Outcome, Wanted, Work, check_here, worker_environment

GUARD = (
    'put the call under `if __name__ == "__main__":` in a file: each worker imports the script that it is called in'
)


class WorkerProcess(multiprocessing.context.SpawnProcess):
    """A process that Ctrl-C does not reach, from its first instruction on.

    A terminal sends it to every process. The comparison stops its workers itself; one that is still importing its libraries would
    print a traceback before it could be told to ignore it. What is blocked where a process starts is blocked in it.
    """

    def start(self) -> None:
        """Starts the process."""
        if hasattr(signal, "pthread_sigmask"):
            resource_tracker.ensure_running()  # spawn would start it in between, and it lifts the block
            before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
            try:
                super().start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        else:
            super().start()


class WorkerContext(multiprocessing.context.SpawnContext):
    """Starts workers. spawn, not fork: a forked child inherits torch's thread pools in an unknown state."""

    Process = WorkerProcess


def worker_pool(workers: int) -> ProcessPool:
    """A pool that outlives a worker's death, so that a killed run does not take the others along; its workers do not outlive us."""
    return ProcessPool(max_workers=workers, context=WorkerContext(), initializer=_begin, initargs=[os.getpid()])


def _begin(parent: int) -> None:
    """What a worker does first."""
    # The bars of libraries would make a lock for all processes: a semaphore, left behind by a worker that is stopped as it ends.
    tqdm.set_lock(threading.RLock())
    exit_with_parent(parent)


@contextlib.contextmanager
def environment_of_children(values: dict[str, str]) -> Iterator[None]:
    """Processes begun inside have `values` in their environment; afterwards this process has its former ones back."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class LocalEngine(Engine):
    """A pool of processes; see `Wanted`."""

    def __init__(self, wanted: Wanted):
        self._cpus, self._jobs = wanted.cpus, wanted.jobs or max(1, available_cores() // wanted.cpus)
        self._indices: dict[Future, int] = {}
        self._stack = contextlib.ExitStack()

    def prepare(self, runs: int) -> None:
        """Makes the pool, with no more processes than runs."""
        self._jobs = max(1, min(self._jobs, runs))
        self._stack.enter_context(environment_of_children(worker_environment(self._cpus)))
        self._pool = self._stack.enter_context(worker_pool(self._jobs))
        self._stack.callback(self._pool.stop)

    def at_once(self) -> int:
        """Two for each process: none waits for its next one."""
        return 2 * self._jobs

    def begin(self, work: Work, job: Job) -> Future:
        """Puts it in the pool's queue."""
        future = self._pool.schedule(work, args=[job, self._cpus, None])
        self._indices[future] = job.index
        return future

    def ended(self, handles: list[Future]) -> Iterable[Future]:
        """Those that have ended."""
        return wait(handles, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)[0]

    def outcome(self, handle: Future) -> Outcome:
        """What `work` returned."""
        del self._indices[handle]
        try:
            return handle.result()
        except BrokenProcessPool as error:
            raise ValueError(f"no worker process could be started ({error}); see an error above, or {GUARD}") from None
        except ProcessExpired as error:
            raise LostRunError(f"the process died (exit code {error.exitcode})") from None

    def running(self) -> dict[int, tuple[str, dict[str, Any] | None]]:
        """Those that a process has begun."""
        return {index: (socket.gethostname(), None) for future, index in self._indices.items() if future.running()}

    def close(self) -> None:
        """Leaves no worker behind."""
        self._stack.close()


def _check_script() -> None:
    """Refuses a script that workers cannot import; in a worker that is importing it, ends that worker."""
    try:
        script = spawn.get_preparation_data("worker").get("init_main_from_path")
    except RuntimeError:  # what Python says of this takes fourteen lines a worker: the comparison says it once
        raise SystemExit(1) from None
    if script is not None and not Path(script).is_file():
        raise ValueError(f"the script is {script}, which is no file; {GUARD}")


def make(wanted: Wanted) -> LocalEngine:
    """The engine; `ValueError` for what needs a cluster, for more cores than there are, and for a script without a file."""
    check_here(wanted)
    _check_script()
    return LocalEngine(wanted)
