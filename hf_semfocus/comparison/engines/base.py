"""What an engine is: it takes runs, a bounded number at a time, and gives their outcomes as they come."""

import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ...schema import RunResult
from ...training.environment import available_cores

POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Wanted:
    """What runs ask of an engine.

    Args:
        jobs: runs at once; None for as many as fit.
        cpus: cores, and torch threads, of a run.
        gpus: of a run; a fraction shares one.
        address: of a cluster.
    """

    jobs: int | None = None
    cpus: int = 1
    gpus: float = 0.0
    address: str | None = None

    def __post_init__(self) -> None:
        for name, value in (("jobs", 1 if self.jobs is None else self.jobs), ("cpus per run", self.cpus)):
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} is {value!r}; allowed: a whole number, at least 1")
        if not 0 <= self.gpus <= 1:
            raise ValueError(
                f"gpus per run is {self.gpus:g}; allowed: 0 to 1 (several processes share a run under `accelerate launch`)"
            )


def check_here(wanted: Wanted) -> None:
    """Refuses, by a `ValueError`, what needs a cluster, and more cores than this machine has."""
    for name in ("address", "gpus"):
        if value := getattr(wanted, name):
            raise ValueError(f"{name} is {value!r}, which is for a cluster; allowed: with --engine ray")
    if wanted.cpus > available_cores():
        raise ValueError(f"cpus per run is {wanted.cpus}; allowed: 1 … {available_cores()}, the cores of this machine")


@dataclass(frozen=True)
class Job:
    """A run to train.

    Args:
        index: among the comparison's runs.
        spec: of the run, as `RunSpec.to_dict` gives it.
        place: the run's folder, or its URL.
        kind: of node that it has to run on, where that matters.
    """

    index: int
    spec: dict[str, Any]
    place: str
    kind: str | None = None


@dataclass(frozen=True)
class Outcome:
    """What came of a run.

    Args:
        result: as in `result.json`.
        entry: the last epoch's, shortened to what progress shows.
        recorded: the result stands in the run's place.
    """

    result: RunResult
    entry: dict[str, Any] | None = None
    recorded: bool = True


class LostRunError(Exception):
    """The process or the node of a run is gone, and the engine does not try the run again."""


Tell = Callable[[dict[str, Any]], None]
"""Hears of each epoch's history entry, shortened to what progress shows."""
Work = Callable[[Job, int, Tell | None], Outcome]
"""Trains a job with so many threads, in whatever process or node the engine calls it."""


def worker_environment(threads: int) -> dict[str, str]:
    """What a worker's libraries read as they start: its torch threads, and huge pages for what glibc allocates.

    What a step gains by those: `recipes/benchmarks/step_bound.py` with this variable and without. A user's own tunables stay.
    """
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {
        **dict.fromkeys(names, str(threads)),
        "GLIBC_TUNABLES": os.environ.get("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),
    }


class Engine(ABC):
    """Trains runs. Subclasses say how one is begun, waited for and read; the order and the bound are here."""

    here = True  # on this machine, whose memory says what fits
    in_process = False  # runs see the memory of this process, and with it memory://

    def prepare(self, runs: int) -> None:  # noqa: B027
        """Hears how many runs there are to train, before the first."""

    @abstractmethod
    def begin(self, work: Work, job: Job) -> Any:
        """Begins a job and returns a handle of it."""

    @abstractmethod
    def ended(self, handles: list[Any]) -> Iterable[Any]:
        """Those that have ended, after `POLL_SECONDS` at the latest."""

    @abstractmethod
    def outcome(self, handle: Any) -> Outcome:
        """What came of an ended job; raises `LostRunError`, or what `work` raised."""

    @abstractmethod
    def at_once(self) -> int:
        """How many jobs may be begun and not ended."""

    def running(self) -> dict[int, tuple[str, dict[str, Any] | None]]:
        """Index → node and last epoch's entry, where the engine knows, of the jobs that are being trained."""
        return {}

    def kinds(self) -> dict[str, float]:
        """Kinds of nodes → runs at once on them; {} where no kinds are told apart."""
        return {}

    def close(self) -> None:  # noqa: B027
        """Ends what is still at work."""

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def outcomes(self, work: Work, jobs: Iterable[Job]) -> Iterator[tuple[Job, Outcome | LostRunError] | None]:
        """Each job with what came of it, in the order in which they end; None about twice a second."""
        waiting, begun = iter(jobs), dict[Any, Job]()
        while True:
            for job in itertools.islice(waiting, max(0, self.at_once() - len(begun))):
                begun[self.begin(work, job)] = job
            if not begun:
                return
            for handle in self.ended(list(begun)):
                job = begun.pop(handle)
                try:
                    yield job, self.outcome(handle)
                except LostRunError as lost:
                    yield job, lost
            yield None
