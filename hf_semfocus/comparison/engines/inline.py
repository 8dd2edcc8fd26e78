"""Runs in this process, one after the other: for a debugger, and for storage that no other process sees (memory://)."""

from collections.abc import Iterable
from concurrent.futures import Future

from .base import Engine, Job, Outcome, Wanted, Work, check_here


class InlineEngine(Engine):
    """Trains a run where it is begun; see `Wanted`."""

    in_process = True

    def __init__(self, wanted: Wanted):
        self._cpus = wanted.cpus

    def at_once(self) -> int:
        """One."""
        return 1

    def begin(self, work: Work, job: Job) -> Future:
        """Trains it."""
        done: Future = Future()
        done.set_result(work(job, self._cpus, None))
        return done

    def ended(self, handles: list[Future]) -> Iterable[Future]:
        """All: none is at work any more."""
        return handles

    def outcome(self, handle: Future) -> Outcome:
        """What `work` returned."""
        return handle.result()


def make(wanted: Wanted) -> InlineEngine:
    """The engine; `ValueError` for what needs a cluster, and for more cores than there are."""
    check_here(wanted)
    return InlineEngine(wanted)
