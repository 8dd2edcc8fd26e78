"""Processes that train the units of a comparison: one torch thread each, deaf to Ctrl-C, gone when the comparison is gone."""

import contextlib
import multiprocessing
import multiprocessing.context
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker

from pebble import ProcessPool
from tqdm import tqdm

from ..training.locking import exit_with_parent


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


# One torch thread each, and huge pages for what glibc allocates: a training step takes 5 to 15 % less (recipes/benchmarks/step_before.py).
WORKER_ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


@contextlib.contextmanager
def worker_environment() -> Iterator[None]:
    """Workers read `WORKER_ENVIRONMENT` when they start; afterwards this process has its own values back."""
    before = {name: os.environ.get(name) for name in WORKER_ENVIRONMENT}
    os.environ.update(WORKER_ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
